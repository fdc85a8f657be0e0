"""The one facade: the Python API, the command line and SQL statements all call it."""

import logging

from millstream.service.connecting import connect
from millstream.service.facade import Millstream

logging.getLogger("millstream").addHandler(logging.NullHandler())  # silent unless a program configures logging

__all__ = ["Millstream", "connect"]
