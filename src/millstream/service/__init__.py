"""The one facade: the Python API, the command line and SQL statements all call it."""

from millstream.service.connecting import connect
from millstream.service.facade import Millstream

__all__ = ["Millstream", "connect"]
