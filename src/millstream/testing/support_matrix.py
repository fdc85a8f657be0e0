"""Writes docs/support-matrix.md: every construct, how it is maintained, and when it is recomputed instead.

Each example of `constructs` is lowered and split into stages as a stream table's query is; the page says what came of
it, so that it cannot promise what the code refuses, or the other way round.

`python -m millstream.testing.support_matrix` writes the page; with `--check` it only says whether it is up to date.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import duckdb
from sqlglot import exp

from millstream.diff import rules as _rules  # noqa: F401  (registers the delta rules)
from millstream.diff.describe import operators
from millstream.diff.stages import split
from millstream.errors import Code, MillstreamError
from millstream.ops import Column
from millstream.reasons import Reason
from millstream.results import OperatorPlan
from millstream.sql.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.refused import refuse_in_every_mode
from millstream.sql.rewrites import rewrite
from millstream.sql.unsupported import RECOMPUTE
from millstream.sql.validate import validate
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.constructs import CONSTRUCTS, TABLES, VIEWS
from millstream.testing.duck import shared_connection

# Said of every query, so that they tell constructs apart only where there is nothing else to say.
_PLAIN = ("change feed", "filter of the delta", "projection of the delta", "of the rows of touched partitions")
# An example that is wrong, and not refused, belongs mended and not into the matrix.
_REFUSALS = {Code.UNSUPPORTED_SQL, Code.VOLATILE_FUNCTION, Code.UNSUPPORTED_TYPE}


class _Analyzer(DuckAnalyzer):
    """DuckDB, as far as it knows the functions; the types of Spark's own are not known here, and matter little."""

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        """The names and types of the query's columns."""
        try:
            return super().describe(query)
        except duckdb.Error:
            return tuple(Column(name, "int") for name in query.named_selects)


@dataclass(frozen=True)
class Support:
    """What becomes of an example: its operators and what the user is told, or the refusal."""

    operators: tuple[OperatorPlan, ...] = ()
    notices: tuple[str, ...] = ()
    refusal: MillstreamError | None = None

    @property
    def how(self) -> str:
        """How it is maintained, or that it is not."""
        if self.refusal is not None:
            return f"not: `{self.refusal.code}`, {self.refusal.message}"
        found = dict.fromkeys(o.strategy for o in self.operators if o.depth and o.strategy)
        telling = [s for s in found if s not in _PLAIN] or [s for s in found if s != _PLAIN[0]]
        return "; ".join([*telling, *self.notices])

    @property
    def fallback(self) -> str:
        """When it is recomputed, beyond the reasons that hold for every query; or the way out."""
        if self.refusal is not None:
            given = self.refusal.hint or ""
            hint = given.removesuffix(RECOMPUTE).rstrip("; ")
            verdict = "always, in AUTO and FULL" if given.endswith(RECOMPUTE) else "never: no mode takes it"
            return f"{verdict}; instead: {hint}" if hint else verdict
        special = dict.fromkeys(o.falls_back.rstrip(".") for o in self.operators if o.falls_back)
        return "; ".join(f for f in special if not f.startswith("never")) or "never"


def support_of(sql: str) -> Support:
    """Compile a query as far as that needs no Spark."""
    analyzer = _Analyzer(shared_connection())
    try:
        refuse_in_every_mode(parse_query(sql), sql)
        lowered = lower(parse_query(sql), sql, Tables(TABLES, VIEWS), analyzer)
        relation = rewrite(lowered.relation)
        validate(relation, sql, analyzer)
    except MillstreamError as error:
        if error.code not in _REFUSALS:
            raise
        return Support(refusal=error)
    return Support(operators(split(relation)), lowered.notices)


def page() -> str:
    """The page."""
    lines = [
        "# What can be maintained",
        "",
        "<!-- written by python -m millstream.testing.support_matrix from millstream.testing.constructs -->",
        "",
        "Each example was compiled to find out what is said of it here. What cannot be maintained is refused in",
        "DIFFERENTIAL, with its position and a hint; in AUTO and FULL it is recomputed at each refresh, unless no mode",
        "takes it.",
        "`millstream validate` says the same of a query of your own, operator by operator; the strategies are",
        "explained in [operators](operators/README.md).",
    ]
    for section, examples in CONSTRUCTS.items():
        lines += ["", f"## {section}", "", "| construct | example | how its changes are computed | recomputed when |"]
        lines.append("|---|---|---|---|")
        for name, sql in examples:
            support = support_of(sql)
            lines.append(f"| {_cell(name)} | `{_cell(sql)}` | {_cell(support.how)} | {_cell(support.fallback)} |")
    lines += [
        "",
        "## When any of them is recomputed",
        "",
        "The reason recorded with such a refresh starts with one of these codes. DIFFERENTIAL STRICT fails instead;",
        "those marked AUTO are a matter of cost, which DIFFERENTIAL does not weigh.",
        "",
        "| reason | meaning | |",
        "|---|---|---|",
        *(f"| `{r}` | {r.explanation} | {'AUTO' if r.is_by_cost else ''} |" for r in Reason if r.is_fallback),
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if it is stale."""
    path = Path(__file__).resolve().parents[3] / "docs" / "support-matrix.md"
    if "--check" in arguments:
        is_stale = not path.exists() or path.read_text() != page()
        if is_stale:
            print(f"{path.name} is stale: run python -m millstream.testing.support_matrix", file=sys.stderr)
        return 1 if is_stale else 0
    path.write_text(page())
    return 0


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
