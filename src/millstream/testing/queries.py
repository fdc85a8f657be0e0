"""Random queries: nested operators, a few levels deep, as SQL text.

The text is generated, not the operators, so that the front end is tested as well, and the oracle reads what a user
would have written. Output columns get new names (`c1`, `c2`, ...), so that no reference is ambiguous. A join that could
grow too large is left out: joins of joins of a dozen rows soon have millions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from millstream.testing.choices import Choices
from millstream.testing.scalars import KINDS, Col, Scalars
from millstream.testing.strategies import Tables

_BASE_ROWS = 12
_MOST_ROWS = 3_000
_JOINS = ("JOIN", "LEFT JOIN", "JOIN", "RIGHT JOIN", "FULL JOIN")


@dataclass(frozen=True)
class From:
    """An item of FROM, and roughly how many rows it has at most."""

    text: str
    columns: tuple[Col, ...]
    rows: int


@st.composite
def queries(draw: st.DrawFn, tables: Tables, *, least: int = 3, most: int = 5, reads_clock: bool = False) -> str:
    """Random queries of three to five operators, not counting scans."""
    return make_query(Choices.drawn(draw), tables, least=least, most=most, reads_clock=reads_clock)


def make_query(choices: Choices, tables: Tables, *, least: int = 3, most: int = 5, reads_clock: bool = False) -> str:
    """A query from the given choices, with `least` to `most` operators."""
    return _Builder(choices, tables, reads_clock=reads_clock).query(choices.number(least, most))


class _Builder:
    def __init__(self, choices: Choices, tables: Tables, *, reads_clock: bool) -> None:
        self._choices, self._scalars = choices, Scalars(choices, reads_clock)
        self._pick, self._chance, self._some = choices.pick, choices.chance, choices.some
        self._bases = [
            From(name, tuple(Col(c.name, KINDS[c.type]) for c in columns), _BASE_ROWS)
            for name, columns in tables.items()
        ]
        self._ctes: list[tuple[str, str]] = []
        self._number = 0

    def query(self, operators: int) -> str:
        text = _as_query(self._relation(operators))
        ctes = ", ".join(f"{name} AS ({body})" for name, body in self._ctes)
        return f"WITH {ctes} {text}" if ctes else text

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
                self._membership,
                self._value,
                self._window,
                self._first_rows,
                self._lateral,
                self._recursion,
            ]
        )
        return make(operators - 1)

    # One input

    def _filter(self, operators: int) -> From:
        source = self._aliased(self._relation(operators))
        where = f"{source.text} WHERE {self._scalars.predicate(source.columns)}"
        if self._chance(4):
            columns = tuple(Col(c.text.split(".")[-1], c.kind) for c in source.columns)
            return From(f"(SELECT * FROM {where})", columns, source.rows)
        return self._select(where, source.columns, source.rows)

    def _project(self, operators: int) -> From:
        source = self._aliased(self._relation(operators))
        items = [self._scalars.expression(c, source.columns) for c in source.columns]
        return self._select(source.text, items, source.rows)

    def _distinct(self, operators: int) -> From:
        source = self._aliased(self._relation(operators))
        exact = [c for c in source.columns if c.kind != "dbl"] or [Col("1", "int")]
        return self._select(source.text, self._some(exact, 3), source.rows, "DISTINCT ")

    def _group(self, operators: int) -> From:
        source = self._aliased(self._relation(operators))
        exact = [c for c in source.columns if c.kind != "dbl"] or [Col("1 + 0", "int")]
        keys = [self._scalars.expression(c, source.columns) if self._chance(5) else c for c in self._some(exact, 2)]
        shown = keys[:-1] if self._chance(4) else keys
        ways = [", ".join(k.text for k in keys)]
        if shown is keys:
            ways += ["ALL", ", ".join(str(n + 1) for n in range(len(keys)))]
        if len(keys) == 2 and self._chance(4):
            # without the empty set: for no rows, Spark returns no group, DuckDB one
            ways = [f"{keys[0].text}, ROLLUP ({keys[1].text})", f"GROUPING SETS (({keys[0].text}), ({keys[1].text}))"]
        return self._aggregate(source, f" GROUP BY {self._pick(ways)}", keys, shown, 2 * source.rows)

    def _global(self, operators: int) -> From:
        return self._aggregate(self._aliased(self._relation(operators)), "", [], [], 1)

    def _aggregate(self, source: From, grouping: str, keys: Sequence[Col], shown: Sequence[Col], rows: int) -> From:
        calls = [self._scalars.call(source.columns) for _ in range(self._choices.number(1, 3))]
        text = source.text + grouping
        if self._chance(4) and not grouping.endswith(" ALL"):  # DuckDB would also group by the columns in HAVING
            compared = [*keys, *(c for c in calls if c.kind != "dbl")] or calls
            text += f" HAVING {self._scalars.predicate(compared)}"
        return self._select(text, [*shown, *calls], rows)

    # Several inputs

    def _join(self, operators: int) -> From:
        count = 3 if self._chance(3) else 2
        inputs = [self._aliased(self._relation(operators // count)) for _ in range(count)]
        if _is_too_large(inputs):
            return self._plain(inputs[0])
        text, columns = inputs[0].text, inputs[0].columns
        for right in inputs[1:]:
            kind = self._pick([*_JOINS, "CROSS JOIN"])
            text += f" {kind} {right.text}"
            text += "" if kind == "CROSS JOIN" else f" ON {self._scalars.condition(columns, right.columns)}"
            columns += right.columns
        if self._chance(3):
            text += f" WHERE {self._scalars.predicate(columns)}"
        return self._select(text, self._some(columns, 4), _product(inputs))

    def _using(self, operators: int) -> From:
        """A join on a column that both sides have, which becomes one column."""
        left, right = self._relation(operators // 2), self._relation(operators - operators // 2)
        pairs = [(x, y) for x in left.columns for y in right.columns if x.kind == y.kind != "dbl"]
        if not pairs or _is_too_large([left, right]):
            return left
        key, pair = self._fresh("c"), self._pick(pairs)
        texts, shown = [], [Col(key, pair[0].kind)]
        for side, joined in zip((left, right), pair, strict=True):
            names = [key if c is joined else self._fresh("c") for c in side.columns]
            texts.append(f"{side.text} AS {self._fresh('q')}({', '.join(names)})")
            shown += [Col(n, c.kind) for n, c in zip(names, side.columns, strict=True) if n != key]
        text = f"{texts[0]} {self._pick(_JOINS)} {texts[1]} USING ({key})"
        return self._select(text, self._some(shown, 4), _product([left, right]))

    def _nested_join(self, operators: int) -> From:
        """A join with a join in parentheses."""
        a, b, c = inputs = [self._aliased(self._relation(operators // 3)) for _ in range(3)]
        if _is_too_large(inputs):
            return self._plain(a)
        inner = f"({b.text} {self._pick(_JOINS)} {c.text} ON {self._scalars.condition(b.columns, c.columns)})"
        on = self._scalars.condition(a.columns, (*b.columns, *c.columns))
        text = f"{a.text} {self._pick(_JOINS)} {inner} ON {on}"
        return self._select(text, self._some((*a.columns, *b.columns, *c.columns), 4), _product(inputs))

    def _membership(self, operators: int) -> From:
        """EXISTS, IN and their negations."""
        outer, inner = (self._aliased(self._relation(operators // 2)) for _ in range(2))
        no = "NOT " if self._chance(2) else ""
        correlated = self._scalars.condition(outer.columns, inner.columns)
        pairs = [(x, y) for x in outer.columns for y in inner.columns if x.kind == y.kind != "dbl"]
        if pairs and self._chance(2):
            left, right = self._pick(pairs)
            where = f" WHERE {correlated}" if self._chance(2) else ""
            test = f"{left.text} {no}IN (SELECT {right.text} FROM {inner.text}{where})"
        else:
            test = f"{no}EXISTS (SELECT 1 FROM {inner.text} WHERE {correlated})"
        text = f"{outer.text} WHERE {test}"
        if self._chance(3):
            text += f" AND {self._scalars.predicate(outer.columns)}"
        return self._select(text, outer.columns, outer.rows)

    def _value(self, operators: int) -> From:
        """A subquery as a value: as a column, in a condition, under OR."""
        outer, inner = (self._aliased(self._relation(operators // 2)) for _ in range(2))
        correlated = self._scalars.condition(outer.columns, inner.columns)
        exact = [c for c in inner.columns if c.kind in {"int", "big"}]
        if not exact or self._chance(3):
            test = f"EXISTS (SELECT 1 FROM {inner.text} WHERE {correlated})"
            if self._chance(2):
                return self._select(outer.text, [*outer.columns, Col(test, "bool")], outer.rows)
            text = f"{outer.text} WHERE {test} OR {self._scalars.predicate(outer.columns)}"
            return self._select(text, outer.columns, outer.rows)
        column = self._pick(exact)
        function = self._pick(["MAX", "MIN", "COUNT"])
        where = "" if self._chance(3) else f" WHERE {correlated}"
        value = f"(SELECT {function}({column.text}) FROM {inner.text}{where})"
        kind = "big" if function == "COUNT" else column.kind
        if self._chance(2):
            return self._select(outer.text, [*outer.columns, Col(value, kind)], outer.rows)
        compared = self._scalars.of_kind("int", outer.columns)
        text = f"{outer.text} WHERE {compared} {self._pick(['<', '>=', '='])} {value}"
        return self._select(text, outer.columns, outer.rows)

    def _window(self, operators: int) -> From:
        """Window functions whose ORDER BY leaves nothing open, so that the text is an oracle."""
        source = self._aliased(self._exact(self._relation(operators)))
        exact = source.columns
        numbers = [c for c in exact if c.kind in {"int", "big"}] or [Col("1", "int")]
        calls: list[Col] = []
        for _ in range(self._choices.number(1, 2)):
            partition = ", ".join(c.text for c in self._some(exact, 2)) if self._chance(2) else self._pick(exact).text
            order = ", ".join(f"{c.text}{self._pick(['', ' DESC'])}" for c in source.columns)
            column = self._pick(numbers)
            of_peers = [("RANK()", "int"), (f"COUNT({column.text})", "big"), (f"MAX({column.text})", column.kind)]
            # a second call that distinguishes equal rows could combine them with the first call's values arbitrarily
            of_rows = [] if calls else [("ROW_NUMBER()", "int"), (f"LAG({column.text})", column.kind)]
            call, kind = self._pick([*of_rows, *of_peers])
            over = "" if self._chance(5) else f"PARTITION BY {partition} "
            calls.append(Col(f"{call} OVER ({over}ORDER BY {order})", kind))
        if self._chance(3):
            text = f"{source.text} QUALIFY {calls[0].text} {self._pick(['= 1', '<= 2', 'IS NULL'])}"
            return self._select(text, source.columns, source.rows)
        return self._select(source.text, [*source.columns, *calls], source.rows)

    def _first_rows(self, operators: int) -> From:
        source = self._aliased(self._exact(self._relation(operators)))
        order = ", ".join(f"{c.text}{self._pick(['', ' DESC'])}" for c in source.columns)
        limit = f" LIMIT {self._choices.number(1, 4)}" + (" OFFSET 1" if self._chance(3) else "")
        return self._select(f"{source.text} ORDER BY {order}{limit}", source.columns, 4)

    def _lateral(self, operators: int) -> From:
        outer, inner = (self._aliased(self._exact(self._relation(operators // 2))) for _ in range(2))
        if _is_too_large([outer, inner]):
            return self._plain(outer)
        where = f"{inner.text} WHERE {self._scalars.condition(outer.columns, inner.columns)}"
        alias = self._fresh("q")
        if self._chance(3):
            names = [Col(self._fresh("c"), "big")]
            body = f"SELECT COUNT(*) AS {names[0].text} FROM {where}"
        else:
            names = [Col(self._fresh("c"), c.kind) for c in inner.columns]
            items = ", ".join(f"{c.text} AS {n.text}" for c, n in zip(inner.columns, names, strict=True))
            body = f"SELECT {items} FROM {where}"
            if self._chance(2):
                body += f" ORDER BY {', '.join(c.text for c in inner.columns)} LIMIT {self._choices.number(1, 2)}"
        join = self._pick([f"CROSS JOIN LATERAL ({body}) AS {alias}", f"LEFT JOIN LATERAL ({body}) AS {alias} ON TRUE"])
        added = [Col(f"{alias}.{n.text}", n.kind) for n in names]
        return self._select(f"{outer.text} {join}", [*self._some(outer.columns, 3), *added], _product([outer, inner]))

    def _recursion(self, operators: int) -> From:
        """What can be reached in two steps; without a bound, UNION ALL would not end, and Spark cannot run UNION."""
        base, step = (self._aliased(self._relation(operators // 2)) for _ in range(2))
        name, key, depth = self._fresh("r"), self._fresh("c"), self._fresh("c")
        start, source, target = (self._scalars.of_kind("int", side.columns) for side in (base, step, step))
        rows = base.rows * (1 + step.rows // 4) ** 2
        if rows > _MOST_ROWS:
            return self._plain(base)
        again = f"SELECT {target}, {name}.{depth} + 1 FROM {name} JOIN {step.text} ON {source} = {name}.{key}"
        body = f"SELECT {start}, 0 FROM {base.text} UNION ALL {again} WHERE {name}.{depth} < 2"
        text = f"(WITH RECURSIVE {name}({key}, {depth}) AS ({body}) SELECT * FROM {name})"
        return From(text, (Col(key, "int"), Col(depth, "int")), rows)

    def _union(self, operators: int) -> From:
        kinds = self._pick([("int",), ("int", "str"), ("int", "big"), ("str", "dec", "int")])
        left, right = (self._aliased(self._relation(operators // 2)) for _ in range(2))
        first, second = ([self._scalars.of_kind(kind, side.columns) for kind in kinds] for side in (left, right))
        return self._united(left, right, [Col(t, k) for t, k in zip(first, kinds, strict=True)], second)

    def _united(self, left: From, right: From, first: Sequence[Col], second: Sequence[str]) -> From:
        names = tuple(Col(self._fresh("c"), c.kind) for c in first)
        items = ", ".join(f"{c.text} AS {n.text}" for c, n in zip(first, names, strict=True))
        words = ["UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]
        word = self._pick(words) if all(c.kind != "dbl" for c in first) else "UNION ALL"
        text = f"SELECT {items} FROM {left.text} {word} SELECT {', '.join(second)} FROM {right.text}"
        return From(f"({text})", names, left.rows + right.rows)

    def _cte(self, operators: int) -> From:
        found = self._relation(operators)
        name = self._fresh("w")
        self._ctes.append((name, _as_query(found)))
        self._bases.append(From(name, found.columns, found.rows))
        return self._bases[-1]

    def _twice(self, operators: int) -> From:
        """A CTE joined or united with itself."""
        shared = self._cte(operators)
        left, right = self._aliased(shared), self._aliased(shared)
        if self._chance(3) or _is_too_large([left, right]):
            return self._united(left, right, left.columns, [c.text for c in right.columns])
        on = self._scalars.condition(left.columns, right.columns)
        text = f"{left.text} {self._pick(_JOINS)} {right.text} ON {on}"
        return self._select(text, self._some((*left.columns, *right.columns), 4), _product([left, right]))

    # Pieces

    def _exact(self, source: From) -> From:
        """The source without floating-point columns, whose order depends on how they were computed."""
        if all(c.kind != "dbl" for c in source.columns):
            return source
        aliased = self._aliased(source)
        exact = [c for c in aliased.columns if c.kind != "dbl"] or [Col("1 + 0", "int")]
        return self._select(aliased.text, exact, source.rows)

    def _fresh(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}{self._number}"

    def _aliased(self, source: From) -> From:
        alias = self._fresh("q")
        columns = tuple(Col(f"{alias}.{c.text}", c.kind) for c in source.columns)
        return From(f"{source.text} AS {alias}", columns, source.rows)

    def _plain(self, source: From) -> From:
        return self._select(source.text, source.columns, source.rows)

    def _select(self, source: str, columns: Sequence[Col], rows: int, modifier: str = "") -> From:
        names = tuple(Col(self._fresh("c"), c.kind) for c in columns)
        items = ", ".join(f"{c.text} AS {n.text}" for c, n in zip(columns, names, strict=True))
        return From(f"(SELECT {modifier}{items} FROM {source})", names, rows)


def _as_query(source: From) -> str:
    return source.text[1:-1] if source.text.startswith("(") else f"SELECT * FROM {source.text}"


def _product(inputs: Sequence[From]) -> int:
    return math.prod(i.rows for i in inputs)


def _is_too_large(inputs: Sequence[From]) -> bool:
    return _product(inputs) > _MOST_ROWS
