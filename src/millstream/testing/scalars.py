"""Random scalar expressions, predicates, join conditions and aggregate calls over given columns, as SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.testing.choices import Choices

KINDS = {"int": "int", "bigint": "big", "string": "str", "decimal(10,2)": "dec"}
"""The kind of each type, which determines what expressions use it; also `bool`, and `dbl`, which is never compared."""

_NUMERIC = {"int", "big", "dec"}
_LITERALS = {"int": ("1", "2", "0"), "big": ("1", "2", "3"), "str": ("'x'", "'y'"), "dec": ("1.50", "2.25")}
# a number that changes with time, and often equals one of the others
_HOUR = "CAST(HOUR(CURRENT_TIMESTAMP()) % 4 AS INT)"
_COMPARISONS = ("=", "<>", "<", ">=", "<=>")


@dataclass(frozen=True)
class Col:
    """A column or an expression, as other expressions refer to it, and its kind."""

    text: str
    kind: str


@dataclass(frozen=True)
class Scalars:
    """Builds expressions from the given choices; those with the current time change although their columns do not."""

    choices: Choices
    reads_clock: bool = False

    def expression(self, column: Col, columns: Sequence[Col]) -> Col:
        """An expression of the column's kind, or a comparison."""
        text, kind = column.text, column.kind
        if kind == "dbl" or self.choices.chance(3):
            return column
        if self.choices.chance(5):
            return Col(f"({self.predicate(columns)})", "bool")
        literal = self.choices.pick(self._literals(kind))
        forms = [f"COALESCE({text}, {literal})", f"CASE WHEN {self.predicate(columns)} THEN {text} ELSE {literal} END"]
        if kind in _NUMERIC:
            forms += [f"{text} + {literal}", f"{text} - {self.of_kind(kind, columns)}", f"{text} * 2", f"ABS({text})"]
        if kind == "str":
            forms += [f"UPPER({text})", f"{text} || 'z'"]
        return Col(self.choices.pick(forms), kind)

    def of_kind(self, kind: str, columns: Sequence[Col]) -> str:
        """A column of the kind, else a literal."""
        fitting = [c.text for c in columns if c.kind == kind]
        return self.choices.pick(fitting or self._literals(kind))

    def predicate(self, columns: Sequence[Col], depth: int = 1) -> str:
        """A condition on one row."""
        if depth and self.choices.chance(3):
            left, right = self.predicate(columns, 0), self.predicate(columns, 0)
            return self.choices.pick([f"{left} AND {right}", f"({left} OR {right})", f"NOT ({left})"])
        column = self.choices.pick(columns)
        if column.kind == "bool":
            return self.choices.pick([column.text, f"NOT {column.text}", f"{column.text} IS NULL"])
        if column.kind == "dbl" or self.choices.chance(6):
            return self.choices.pick([f"{column.text} IS NULL", f"{column.text} IS NOT NULL"])
        comparison = f"{column.text} {self.choices.pick(_COMPARISONS)}"
        if self.choices.chance(4):
            return f"{comparison} {self.of_kind(column.kind, columns)}"
        literals = self._literals(column.kind)
        if self.choices.chance(5):
            return f"{column.text} IN ({', '.join(literals)})"
        return f"{comparison} {self.choices.pick(literals)}"

    def condition(self, left: Sequence[Col], right: Sequence[Col]) -> str:
        """A join condition: mostly an equality, sometimes with more, sometimes none."""
        pairs = [(x, y) for x in left for y in right if _meet(x, y)]
        if not pairs:
            return self.choices.pick(["TRUE", self.predicate([*left, *right])])
        x, y = self.choices.pick(pairs)
        operator = self.choices.pick(["=", "=", "=", "=", "<=>", "<", "<>"])
        condition = f"{x.text} {operator} {y.text}"
        if self.choices.chance(4):
            condition += f" AND {self.predicate([*left, *right], 0)}"
        return condition

    def call(self, columns: Sequence[Col]) -> Col:
        """An aggregate call."""
        column = self.choices.pick(columns)
        text, kind = column.text, column.kind
        calls = [Col("COUNT(*)", "big"), Col(f"COUNT({text})", "big")]
        if kind != "dbl":
            calls += [Col(f"COUNT(DISTINCT {text})", "big")] * 2
        if kind == "bool":
            calls += [Col(f"BOOL_AND({text})", "bool"), Col(f"BOOL_OR({text})", "bool")] * 2
        if kind == "int":
            calls += [
                Col(f"SUM(DISTINCT {text})", "big"),
                Col(f"VAR_POP({text})", "dbl"),
                Col(f"STDDEV({text})", "dbl"),
            ]
        if kind != "bool":
            calls += [Col(f"MIN({text})", kind), Col(f"MAX({text})", kind)] * 2
        if kind in _NUMERIC:
            calls += [Col(f"SUM({text})", "dec" if kind == "dec" else "big")] * 2
        if kind in {"int", "big"}:
            calls.append(Col(f"AVG({text})", "dbl"))
        call = self.choices.pick(calls)
        if not self.choices.chance(5):
            return call
        return Col(f"{call.text} FILTER (WHERE {self.predicate(columns)})", call.kind)

    def _literals(self, kind: str) -> Sequence[str]:
        literals = _LITERALS.get(kind, ("TRUE", "FALSE"))
        return (_HOUR, *literals, _HOUR) if self.reads_clock and kind == "int" else literals


def _meet(left: Col, right: Col) -> bool:
    return left.kind == right.kind != "dbl" or {left.kind, right.kind} <= _NUMERIC
