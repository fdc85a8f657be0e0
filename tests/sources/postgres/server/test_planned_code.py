"""Functions in a table's own definition that PostgreSQL runs to plan a query, with the rights of who reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kits.capture import open_kit
from kits.shops import Shop
from kits.swapped_names import code_of, evil_runs
from kits.trigger_capture import Owner
from millstream.errors import Code
from millstream.settings import Settings
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.values.types import mirror_columns

pytestmark = pytest.mark.postgres

_LOGS = "RAISE LOG 'EVIL of % ran as %', current_database(), current_user; RETURN $1;"
_SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v int)",
    "INSERT INTO t VALUES (1, 10), (2, 20)",
    f"CREATE FUNCTION evil(int DEFAULT 1) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN {_LOGS} END $$",
    "CREATE FUNCTION two(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
    "$$ BEGIN RAISE LOG 'EVIL of % ran as %', current_database(), current_user; RETURN $1; END $$",
    "CREATE FUNCTION inlined(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + public.evil(7)'",
    "CREATE OPERATOR %% (LEFTARG = int, RIGHTARG = int, FUNCTION = two)",
)
RISKY = {
    "an index's expression": "CREATE INDEX i ON t ((evil(1) + id))",
    "a default argument": "CREATE INDEX i ON t ((evil() + id))",
    "deep inside": "CREATE INDEX i ON t ((CASE WHEN id > 1 THEN abs(evil(2)) ELSE v END))",
    "an argument that turns out to be constant": "CREATE INDEX i ON t ((evil(CASE WHEN true THEN 1 ELSE id END)))",
    "an argument that is NULL after all": "CREATE INDEX i ON t ((evil(id + NULL::int)))",
    "an operator": "CREATE INDEX i ON t (((1 OPERATOR(public.%%) 2) + id))",
    "an index's predicate": "CREATE INDEX i ON t (id) WHERE evil(3) = 3",
    "a unique index": "CREATE UNIQUE INDEX i ON t (id, (evil(3)))",
    "a function in SQL": "CREATE INDEX i ON t ((inlined(id)))",
    "statistics": "CREATE STATISTICS s ON (evil(2) + id), v FROM t",
}
HARMLESS = {
    "a column as the argument": "CREATE INDEX i ON t ((evil(id)))",
    "a column of another type": "CREATE INDEX i ON t ((evil(id::text::int)))",
    "a column as one of the arguments": "CREATE INDEX i ON t ((two(1, id)))",
    "an operator on a column": "CREATE INDEX i ON t ((id OPERATOR(public.%%) 2))",
    "a predicate on a column": "CREATE INDEX i ON t (v) WHERE evil(id) > 1",
    "PostgreSQL's own functions": "CREATE INDEX i ON t ((abs(1) + id))",
    "a CHECK": "ALTER TABLE t ADD CHECK (evil(4) = 4)",
    "a default": "ALTER TABLE t ADD COLUMN w int DEFAULT evil(5)",
}


@pytest.fixture
def _functions(owner: Owner) -> None:
    for statement in _SETUP:
        owner.execute(statement)


def read(shop: Shop, name: str = "t", trusted: tuple[str, ...] = ()) -> Code | None:
    """How reading a table ends, as the lake reads it."""
    with shop.connect() as connection:
        relation = find_relation(connection, name)

    def contents() -> None:
        with ExportedSnapshot(shop.address, [relation], trusted=trusted) as snapshot:
            rows = read_small(snapshot, relation, mirror_columns(relation, ["id"]))
            assert rows is not None
            assert rows.num_rows == 2

    return code_of(contents)


@pytest.mark.usefixtures("_functions")
@pytest.mark.parametrize("statement", RISKY.values(), ids=RISKY.keys())
def test_a_table_whose_owners_code_would_run_is_refused(shop: Shop, owner: Owner, statement: str) -> None:
    owner.execute(statement)
    assert read(shop) is Code.UNTRUSTED_CODE
    assert evil_runs(shop) == []


@pytest.mark.usefixtures("_functions")
@pytest.mark.parametrize("statement", HARMLESS.values(), ids=HARMLESS.keys())
def test_code_that_planning_does_not_run_is_no_hindrance(shop: Shop, owner: Owner, statement: str) -> None:
    owner.execute(statement)
    assert read(shop) is None
    assert evil_runs(shop) == []


@pytest.mark.usefixtures("_functions")
def test_what_is_risky_does_run(shop: Shop, owner: Owner) -> None:
    """Else the tests above would prove nothing."""
    for statement in RISKY.values():
        name = "STATISTICS s" if "STATISTICS" in statement else "INDEX i"
        owner.execute(statement)
        before = len(evil_runs(shop))
        with shop.connect() as connection:
            connection.execute("SELECT id FROM public.t")
        assert len(evil_runs(shop)) > before, statement
        owner.execute(f"DROP {name}")


@pytest.mark.usefixtures("_functions")
def test_partitions_and_their_keys_are_looked_at_too(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE TABLE p (id int, v int) PARTITION BY LIST (id)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1, 2)")
    owner.execute("INSERT INTO p VALUES (1, 1), (2, 2)")
    assert read(shop, "p") is None
    owner.execute("CREATE INDEX i ON p1 ((evil(1) + v))")
    assert read(shop, "p") is Code.UNTRUSTED_CODE
    owner.execute("CREATE TABLE q (id int, v int) PARTITION BY RANGE ((evil(9) + id))")
    owner.execute("CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (100)")
    assert read(shop, "q") is Code.UNTRUSTED_CODE
    owner.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
    owner.execute("CREATE INDEX j ON m ((evil(1) + id))")
    assert read(shop, "m") is Code.UNTRUSTED_CODE
    assert evil_runs(shop) == []


@pytest.mark.usefixtures("_functions")
@pytest.mark.parametrize("way", ["superuser", "definer", "search_path", "setting", "ours"])
def test_the_ways_out(shop: Shop, owner: Owner, way: str) -> None:
    owner.execute("CREATE INDEX i ON t ((inlined(id)))")
    assert read(shop) is Code.UNTRUSTED_CODE
    with shop.server.superuser(shop.name) as admin:
        if way in ("superuser", "ours"):
            to = "postgres" if way == "superuser" else "millstream"
            admin.execute("GRANT CREATE ON SCHEMA public TO millstream")
            admin.execute(f"ALTER FUNCTION inlined OWNER TO {to}")
    if way == "definer":
        owner.execute("ALTER FUNCTION inlined SECURITY DEFINER")
    if way == "search_path":
        owner.execute("ALTER FUNCTION inlined SET search_path = public")
    assert read(shop, trusted=("another", "shop_owner") if way == "setting" else ()) is None


@pytest.mark.usefixtures("_functions")
def test_a_captured_table_is_left_behind_until_it_is_trusted(shop: Shop, owner: Owner, tmp_path: Path) -> None:
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "t", "id", "v")
        owner.execute("CREATE INDEX i ON t ((evil(1) + id))")
        owner.execute("INSERT INTO t VALUES (3, 30)")
        kit.tick("t")  # its changes come from a buffer of ours
        kit.assert_exact(owner, "t")
        owner.execute("VACUUM FULL t")
        assert code_of(lambda: kit.tick("t")) is Code.UNTRUSTED_CODE
        assert evil_runs(shop) == []
    with open_kit(tmp_path / "lake", shop.address, Settings(trusted_owners="other, shop_owner")) as kit:
        owner.execute("INSERT INTO t VALUES (4, 40)")
        kit.tick("t")
        kit.assert_exact(owner, "t")


@pytest.mark.usefixtures("_functions")
def test_a_table_is_refused_when_its_capture_begins(shop: Shop, owner: Owner, tmp_path: Path) -> None:
    owner.execute("CREATE INDEX i ON t ((evil(1) + id))")
    with open_kit(tmp_path / "lake", shop.address) as kit:
        assert code_of(lambda: kit.read("r", "t", "id", "v")) is Code.UNTRUSTED_CODE
        assert owner.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)
    assert evil_runs(shop) == []


@pytest.mark.usefixtures("_functions")
@pytest.mark.parametrize("name", ["t", "m"])
def test_an_index_that_is_younger_than_the_snapshot_counts(shop: Shop, owner: Owner, name: str) -> None:
    """A load may take an hour, and a planner knows of all indexes that exist by then."""
    owner.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
    with shop.connect() as connection:
        relation = find_relation(connection, name)
    columns = mirror_columns(relation, ["id"])
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        owner.execute(f"CREATE INDEX i ON {name} ((evil(1) + id))")
        assert code_of(lambda: read_small(snapshot, relation, columns)) is Code.UNTRUSTED_CODE
        assert evil_runs(shop) == []
