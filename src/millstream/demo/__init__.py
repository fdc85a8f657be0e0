"""The demonstrations: a lake by itself, and a PostgreSQL database from which tables are captured and served back."""

from millstream.demo.lake import run
from millstream.demo.postgres import run_postgres

__all__ = ["run", "run_postgres"]
