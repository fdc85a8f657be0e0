"""The golden files of the delta rules: an operator's file holds queries that have it, and the SQL of its delta.

The same queries give the property tests their cases and the tests of dispatchers their examples, so that a new operator
needs one file of tests.
"""

from __future__ import annotations

import re
from pathlib import Path

from kits.paths import FIXTURES
from millstream.diff.rules import RULES, NoRule
from millstream.diff.stages import split
from millstream.ops import Relation, walk
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.rewrites import rewrite
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.duck import shared_connection
from millstream.testing.golden import read_cases
from millstream.testing.strategies import TABLES

FOLDER = FIXTURES / "delta_sql"
MAINTAINED: tuple[type[Relation], ...] = tuple(
    entry.operator for entry in RULES if not isinstance(entry, NoRule) or entry.stage
)
"""The operators with a rule or a stage: all that a query has."""


def file_of(operator: type[Relation]) -> Path:
    """The operator's file."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operator.__name__).lower()
    return FOLDER / f"{name}.sql"


def relation_of(text: str) -> Relation:
    """A query as operators."""
    return rewrite(lower(parse_query(text), text, Tables(TABLES), DuckAnalyzer(shared_connection())).relation)


def first(operator: type[Relation], query: str) -> Relation:
    """The first occurrence of the operator in the stages of a query."""
    bodies = (named.stage.body for named in split(relation_of(query)))
    return next(node for body in bodies for node in walk(body) if type(node) is operator)


def example_of(operator: type[Relation]) -> Relation:
    """The operator in the first query of its file."""
    return first(operator, read_cases(file_of(operator))[0].text)
