"""The one facade: the Python API, the command line and SQL statements all call it."""

from millstream.service.facade import Millstream, connect

__all__ = ["Millstream", "connect"]
