"""The PostgreSQL demonstration: starts a server, runs the first tutorial on it, and times each change.

Nothing is refreshed by hand: the stream tables keep themselves fresh by a schedule of one second.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from millstream.demo import story
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    import psycopg

    from millstream.cli.output import Output
    from millstream.demo.screen import Screen
    from millstream.demo.watch import Watch
    from millstream.service import Millstream

_SCHEDULE = "1s"
_PATIENCE_SECONDS = 60.0

_REMAINING_OBJECTS = """
SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'millstream%') +
       (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'millstream%')
"""


@dataclass(frozen=True, slots=True)
class Played:
    """One change, and how long it took to reach the served table, and the last stream table of the chain."""

    change: str
    statement: str
    commit_to_row_ms: int
    commit_to_chain_ms: int
    did: dict[str, str]


def run_postgres(output: Output, *, live: bool | None = None) -> None:
    """Run the first tutorial on a PostgreSQL server that is started for it.

    Args:
        live: whether to repaint the two sides in place; by default on a terminal.

    Raises:
        MillstreamError: DEPENDENCY_MISSING if the server or the driver is not installed.
    """
    try:
        from millstream.demo.screen import screen_for
        from millstream.demo.watch import Watch
        from millstream.testing.postgres_server import FAST, Server
    except ImportError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING, "this demonstration needs psycopg", hint="pip install 'millstream[demo]'"
        ) from e
    from millstream.service import connect
    from millstream.service.daemon.background import running

    with ExitStack() as stack:
        screen = stack.enter_context(screen_for(output, live=live))
        screen.working("starting PostgreSQL")
        server = stack.enter_context(Server(FAST))
        with server.superuser() as administrator:
            administrator.execute(f"CREATE DATABASE {story.DATABASE}".encode())
        application = stack.enter_context(server.superuser(story.DATABASE))
        for statement in (*story.TABLES, *story.GRANTS):
            application.execute(statement.encode())
        stack.enter_context(_variable(story.VARIABLE, server.url(story.DATABASE, story.ROLE)))
        lake = stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-"))
        ms = stack.enter_context(connect(lake, progress=screen.working))
        _create(ms, screen)
        with running(ms), Watch(server.url(story.DATABASE), story.RESULT, screen.served) as watch:
            played = [_play(ms, application, scene, watch, screen) for scene in story.SCENES]
        screen.working("verifying")
        verified = {name: ms.verify(name).ok and not _differences(application, name) for name in story.QUERIES}
        screen.working("detaching")
        ms.detach(story.DATABASE, cascade=True)
        left = application.execute(_REMAINING_OBJECTS).fetchone() == (0,)
    _report(output, played, verified, left)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for the duration of the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _create(ms: Millstream, screen: Screen) -> None:
    ms.attach(story.DATABASE, f"env:{story.VARIABLE}")
    for name, query in story.QUERIES.items():
        served = f"{story.DATABASE}.public.{name}"
        screen.typed("a stream table", f"CREATE STREAM TABLE {name} SERVE TO {served} AS {query.strip()}")
        screen.working(f"creating {name}")
        # AUTO may recompute tables this small, and the demonstration is about deltas.
        ms.create_stream_table(name, query, _SCHEDULE, "DIFFERENTIAL", serve_to=served)


def _play(
    ms: Millstream,
    application: psycopg.Connection[tuple[Any, ...]],
    scene: story.Scene,
    watch: Watch,
    screen: Screen,
) -> Played:
    """Make a change, and measure when the served table shows it by itself."""
    from millstream.demo.watch import fetched

    before = {name: ms.refresh_history(name, 1)[0].refresh_id for name in story.QUERIES}
    screen.working("the stream tables keep themselves fresh")
    application.execute(scene.statement.encode())  # in autocommit mode, so this is the COMMIT, too
    committed = time.perf_counter()
    screen.typed(scene.title, scene.statement, fetched(application, scene.shown))
    ms.wait_for(story.LAST, timeout=_PATIENCE_SECONDS)
    reached = time.perf_counter()
    seen = watch.first_change_after(committed)
    if seen is None:
        raise MillstreamError(Code.SERVE_FAILED, f"the served table did not change after: {scene.statement}")
    did = {name: _did(ms, name, since) for name, since in before.items()}
    row_ms, chain_ms = round((seen - committed) * 1000), round((reached - committed) * 1000)
    remark = f"{row_ms} ms from COMMIT to the changed row; nobody called a refresh"
    screen.ended(fetched(application, story.RESULT), story.RESULT, remark)
    return Played(scene.title, scene.statement, row_ms, chain_ms, did)


def _did(ms: Millstream, name: str, since: int) -> str:
    """The rows that the refreshes of a table have changed since one of them."""
    later = [r for r in ms.refresh_history(name) if r.refresh_id > since]
    inserted, updated, deleted = (
        (
            sum(counts)
            for counts in zip(*((r.rows_inserted, r.rows_updated, r.rows_deleted) for r in later), strict=True)
        )
        if later
        else (0, 0, 0)
    )
    return f"+{inserted} ~{updated} -{deleted}"


def _differences(application: psycopg.Connection[tuple[Any, ...]], name: str) -> int:
    """In how many rows the served table differs from PostgreSQL's own answer to the query."""
    query = story.QUERIES[name].replace("hr.", "")
    apart = f"(TABLE {name} EXCEPT ALL ({query})) UNION ALL (({query}) EXCEPT ALL TABLE {name})"
    row = application.execute(f"SELECT count(*) FROM ({apart}) AS apart".encode()).fetchone()
    assert row is not None
    return int(row[0])


def _report(output: Output, played: list[Played], verified: dict[str, bool], clean: bool) -> None:
    output.line()
    output.table(
        f"three stream tables over PostgreSQL, served back into it, that keep themselves fresh every {_SCHEDULE}",
        ("change", *story.QUERIES, "COMMIT to changed row", "whole chain"),
        [
            (
                p.change,
                *(p.did[name] for name in story.QUERIES),
                f"{p.commit_to_row_ms:,} ms",
                f"{p.commit_to_chain_ms:,} ms",
            )
            for p in played
        ],
    )
    for name, ok in verified.items():
        output.line(f"verify {name}: {'equal to' if ok else 'DIFFERENT from'} PostgreSQL's own answer")
    output.line(f"detached: {'nothing of millstream is left in the database' if clean else 'OBJECTS REMAIN'}")
    output.document({"changes": [asdict(p) for p in played], "verified": verified, "is_clean": clean})
    if not (all(verified.values()) and clean):
        raise MillstreamError(
            Code.REFRESH_FAILED, "a served table differs from its query, or objects remain after detaching"
        )
