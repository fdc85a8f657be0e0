"""What the role of capture may not remove does not keep the rest in place; a warning has the statements to run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import millstream
from kits.shops import MILLSTREAM, OWNER, STRANGER, Shop
from millstream import Millstream
from millstream.notices import LeftoverWarning
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.values.types import mirror_columns

pytestmark = pytest.mark.postgres

Way = Callable[[Millstream, Shop], str]


@pytest.fixture
def ms(shop: Shop, tmp_path: Path) -> Iterator[Millstream]:
    """A lake whose database has triggers, a slot, and a publication that the tables' owner made, as the hint asked."""
    with millstream.connect(tmp_path / "lake") as opened, shop.owner() as owner:
        opened.attach("shop", shop.address.reference)
        database = opened._attaching.get("shop")
        owner.execute("CREATE TABLE orders (id int)")
        with shop.connect() as connection:
            relation = find_relation(connection, "orders")
            install(connection, relation, mirror_columns(relation), opened._attaching.buffers(database))
        slot = opened._attaching.slot(database)
        owner.execute(f'CREATE PUBLICATION "{slot.publication}" FOR TABLE orders')
        with shop.server.superuser(shop.name) as superuser:
            superuser.execute(f"ALTER ROLE {MILLSTREAM} REPLICATION")
            superuser.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot.name])
            yield opened
            superuser.execute(f"ALTER ROLE {MILLSTREAM} NOREPLICATION")


def publication(ms: Millstream) -> str:
    return ms._attaching.slot(ms._attaching.get("shop")).publication


def left(shop: Shop) -> dict[str, int]:
    """How much of millstream's is in the database."""
    counts = {
        "triggers": "pg_trigger WHERE NOT tgisinternal",
        "schemas": "pg_namespace WHERE nspname LIKE 'millstream%'",
        "slots": "pg_replication_slots WHERE database = current_database()",
        "publications": "pg_publication",
    }
    with shop.server.superuser(shop.name) as superuser:
        found = {what: superuser.execute(f"SELECT count(*) FROM {where}").fetchone() for what, where in counts.items()}
    return {what: int(str(row[0])) for what, row in found.items() if row is not None and row[0]}


def by_psql(ms: Millstream, shop: Shop) -> str:
    """A script that ends at its first error."""
    psql = [str(shop.server.binaries / "psql"), shop.server.url(shop.name, MILLSTREAM), "-X", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run(psql, input=ms.detach_script("shop"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def in_one_transaction(ms: Millstream, shop: Shop) -> str:
    said: list[str] = []
    with psycopg.connect(shop.server.url(shop.name, MILLSTREAM), autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: said.append(f"{notice.severity}: {notice.message_primary}"))
        connection.execute(ms.detach_script("shop").encode())
    return "\n".join(said)


def by_detach(ms: Millstream, shop: Shop) -> str:
    with pytest.warns(LeftoverWarning) as warned:
        ms.detach("shop")
    assert ms.sources() == []
    assert len(warned) == 1
    return f"WARNING: {warned[0].message}"


@pytest.mark.parametrize("way", [by_psql, in_one_transaction, by_detach])
def test_a_publication_of_the_tables_owner_is_told_to_be_left(ms: Millstream, shop: Shop, way: Way) -> None:
    drop = f'DROP PUBLICATION "{publication(ms)}"'
    assert left(shop) == {"triggers": 5, "schemas": 1, "slots": 1, "publications": 1}
    said = way(ms, shop)
    assert left(shop) == {"publications": 1}
    assert "WARNING: " in said
    assert drop in said
    assert OWNER in said
    with shop.owner() as owner:
        owner.execute(drop.encode())
    assert left(shop) == {}


@pytest.mark.parametrize("way", [by_psql, in_one_transaction])
def test_a_slot_of_a_role_that_may_no_longer_replicate(ms: Millstream, shop: Shop, way: Way) -> None:
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(f"ALTER ROLE {MILLSTREAM} NOREPLICATION")
        superuser.execute(f'ALTER PUBLICATION "{publication(ms)}" OWNER TO {MILLSTREAM}')
        drop = f"SELECT pg_drop_replication_slot('{ms._attaching.slot(ms._attaching.get('shop')).name}')"
        said = way(ms, shop)
        assert left(shop) == {"slots": 1}
        assert drop in said
        superuser.execute(drop.encode())
    assert left(shop) == {}


def test_a_superuser_leaves_nothing(ms: Millstream, shop: Shop) -> None:
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(ms.detach_script("shop").encode())
    assert left(shop) == {}


def test_buffers_of_another_role_are_told_to_be_left(ms: Millstream, shop: Shop) -> None:
    """The address has come to name another role than the one that captured."""
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(f'DROP PUBLICATION "{publication(ms)}"')
        superuser.execute(f"ALTER SCHEMA millstream_changes OWNER TO {STRANGER}")
        said = by_detach(ms, shop)
        assert left(shop) == {"triggers": 5, "schemas": 1}
        drop = 'DROP SCHEMA "millstream_changes" CASCADE'
        assert drop in said
        assert STRANGER in said
        superuser.execute(drop.encode())
    assert left(shop) == {}


def test_in_another_database_of_the_server_it_lets_the_slot_be(ms: Millstream, shop: Shop) -> None:
    """A copy of the database, say, which has the triggers, too."""
    before = left(shop)
    with shop.server.superuser("postgres") as superuser:
        superuser.execute(ms.detach_script("shop").encode())
    assert left(shop) == before
