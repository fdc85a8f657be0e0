"""Trees that the builders make print as text that means the same: parentheses stand where they are needed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from millstream.sql.parse import parse_query, print_query
from millstream.sql.postgres import spark_builders as build
from millstream.sql.postgres import spark_casts
from millstream.sql.postgres import types as t
from millstream.sql.postgres.spark_builders import Node

OPERATORS = ("+", "-", "*", "/", "%", "DIV", "&", "|", "^", "=", "<>", "<", "<=", ">", ">=", "<=>", "LIKE", "RLIKE")
TYPES = (t.INTEGER, t.TEXT, t.TIMESTAMP, t.TIMESTAMPTZ, t.numeric(12, 3), t.array_of(t.DOUBLE))

leaves = st.one_of(
    st.sampled_from([build.NULL, build.TRUE, build.FALSE, build.column("a b"), build.column("c", build.own_name("d"))]),
    st.integers(-9, 9).map(build.number),
    st.text(max_size=4).map(build.text),
)


def compounds(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(build.op, inner, st.sampled_from(OPERATORS), inner),
        st.builds(build.not_like, inner, st.sampled_from(["LIKE", "ILIKE"]), inner),
        st.builds(build.and_, inner, inner, inner),
        st.builds(build.or_, inner, inner),
        st.builds(build.not_, inner),
        st.builds(build.negative, inner),
        st.builds(build.complement, inner),
        st.builds(build.is_null, inner),
        st.builds(build.is_not_null, inner),
        st.builds(build.in_, inner, st.lists(inner, min_size=1, max_size=2)),
        st.builds(build.when, inner, inner, st.none() | inner),
        st.builds(lambda x, y, z: build.cases((y, z), of=x), inner, inner, inner),
        st.builds(lambda *args: build.fn("SOME_FUNCTION", *args), inner, inner),
        st.builds(lambda x: build.fn("SOME_FUNCTION", build.lambda_(build.op(build.ITEM, "<", x), build.ITEM)), inner),
        st.builds(spark_casts.cast, inner, st.sampled_from(TYPES)),
    )


def bare(node: Node) -> Node:
    """Without parentheses, and with casts as the builders make them: the parser has another node for Spark's."""
    root = exp.select(node)
    for paren in list(root.find_all(exp.Paren)):
        paren.replace(paren.this)
    for cast in list(root.find_all(exp.TryCast)):
        cast.replace(exp.Cast(this=cast.this, to=cast.to))
    return root


@given(st.recursive(leaves, compounds, max_leaves=12))
@settings(max_examples=100, derandomize=True, database=None, deadline=None)
def test_what_is_printed_is_read_as_the_same_tree(node: Node) -> None:
    printed = print_query(exp.select(node))
    assert bare(parse_query(printed).selects[0]) == bare(node), printed


def test_shared_nodes_are_printed_wherever_they_stand() -> None:
    x = build.op(build.column("a"), "+", 1)
    assert print_query(exp.select(build.op(x, "*", x))) == "SELECT (`a` + 1) * (`a` + 1)"
