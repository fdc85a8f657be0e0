"""The demonstrations: a lake by itself, and a PostgreSQL whose tables are captured and served back."""

from millstream.demo.lake import run
from millstream.demo.postgres import run_postgres

__all__ = ["run", "run_postgres"]
