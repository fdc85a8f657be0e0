"""GROUPING SETS, CUBE and ROLLUP: the sets of keys they stand for, and rows that are grouped by all of them at once.

Each row occurs once per set, with the keys outside the set masked by NULL and the set's number as a further key. Equal
sets have different numbers, so that their groups are counted twice, as they should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import Column, Item, Project, Relation, UnionAll
from millstream.ops.expressions import cases, cast, col, compare, null
from millstream.sql.lowering.context import Context
from millstream.sql.refusals.unsupported import unsupported

MOST_SETS = 64

_Sets = list[list[exp.Expr]]
_SEVERAL = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class Groupings:
    """The keys of a GROUP BY in their written order and, unless it is a plain GROUP BY, its sets of keys."""

    keys: tuple[exp.Expr, ...]
    sets: tuple[tuple[exp.Expr, ...], ...] | None = None


def groupings(group: exp.Group, context: Context) -> Groupings:
    """What a GROUP BY groups by; the expressions are those of the text."""
    plain = [e for e in group.expressions if not isinstance(e, _SEVERAL)]
    behind = [n for clause in ("rollup", "cube", "grouping_sets") for n in group.args.get(clause) or ()]
    if not behind and len(plain) == len(group.expressions):
        return Groupings(tuple(plain))
    if len(behind) == 1 and not behind[0].expressions:
        # a, b WITH ROLLUP
        sets = _expanded(type(behind[0])(expressions=plain), context)
    elif len(behind) == 1 and isinstance(behind[0], exp.GroupingSets) and plain:
        # a, b GROUPING SETS ((a), (b)): the keys before it only list what the sets may use
        sets = _expanded(behind[0], context)
    else:
        sets = [[]]
        for part in (*group.expressions, *behind):
            own = _expanded(part, context) if isinstance(part, _SEVERAL) else [[part]]
            _limit(len(sets) * len(own), part, context)
            sets = [[*one, *other] for one in sets for other in own]
    keys = [*(plain if behind else ()), *(k for part in (*group.expressions, *behind) for k in _keys(part))]
    if sets == [[]]:
        # all rows are one group, which exists even without rows; that of an empty set among others does not
        if keys:
            raise unsupported("GROUPING SETS", group, context.sql, "leave GROUP BY out: all rows are one group")
        return Groupings(())
    return Groupings(tuple(keys), tuple(tuple(keys) for keys in sets))


def _keys(part: exp.Expr) -> list[exp.Expr]:
    """The keys in the order of the text, which GROUPING_ID uses."""
    if isinstance(part, _SEVERAL):
        return [key for e in part.expressions for key in _keys(e)]
    return _unit(part)


def _expanded(part: exp.Expr, context: Context) -> _Sets:
    units = [_unit(e) for e in part.expressions if not isinstance(e, _SEVERAL)]
    if isinstance(part, exp.Rollup):
        sets = [[key for unit in units[:n] for key in unit] for n in range(len(units), -1, -1)]
    elif isinstance(part, exp.Cube):
        _limit(2 ** len(units), part, context)
        sets = [[]]
        for unit in units:
            sets = [keys + more for keys in sets for more in (unit, [])]
    else:
        sets = [s for e in part.expressions for s in (_expanded(e, context) if isinstance(e, _SEVERAL) else [_unit(e)])]
    _limit(len(sets), part, context)
    return sets


def _unit(part: exp.Expr) -> list[exp.Expr]:
    return list(part.expressions) if isinstance(part, exp.Tuple) else [part.unnest()]


def _limit(number: int, part: exp.Expr, context: Context) -> None:
    if number > MOST_SETS:
        hint = f"write GROUPING SETS with the ones you need, up to {MOST_SETS}"
        raise unsupported(f"grouping by {number} sets of keys", part, context.sql, hint)


@dataclass(frozen=True)
class KeySets:
    """The sets of keys of one grouped SELECT, by the names of the keys' columns."""

    number: Column
    keys: tuple[str, ...]
    sets: tuple[frozenset[str], ...]

    def masked(self, input_: Relation, items: Sequence[Item]) -> Relation:
        """The rows of the input with keys and arguments computed, once per set."""
        branches = tuple(
            Project(input_, (*(self._mask(i, keys) for i in items), self._numbered(number)))
            for number, keys in enumerate(self.sets)
        )
        return UnionAll(branches) if len(branches) > 1 else branches[0]

    def grouping(self, key: str) -> exp.Expr:
        """GROUPING(key): 1 in the groups of the sets without the key."""
        return self._by_number([int(key not in keys) for keys in self.sets], "tinyint")

    def grouping_id(self, keys: Sequence[str] = ()) -> exp.Expr:
        """GROUPING_ID(keys): the bits of all keys, that of the first key first."""
        wanted = keys or self.keys
        bits = ("".join(str(int(key not in present)) for key in wanted) for present in self.sets)
        return self._by_number([int(b or "0", 2) for b in bits], "bigint")

    def _mask(self, item: Item, keys: frozenset[str]) -> Item:
        is_masked = item.column.name in self.keys and item.column.name not in keys
        return Item(null(item.column.type), item.column) if is_masked else item

    def _numbered(self, number: int) -> Item:
        return Item(cast(exp.Literal.number(number), self.number.type), self.number)

    def _by_number(self, values: Sequence[int], type_: str) -> exp.Expr:
        branches = [
            (compare(exp.EQ, col(self.number.name), exp.Literal.number(n)), exp.Literal.number(value))
            for n, value in enumerate(values)
        ]
        return cast(cases(*branches), type_)
