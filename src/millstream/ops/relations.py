"""The closed set of relational operators.

A *Z-set* is a relation with the column `naming.WEIGHT`; a relation without it counts every row once. Joins multiply the
weights of their inputs.

The set is closed so that mypy proves every dispatch over it complete: one that ends in `assert_never` is an error until
it covers a new operator too. An operator enters the set through its family.
"""

from __future__ import annotations

from typing import get_args

from millstream.ops.groups import Grouping
from millstream.ops.joins import Join
from millstream.ops.leaves import Leaf
from millstream.ops.operator import WEIGHT_COLUMN, referenced
from millstream.ops.rowwise import RowWise
from millstream.ops.unions import Union

Relation = Leaf | RowWise | Join | Grouping | Union

OPERATORS: tuple[type[Relation], ...] = get_args(Relation)
"""All operators."""

__all__ = ["OPERATORS", "WEIGHT_COLUMN", "Relation", "referenced"]
