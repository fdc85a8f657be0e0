"""Everything the parser reads of a query in Spark's dialect is lowered, printed unchanged, or refused."""

from __future__ import annotations

import pytest
from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.sql.lowering.known_nodes import NODES, OF_AGGREGATES, PARTS, is_known
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.refusals.node_arguments import unhandled
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.constructs import TABLES
from millstream.testing.duck import shared_connection


def lowered(text: str) -> None:
    lower(parse_query(text), text, Tables(TABLES), DuckAnalyzer(shared_connection()))


def kinds(of: type[exp.Expr]) -> set[type[exp.Expr]]:
    """All classes below one."""
    return {k for below in of.__subclasses__() for k in (below, *kinds(below))}


def test_every_argument_of_every_node_that_is_taken_apart_is_handled_or_refused() -> None:
    """A new version of the parser with a new argument fails here until somebody decides about it."""
    wrong = []
    for kind, known in NODES.items():
        listed, there = known.handled | known.refused, set(kind.arg_types)
        if listed != there or known.handled & known.refused:
            wrong.append(f"{kind.__name__}: {sorted(there - listed)} undecided, {sorted(listed - there)} unknown")
    assert not wrong, "\n".join(wrong)


def test_queries_clauses_and_from_items_are_all_on_the_list_or_refused() -> None:
    """What is not an expression to the parser is taken apart by lowering, or is no part of a query it takes."""
    passed = {k for k in kinds(exp.Expr) if is_known(k) and k not in NODES and k not in PARTS}
    assert not {k for k in passed if issubclass(k, exp.Query) or not issubclass(k, exp.Condition | exp.Func | exp.UDTF)}


def test_aggregates_have_nothing_but_expressions_and_known_flags() -> None:
    for kind, flag in OF_AGGREGATES.items():
        assert flag in kind.arg_types


def test_an_argument_of_a_version_to_come_is_refused() -> None:
    tree = parse_query("SELECT a FROM t WHERE a > 1")
    tree.args["where"].set("brand_new", False)
    assert [(type(u.node), u.argument) for u in unhandled(tree, NODES)] == [(exp.Where, "brand_new")]
    with pytest.raises(MillstreamError) as caught:
        lower(tree, "SELECT a FROM t WHERE a > 1", Tables(TABLES), DuckAnalyzer(shared_connection()))
    assert caught.value.code is Code.UNSUPPORTED_SQL


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t GROUP BY DISTINCT a",
        "SELECT * ILIKE 'a%' FROM t",
        "SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t",
        "SELECT a FROM t WHERE EXISTS ((SELECT a FROM u) ORDER BY a LIMIT 0)",
        "WITH RECURSIVE w(x) AS ((SELECT a FROM t UNION ALL SELECT x + 1 FROM w WHERE x < 3) LIMIT 5) SELECT x FROM w",
        "WITH RECURSIVE w(x) AS ((WITH t AS (SELECT 1 AS a) SELECT a FROM t UNION ALL SELECT x + 1 FROM w WHERE x < 3))"
        " SELECT x FROM w",
    ],
)
def test_clauses_that_had_no_effect_are_refused(text: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        lowered(text)
    assert caught.value.code is Code.UNSUPPORTED_SQL


@pytest.mark.parametrize(
    "text", ["SELECT /*+ BROADCAST(t) */ a FROM t", "SELECT /*+ COALESCE(1), MERGE(t) */ a FROM t"]
)
def test_hints_are_advice(text: str) -> None:
    lowered(text)
