"""Captured tables of attached databases: begun, brought forward, and ended."""

from millstream.capture.captures import Captures

__all__ = ["Captures"]
