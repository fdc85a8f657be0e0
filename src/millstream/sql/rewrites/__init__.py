"""Rewrites of the lowered tree, in the order they apply."""

from millstream.ops import Relation
from millstream.sql.rewrites.distinct_to_two_levels import distinct_to_two_levels
from millstream.sql.rewrites.fix_order import fix_order
from millstream.sql.rewrites.isolate_time import isolate_time
from millstream.sql.rewrites.outer_to_inner import outer_to_inner
from millstream.sql.rewrites.prune_columns import prune_columns
from millstream.sql.rewrites.pull_up_projections import pull_up_projections

REWRITES = (outer_to_inner, pull_up_projections, isolate_time, prune_columns, distinct_to_two_levels, fix_order)


def rewrite(relation: Relation) -> Relation:
    """Apply all rewrites."""
    for step in REWRITES:
        relation = step(relation)
    return relation
