"""Writers without a pause, and ticks whose snapshot is held on to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from kits.capture import Kit, advance
from kits.shops import Shop
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.postgres.connection import connect
from millstream.sources.postgres.load.exported_snapshot import import_snapshot


@contextmanager
def writing(url: str, *statements: str) -> Iterator[Callable[[], int]]:
    """Transactions without a pause, from two sessions; says how many there were."""
    is_over, done = threading.Event(), [0, 0]

    def write(place: int) -> None:
        with psycopg.connect(url) as connection:
            while not is_over.is_set():
                with connection.transaction():
                    for statement in statements:
                        connection.execute(statement.encode())
                done[place] += 1

    threads = [threading.Thread(target=write, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sum(done)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def assert_held(kit: Kit, shop: Shop, *tables: str) -> None:
    """Tick, and compare the mirrors with what the held snapshot shows afterwards."""
    with HeldSnapshot(shop.address) as held:
        names = {f"shop.public.{t}" for t in tables}
        advance(kit.captures, names, at_snapshot=held.hold)
        assert held.snapshot is not None
        assert held.snapshot.position == (kit.database.position or {})["snapshot"]
        with connect(shop.address) as reader:
            import_snapshot(reader, held.snapshot.name)
            reader.execute("SET LOCAL search_path = public")
            kit.assert_exact(reader, *tables)
