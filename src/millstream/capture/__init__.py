"""Begins, brings forward and ends the capture of tables of attached databases."""

from millstream.capture.captures import Captures

__all__ = ["Captures"]
