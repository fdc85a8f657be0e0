"""A lake with stream tables of many kinds and schedules over lake tables and two databases, and a load that writes.

The tables are small; what matters is that all of them change all the time, by writers that share nothing with
millstream: delta-rs and plain PostgreSQL sessions. `both` joins two sums of one table, each kept by a stream table
of its own: in every version of it the two are equal, or a reader saw two frontiers.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psycopg

from kits.lake import Lake
from kits.paths import environment
from kits.shops import OWNER, Shop

LAKE_TABLES, DATABASE_TABLES = 8, 4
SCHEDULES = ("10s", "20s", "30s", "1m", "1m", "2m")
"""A hundred tables on these are refreshed 3.8 times a second."""
DATABASES = ("shop", "store")
GROUPS = 5


@dataclass(frozen=True)
class Definition:
    """A stream table of the load.

    Args:
        reads: the databases that it reads.
    """

    name: str
    query: str
    schedule: str | None
    reads: frozenset[str] = frozenset()
    serve_to: str | None = None


def definitions(count: int) -> list[Definition]:
    """Some stream tables: the diamond, and tables of every kind in turn."""
    found = [
        Definition("total", "SELECT SUM(v) AS s FROM t0", "10s"),
        Definition("by_group", "SELECT k, SUM(v) AS s FROM t0 GROUP BY k", None),
        Definition("total_of_groups", "SELECT SUM(s) AS s FROM by_group", "20s"),
        Definition("both", "SELECT a.s AS one, b.s AS two FROM total a CROSS JOIN total_of_groups b", "10s"),
    ]
    while len(found) < count:
        found.append(_definition(len(found)))
    return found


def _definition(number: int) -> Definition:
    schedule, name = SCHEDULES[number % len(SCHEDULES)], f"s{number}"
    table, database = f"t{number % LAKE_TABLES}", DATABASES[number // 5 % 2]
    captured = f"{database}.public.p{number % DATABASE_TABLES}"
    match number % 5:
        case 0:
            query = f"SELECT k, SUM(v) AS s, COUNT(*) AS n, MAX(v) AS m FROM {table} GROUP BY k"
            return Definition(name, query, schedule)
        case 1:
            query = f"SELECT k, SUM(v) AS s, COUNT(*) AS n FROM {captured} GROUP BY k"
            target = f"{database}.public.{name}" if number % 2 else None
            return Definition(name, query, schedule, frozenset([database]), target)
        case 2:
            query = f"SELECT x.id, x.v, y.v AS w FROM {table} x JOIN t1 y ON x.id = y.id WHERE x.v > 20"
            return Definition(name, query, schedule)
        case 3:
            query = f"SELECT t.id, t.v, p.v AS w FROM {table} t LEFT JOIN {captured} p ON t.id = p.id"
            return Definition(name, query, schedule, frozenset([database]))
        case _:
            query = "SELECT a.k, a.v, b.v AS w FROM shop.public.p0 a JOIN store.public.p1 b ON a.id = b.id"
            return Definition(name, query, schedule, frozenset(DATABASES))


def make_sources(lake: Lake, shops: dict[str, Shop], rows: int = 40) -> None:
    """The tables, each with some rows, and the databases attached."""
    for number in range(LAKE_TABLES):
        lake.table(f"t{number}", "id INT, k INT, v INT", *(f"{i}, {i % GROUPS}, {i}" for i in range(rows)))
    for name, shop in shops.items():
        with shop.owner() as owner:
            for number in range(DATABASE_TABLES):
                owner.execute(f"CREATE TABLE p{number} (id int PRIMARY KEY, k int, v int)")
                owner.execute(f"INSERT INTO p{number} SELECT i, i % {GROUPS}, i FROM generate_series(0, {rows - 1}) i")
            owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
        lake.ms.attach(name, f"env:{variable(name)}")


def variable(database: str) -> str:
    """The environment variable with the address of a database."""
    return f"BUSY_{database.upper()}_URL"


@dataclass
class Writers:
    """Writes to all tables until it is ended; a database that is gone is tried again."""

    lake: Lake
    shops: dict[str, Shop]
    pause_seconds: float
    _end: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    written: int = 0

    def __enter__(self) -> Writers:
        targets = [self._write_lake, *(lambda s=shop: self._write_database(s) for shop in self.shops.values())]
        self._threads = [threading.Thread(target=self._guarded, args=[target]) for target in targets]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - shown to the test
            self.errors.append(error)

    def _write_lake(self) -> None:
        draw, number = random.Random(7), 1000
        while not self._end.wait(self.pause_seconds):
            number += 1
            table = f"t{draw.randrange(LAKE_TABLES)}"
            key = draw.randrange(GROUPS)
            self.lake.sql(
                draw.choice(
                    (
                        f"INSERT INTO {table} VALUES ({number}, {key}, {draw.randrange(90)})",
                        f"UPDATE {table} SET v = v + 1 WHERE k = {key}",
                        f"DELETE FROM {table} WHERE id = {draw.randrange(1000, number + 1)}",
                    )
                )
            )
            self.written += 1

    def _write_database(self, shop: Shop) -> None:
        draw, number = random.Random(shop.name), 1000
        while not self._end.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(_url(shop), autocommit=True) as owner:
                while not self._end.wait(self.pause_seconds):
                    number += 1
                    table, key = f"p{draw.randrange(DATABASE_TABLES)}", draw.randrange(GROUPS)
                    owner.execute(f"INSERT INTO {table} VALUES ({number}, {key}, {draw.randrange(90)})".encode())
                    owner.execute(f"UPDATE {table} SET v = v + 1 WHERE id % 7 = {key}".encode())
                    owner.execute(f"DELETE FROM {table} WHERE id = {draw.randrange(1000, number + 1)}".encode())
                    self.written += 3
            self._end.wait(0.2)


def _url(shop: Shop) -> str:
    return shop.server.url(shop.name, OWNER)


class Processes:
    """`millstream run`, twice: one leads, the other stands by."""

    def __init__(self, root: Path, logs: Path, addresses: dict[str, str]) -> None:
        self._root, self._logs = root, logs
        self._environment = environment() | addresses
        self._count = 0
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def start(self) -> Path:
        """Start one more; returns its log."""
        self._count += 1
        log = self._logs / f"run-{self._count}.log"
        output = log.open("wb")
        command = [sys.executable, "-m", "millstream.cli", "--lake", str(self._root), "run"]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=self._environment)
        self._running.append((process, output))
        return log

    def kill(self, pid: int) -> None:
        """Kill one with SIGKILL."""
        for process, output in self._running:
            if process.pid == pid:
                process.kill()
                process.wait()
                output.close()
        self._running = [(p, o) for p, o in self._running if p.pid != pid]

    def drain(self, seconds: float) -> list[int]:
        """End all by SIGTERM; returns their exit codes."""
        for process, _ in self._running:
            process.terminate()
        return [process.wait(seconds) for process, _ in self._running]

    def close(self) -> None:
        """End whatever still runs."""
        for process, output in self._running:
            process.kill()
            process.wait()
            output.close()

    def logged(self) -> str:
        """The ends of all logs."""
        logs = sorted(self._logs.glob("run-*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


@contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    """Environment variables of this process for the duration of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def until(condition: Callable[[], Any], seconds: float, explain: Callable[[], str]) -> float:
    """Wait until something is so; returns how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, explain()
        time.sleep(0.05)
    return time.monotonic() - start
