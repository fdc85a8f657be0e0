"""PostgreSQL's functions by family; each family's module fills the registry when it is imported."""

from millstream.sql.postgres.functions import arrays, date_patterns, dates, json, json_building, numbers, strings
from millstream.sql.postgres.functions.registry import FUNCTIONS, call

__all__ = ["FUNCTIONS", "arrays", "call", "date_patterns", "dates", "json", "json_building", "numbers", "strings"]
