"""Frozen relational operators: what a query is, and what a delta plan is made of."""

# ruff: noqa: F403  (each family lists its own exports, so that a new operator is exported by its own module)

from millstream.ops.groups import *
from millstream.ops.joins import *
from millstream.ops.leaves import *
from millstream.ops.operator import Column as Column
from millstream.ops.operator import Item as Item
from millstream.ops.operator import Opaque as Opaque
from millstream.ops.relations import Relation as Relation
from millstream.ops.render import render as render
from millstream.ops.rowwise import *
from millstream.ops.unions import *
from millstream.ops.walk import transform as transform
from millstream.ops.walk import walk as walk
