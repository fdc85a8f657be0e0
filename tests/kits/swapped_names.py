"""A source's owner who puts another relation under the name of the one that was looked at, at the worst moment.

The moment is made by locks, not by luck: the owner's transaction holds the table exclusively and has exchanged the
names; the reader waits for the lock; the owner commits; and the name means what it did not mean before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from kits.shops import Shop
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from kits.wal_shops import WalShop

# Planning runs it, since it says it is immutable; the server's log has it even if the transaction writes nothing.
_EVIL = """
CREATE FUNCTION public.evil() RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN RAISE LOG 'EVIL of % ran as %', current_database(), current_user; RETURN 1; END $$
"""
_WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND usename = 'millstream' AND wait_event_type = 'Lock'"
)


def make_evil(owner: psycopg.Connection[Any]) -> None:
    """The owner's function, which records whose rights it has."""
    owner.execute(_EVIL)


def evil_runs(shop: Shop | WalShop) -> list[str]:
    """Each time it ran with the rights of the role that captures."""
    said = (shop.server.home / "log").read_text(errors="replace").splitlines()
    return [line for line in said if f"EVIL of {shop.name} ran as millstream" in line]


@contextmanager
def swapped_while_waiting(shop: Shop, *statements: str, role: str = "shop_owner") -> Iterator[None]:
    """Inside the block, a session that waits for what the statements have locked goes on when they are committed."""
    with psycopg.connect(shop.server.url(shop.name, role)) as owner, shop.server.superuser() as watch:
        for statement in statements:
            owner.execute(statement)

        def commit_when_awaited() -> None:
            until = time.monotonic() + 8
            while time.monotonic() < until:
                if watch.execute(_WAITING, [shop.name]).fetchone() != (0,):
                    break
                time.sleep(0.01)
            owner.commit()

        thread = threading.Thread(target=commit_when_awaited)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def code_of(call: Callable[[], object]) -> Code | None:
    """The code of what a call raises; anything else is a failure of the test."""
    try:
        call()
    except MillstreamError as error:
        return error.code
    return None


VIEW_FOR_TABLE = (
    "ALTER TABLE public.t RENAME TO t_old",
    "CREATE VIEW public.t AS SELECT public.evil() + id - 1 AS id, v FROM public.t_old",
    "GRANT SELECT ON public.t TO millstream",
)
VIEW_FOR_MATERIALIZED = (
    "ALTER MATERIALIZED VIEW public.m RENAME TO m_old",
    "CREATE VIEW public.m AS SELECT public.evil() + id - 1 AS id, v FROM public.m_old",
    "GRANT SELECT ON public.m TO millstream",
)
TABLE_FOR_TABLE = (
    "ALTER TABLE public.t RENAME TO t_old",
    "CREATE TABLE public.t (id int PRIMARY KEY, v int)",
)
