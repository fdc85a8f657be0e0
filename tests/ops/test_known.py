"""What is known of a result's key and NULLs, by what is known of its sources."""

from __future__ import annotations

import pytest
from sqlglot import exp

from millstream.ops import Aggregate, Column, Filter, InnerJoin, Item, OuterJoin, Project, Relation, Scan, UnionAll
from millstream.ops.expressions import col
from millstream.ops.known import Known

SOURCES = {
    "orders": Known(frozenset({"id"}), frozenset({"id", "customer"})),
    "customers": Known(frozenset({"id"}), frozenset({"id"})),
    "log": Known(None, frozenset({"at"})),
}
ORDERS = Scan(
    "orders", ("ID", "Customer", "amount"), tuple(Column(n, "bigint") for n in ("o_id", "o_customer", "amount"))
)
CUSTOMERS = Scan("customers", ("id", "name"), (Column("c_id", "bigint"), Column("name", "string")))
LOG = Scan("log", ("at", "what"), (Column("at", "bigint"), Column("what", "string")))
ON = exp.EQ(this=col("o_customer"), expression=col("c_id"))


def keep(*names: str) -> tuple[Item, ...]:
    return tuple(Item(col(n), Column(n.removeprefix("o_"), "bigint")) for n in names)


CASES: dict[str, tuple[Relation, set[str] | None, set[str]]] = {
    "a table": (ORDERS, {"o_id"}, {"o_id", "o_customer"}),
    "some of its rows": (Filter(ORDERS, exp.true()), {"o_id"}, {"o_id", "o_customer"}),
    "its key under another name": (Project(ORDERS, keep("o_id", "amount")), {"id"}, {"id"}),
    "without its key": (Project(ORDERS, keep("o_customer", "amount")), None, {"customer"}),
    "a computed column": (Project(ORDERS, (Item(exp.Neg(this=col("o_id")), Column("n", "bigint")),)), None, set()),
    "a join": (InnerJoin((ORDERS, CUSTOMERS), (ON,)), {"o_id", "c_id"}, {"o_id", "o_customer", "c_id"}),
    "a join with a table without a key": (InnerJoin((ORDERS, LOG), ()), None, {"o_id", "o_customer", "at"}),
    "an outer join": (OuterJoin("left", ORDERS, CUSTOMERS, ON), {"o_id", "c_id"}, {"o_id", "o_customer"}),
    "a full join": (OuterJoin("full", ORDERS, CUSTOMERS, ON), None, set()),
    "groups": (Aggregate(ORDERS, keep("o_customer", "amount"), ()), {"customer", "amount"}, {"customer"}),
    "one group": (Aggregate(ORDERS, (), (Item(exp.Count(this=exp.Star()), Column("n", "bigint")),)), set(), set()),
    "a union": (UnionAll((ORDERS, ORDERS)), None, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_known(name: str) -> None:
    relation, key, not_null = CASES[name]
    assert relation.known(SOURCES) == Known(frozenset(key) if key is not None else None, frozenset(not_null))
