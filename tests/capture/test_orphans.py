"""Tables that are no longer captured keep no triggers and no buffers, even if their removal fails or is interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kits.capture import Kit, killed_at, open_kit
from kits.tick_tables import Owner, both, kit, owner

if TYPE_CHECKING:
    from kits.shops import Shop

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres

SOURCE = "millstream.capture.installation"
Point = tuple[str, str, int]


def named(point: Point) -> str:
    return f"{point[1]} {point[0].rpartition(':')[2]} {point[2]}"


def replace_t(owner: Owner, to: str, columns: str = "id int PRIMARY KEY, v text, n numeric(10,2)") -> None:
    """Another table is `t` from now on."""
    owner.execute(f"ALTER TABLE t RENAME TO {to}")
    owner.execute(f"CREATE TABLE t ({columns})")
    owner.execute("INSERT INTO t VALUES (1, 'new', 1)")


def triggers(owner: Owner) -> set[str]:
    """The tables that have triggers of ours."""
    query = "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'millstream%'"
    return {table for (table,) in owner.execute(query)}


def buffers(shop: Shop) -> int:
    with shop.server.superuser(shop.name) as superuser:
        query = "SELECT count(*) FROM pg_class WHERE relname ~ '^changes_[0-9]+$' AND relkind = 'r'"
        row = superuser.execute(query).fetchone()
        assert row is not None
        return int(str(row[0]))


POINTS = [
    ("put_database", "after", 1),  # the mirror is to be compared
    (f"{SOURCE}:install", "after", 1),
    ("put_database", "after", 2),  # the tick has begun
    ("put_database", "after", 3),  # and is complete
]


@pytest.mark.parametrize("point", POINTS, ids=named)
def test_a_table_that_is_replaced(both: Kit, owner: Owner, shop: Shop, point: Point) -> None:
    replace_t(owner, "old")
    killed_at(both.root, shop.address, point, "tick")
    replace_t(owner, "older")
    for _ in range(2):
        both.tick()
        both.assert_exact(owner, "t", "bag")
        assert triggers(owner) == {"t", "bag"}
        assert buffers(shop) == 2
        owner.execute("UPDATE t SET v = v || 'x'")


def test_a_table_that_is_dropped(both: Kit, owner: Owner, shop: Shop) -> None:
    owner.execute("DROP TABLE t")
    killed_at(both.root, shop.address, ("put_database", "after", 1), "tick")
    both.tick()
    assert triggers(owner) == {"bag"}
    assert buffers(shop) == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_a_table_that_is_loaded_again(both: Kit, owner: Owner, shop: Shop, nth: int) -> None:
    replace_t(owner, "old", "id int PRIMARY KEY, v text, n numeric(10,2)")
    killed_at(both.root, shop.address, ("put_database", "after", nth), "read", "more", "t", "v", "id")
    assert "old" in triggers(owner)
    both.read("more", "t", "v", "id")
    both.tick()
    both.assert_exact(owner, "t", "bag")
    assert triggers(owner) == {"t", "bag"}
    assert buffers(shop) == 2


def test_a_lock_that_is_not_to_be_had(both: Kit, owner: Owner, shop: Shop) -> None:
    replace_t(owner, "old")
    with shop.owner() as reader, reader.transaction():
        reader.execute("SELECT FROM old")
        for _ in range(2):
            owner.execute("UPDATE t SET v = v || 'x'")
            both.tick()
            both.assert_exact(owner, "t", "bag")
            assert triggers(owner) == {"old", "t", "bag"}
        assert any("keeps its triggers for now" in said for said in both.said)
    with open_kit(both.root, shop.address) as later:
        later.tick()
    assert triggers(owner) == {"t", "bag"}
    assert buffers(shop) == 2


def test_no_tick_comes_any_more(both: Kit, owner: Owner, shop: Shop) -> None:
    replace_t(owner, "old")
    killed_at(both.root, shop.address, POINTS[-1], "tick")
    both.forget("a")
    both.forget("b")
    assert triggers(owner) == set()
    assert buffers(shop) == 0


def test_a_schema_of_another_lake(both: Kit, owner: Owner, shop: Shop) -> None:
    """As where another database answers: what is captured there is none of ours."""
    replace_t(owner, "old")
    killed_at(both.root, shop.address, POINTS[-1], "tick")
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("COMMENT ON SCHEMA millstream_changes IS 'another lake'")
    both.tick()
    assert "old" in triggers(owner)
