"""Captured tables of attached databases: begun, brought forward, and ended. Needs psycopg, so import it late."""

from millstream.refresh.capture.captures import Captures

__all__ = ["Captures"]
