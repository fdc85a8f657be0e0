"""Random queries: operators on operators, as SQL text, a few deep.

The text is drawn, not the operators, so that the front end is under test as well, and the oracle reads what a user
would have written. Output columns get new names (`c1`, `c2`, ...), so that no reference is ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from millstream.testing.choices import Choices
from millstream.testing.strategies import Tables

_KINDS = {"int": "int", "bigint": "big", "string": "str", "decimal(10,2)": "dec"}
_NUMERIC = {"int", "big", "dec"}
_LITERALS = {"int": ("1", "2", "0"), "big": ("1", "2", "3"), "str": ("'x'", "'y'"), "dec": ("1.50", "2.25")}
_JOINS = ("JOIN", "LEFT JOIN", "JOIN", "RIGHT JOIN", "FULL JOIN")
_COMPARISONS = ("=", "<>", "<", ">=", "<=>")


@dataclass(frozen=True)
class Col:
    """A column as an expression may refer to it; its kind decides what may be done with it."""

    text: str
    kind: str


@dataclass(frozen=True)
class From:
    """What may stand in FROM, without an alias."""

    text: str
    columns: tuple[Col, ...]


@st.composite
def queries(draw: st.DrawFn, tables: Tables, *, least: int = 3, most: int = 5) -> str:
    """Random queries of three to five operators, scans not counted."""
    return make_query(Choices.drawn(draw), tables, least=least, most=most)


def make_query(choices: Choices, tables: Tables, *, least: int = 3, most: int = 5) -> str:
    """A query of the given choices, of that many operators."""
    return _Builder(choices, tables).query(choices.number(least, most))


class _Builder:
    def __init__(self, choices: Choices, tables: Tables) -> None:
        self._choices = choices
        self._pick, self._chance, self._some = choices.pick, choices.chance, choices.some
        self._bases = [
            From(name, tuple(Col(c.name, _KINDS[c.type]) for c in columns)) for name, columns in tables.items()
        ]
        self._ctes: list[tuple[str, str]] = []
        self._number = 0

    def query(self, operators: int) -> str:
        found = self._relation(operators)
        text = found.text[1:-1] if found.text.startswith("(") else f"SELECT * FROM {found.text}"
        ctes = ", ".join(f"{name} AS ({body})" for name, body in self._ctes)
        return f"WITH {ctes} {text}" if ctes else text

    def _fresh(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}{self._number}"

    # Relations

    def _relation(self, operators: int) -> From:
        if operators <= 0:
            return self._pick(self._bases)
        make: Callable[[int], From] = self._pick(
            [
                self._join,
                self._group,
                self._filter,
                self._join,
                self._group,
                self._project,
                self._distinct,
                self._union,
                self._global,
                self._using,
                self._nested_join,
                self._cte,
                self._twice,
            ]
        )
        return make(operators - 1)

    def _filter(self, operators: int) -> From:
        source, alias, columns = self._aliased(self._relation(operators))
        return self._select(f"{source} AS {alias} WHERE {self._predicate(columns)}", columns, star=self._chance(4))

    def _project(self, operators: int) -> From:
        source, alias, columns = self._aliased(self._relation(operators))
        return self._select(f"{source} AS {alias}", [self._expression(c, columns) for c in columns])

    def _distinct(self, operators: int) -> From:
        source, alias, columns = self._aliased(self._relation(operators))
        exact = [c for c in columns if c.kind != "dbl"] or [Col("1", "int")]
        return self._select(f"{source} AS {alias}", self._some(exact, 3), "DISTINCT ")

    def _join(self, operators: int) -> From:
        inputs = 3 if self._chance(3) else 2
        left, alias, columns = self._aliased(self._relation(operators // 2))
        text = f"{left} AS {alias}"
        for _ in range(inputs - 1):
            right, alias, more = self._aliased(self._relation((operators - operators // 2) // (inputs - 1)))
            kind = self._pick([*_JOINS, "CROSS JOIN"])
            text += f" {kind} {right} AS {alias}"
            text += "" if kind == "CROSS JOIN" else f" ON {self._condition(columns, more)}"
            columns = [*columns, *more]
        if self._chance(3):
            text += f" WHERE {self._predicate(columns)}"
        return self._select(text, self._some(columns, 4))

    def _using(self, operators: int) -> From:
        """A join by a column of one name, which then is one column."""
        left, right = self._relation(operators // 2), self._relation(operators - operators // 2)
        pairs = [(x, y) for x in left.columns for y in right.columns if x.kind == y.kind != "dbl"]
        if not pairs:
            return left
        key, pair = self._fresh("c"), self._pick(pairs)
        texts, shown = [], [Col(key, pair[0].kind)]
        for side, joined in zip((left, right), pair, strict=True):
            names = [key if c is joined else self._fresh("c") for c in side.columns]
            texts.append(f"{side.text} AS {self._fresh('q')}({', '.join(names)})")
            shown += [Col(n, c.kind) for n, c in zip(names, side.columns, strict=True) if n != key]
        kind = self._pick(["JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"])
        return self._select(f"{texts[0]} {kind} {texts[1]} USING ({key})", self._some(shown, 4))

    def _nested_join(self, operators: int) -> From:
        """A join with a join in parentheses."""
        (a, x, first), (b, y, second), (c, z, third) = (self._aliased(self._relation(operators // 3)) for _ in range(3))
        inner = f"({b} AS {y} {self._pick(_JOINS)} {c} AS {z} ON {self._condition(second, third)})"
        on = self._condition(first, [*second, *third])
        return self._select(
            f"{a} AS {x} {self._pick(_JOINS)} {inner} ON {on}", self._some([*first, *second, *third], 4)
        )

    def _group(self, operators: int) -> From:
        return self._aggregate(operators, keyed=True)

    def _global(self, operators: int) -> From:
        return self._aggregate(operators, keyed=False)

    def _aggregate(self, operators: int, *, keyed: bool) -> From:
        source, alias, columns = self._aliased(self._relation(operators))
        exact = [c for c in columns if c.kind != "dbl"] or [Col("1 + 0", "int")]
        keys = [self._expression(c, columns) if self._chance(5) else c for c in self._some(exact, 2)] if keyed else []
        calls = [self._call(columns) for _ in range(self._choices.number(1, 3))]
        shown = keys if not self._chance(4) else keys[:-1]
        text = f"{source} AS {alias}"
        if keys:
            text += f" GROUP BY {self._keys(keys, shown)}"
        if self._chance(4):
            text += f" HAVING {self._predicate([*keys, *(c for c in calls if c.kind != 'dbl')] or calls)}"
        return self._select(text, [*shown, *calls])

    def _keys(self, keys: Sequence[Col], shown: Sequence[Col]) -> str:
        ways = [", ".join(k.text for k in keys)]
        if len(shown) == len(keys):
            ways += ["ALL", ", ".join(str(n + 1) for n in range(len(keys)))]
        return self._pick(ways)

    def _union(self, operators: int) -> From:
        kinds = self._pick([("int",), ("int", "str"), ("int", "big"), ("str", "dec", "int")])
        left, right = (self._branch(operators // 2, kinds) for _ in range(2))
        names = [Col(self._fresh("c"), kind) for kind in kinds]
        first = ", ".join(f"{e} AS {n.text}" for e, n in zip(left[0], names, strict=True))
        word = self._pick(["UNION ALL", "UNION"])
        text = f"SELECT {first} FROM {left[1]} {word} SELECT {', '.join(right[0])} FROM {right[1]}"
        return From(f"({text})", tuple(names))

    def _branch(self, operators: int, kinds: Sequence[str]) -> tuple[list[str], str]:
        source, alias, columns = self._aliased(self._relation(operators))
        return [self._of_kind(kind, columns) for kind in kinds], f"{source} AS {alias}"

    def _cte(self, operators: int) -> From:
        found = self._relation(operators)
        name = self._fresh("w")
        self._ctes.append((name, found.text[1:-1] if found.text.startswith("(") else f"SELECT * FROM {found.text}"))
        named = From(name, found.columns)
        self._bases.append(named)
        return named

    def _twice(self, operators: int) -> From:
        """A CTE joined or united with itself."""
        shared = self._cte(operators)
        left, right = self._fresh("q"), self._fresh("q")
        columns = [Col(f"{left}.{c.text}", c.kind) for c in shared.columns]
        more = [Col(f"{right}.{c.text}", c.kind) for c in shared.columns]
        if self._chance(3):
            names = [Col(self._fresh("c"), c.kind) for c in columns]
            first = ", ".join(f"{c.text} AS {n.text}" for c, n in zip(columns, names, strict=True))
            second = ", ".join(c.text for c in more)
            where = f" WHERE {self._predicate(more)}"
            text = (
                f"SELECT {first} FROM {shared.text} AS {left} UNION ALL SELECT {second} FROM {shared.text} AS {right}"
            )
            return From(f"({text}{where})", tuple(names))
        kind = self._pick(["JOIN", "LEFT JOIN", "FULL JOIN"])
        on = self._condition(columns, more)
        text = f"{shared.text} AS {left} {kind} {shared.text} AS {right} ON {on}"
        return self._select(text, self._some([*columns, *more], 4))

    def _aliased(self, source: From) -> tuple[str, str, list[Col]]:
        alias = self._fresh("q")
        return source.text, alias, [Col(f"{alias}.{c.text}", c.kind) for c in source.columns]

    def _select(self, source: str, columns: Sequence[Col], modifier: str = "", *, star: bool = False) -> From:
        if star:
            return From(f"(SELECT * FROM {source})", tuple(Col(c.text.split(".")[-1], c.kind) for c in columns))
        names = [Col(self._fresh("c"), c.kind) for c in columns]
        items = ", ".join(f"{c.text} AS {n.text}" for c, n in zip(columns, names, strict=True))
        return From(f"(SELECT {modifier}{items} FROM {source})", tuple(names))

    # Expressions

    def _expression(self, column: Col, columns: Sequence[Col]) -> Col:
        """An expression of the column's kind, or a comparison."""
        text, kind = column.text, column.kind
        if kind == "dbl" or self._chance(3):
            return column
        if self._chance(5):
            return Col(f"({self._predicate(columns)})", "bool")
        literal = self._pick(_LITERALS.get(kind, ("TRUE", "FALSE")))
        forms = [f"COALESCE({text}, {literal})", f"CASE WHEN {self._predicate(columns)} THEN {text} ELSE {literal} END"]
        if kind in _NUMERIC:
            forms += [f"{text} + {literal}", f"{text} - {self._of_kind(kind, columns)}", f"{text} * 2", f"ABS({text})"]
        if kind == "str":
            forms += [f"UPPER({text})", f"{text} || 'z'"]
        return Col(self._pick(forms), kind)

    def _of_kind(self, kind: str, columns: Sequence[Col]) -> str:
        """A column of the kind, else a literal."""
        fitting = [c.text for c in columns if c.kind == kind]
        return self._pick(fitting) if fitting else self._pick(_LITERALS[kind])

    def _predicate(self, columns: Sequence[Col], depth: int = 1) -> str:
        if depth and self._chance(3):
            left, right = self._predicate(columns, 0), self._predicate(columns, 0)
            return self._pick([f"{left} AND {right}", f"({left} OR {right})", f"NOT ({left})"])
        column = self._pick(columns)
        if column.kind == "bool":
            return self._pick([column.text, f"NOT {column.text}", f"{column.text} IS NULL"])
        if column.kind == "dbl" or self._chance(6):
            return self._pick([f"{column.text} IS NULL", f"{column.text} IS NOT NULL"])
        if self._chance(4):
            return f"{column.text} {self._pick(_COMPARISONS)} {self._of_kind(column.kind, columns)}"
        literals = _LITERALS[column.kind]
        if self._chance(5):
            return f"{column.text} IN ({', '.join(literals)})"
        return f"{column.text} {self._pick(_COMPARISONS)} {self._pick(literals)}"

    def _condition(self, left: Sequence[Col], right: Sequence[Col]) -> str:
        """A join condition: mostly an equality, sometimes with more, sometimes none."""
        pairs = [(x, y) for x in left for y in right if _meet(x, y)]
        if not pairs:
            return self._pick(["TRUE", self._predicate([*left, *right])])
        x, y = self._pick(pairs)
        operator = self._pick(["=", "=", "=", "=", "<=>", "<", "<>"])
        condition = f"{x.text} {operator} {y.text}"
        if self._chance(4):
            condition += f" AND {self._predicate([*left, *right], 0)}"
        return condition

    def _call(self, columns: Sequence[Col]) -> Col:
        column = self._pick(columns)
        text, kind = column.text, column.kind
        calls = [Col("COUNT(*)", "big"), Col(f"COUNT({text})", "big")]
        if kind != "dbl":
            calls.append(Col(f"COUNT(DISTINCT {text})", "big"))
        if kind != "bool":
            calls += [Col(f"MIN({text})", kind), Col(f"MAX({text})", kind)] * 2
        if kind in _NUMERIC:
            calls += [Col(f"SUM({text})", "dec" if kind == "dec" else "big")] * 2
        if kind in {"int", "big"}:
            calls.append(Col(f"AVG({text})", "dbl"))
        call = self._pick(calls)
        return Col(f"{call.text} FILTER (WHERE {self._predicate(columns)})", call.kind) if self._chance(5) else call


def _meet(left: Col, right: Col) -> bool:
    return left.kind == right.kind != "dbl" or {left.kind, right.kind} <= _NUMERIC
