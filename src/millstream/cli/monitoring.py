"""`status`, `stats`, `history`: the state of stream tables and their refreshes."""

from typing import Annotated

import typer

from millstream.cli import formats
from millstream.cli.output import Column
from millstream.cli.session import Session, verb
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import DaemonStatus

OneNameArgument = Annotated[str | None, typer.Argument(help="Only this stream table.")]

_STATUS = (
    Column("table", "name"),
    Column("status", "status"),
    Column("mode", "refresh_mode"),
    Column("schedule", "schedule"),
    Column("populated", "is_populated"),
    Column("data of", "data_timestamp", formats.moment),
    Column("stale for", "staleness", formats.duration, number=True),
    Column("errors", "consecutive_errors", number=True),
    Column("waits for", "waits_for", prose=True),
    Column("cycle", "cycle", ", ".join, prose=True),
)
_STATS = (
    Column("table", "name"),
    Column("schema", "schema"),
    Column("status", "status"),
    Column("refreshes", "total_refreshes", number=True),
    Column("failed", "failed_refreshes", number=True),
    Column("ins", "total_rows_inserted", number=True),
    Column("upd", "total_rows_updated", number=True),
    Column("del", "total_rows_deleted", number=True),
    Column("average", "avg_duration_ms", formats.milliseconds, number=True),
    Column("last", "last_refresh_action"),
    Column("at", "last_refresh_at", formats.moment),
    Column("stale", "stale"),
)
_HISTORY = (
    Column("id", "refresh_id", str, number=True),
    Column("table", "name"),
    Column("started", "start_time", formats.moment),
    Column("by", "initiated_by"),
    Column("action", "action"),
    Column("status", "status"),
    Column("times", "repeats", number=True),
    Column("ins", "rows_inserted", number=True),
    Column("upd", "rows_updated", number=True),
    Column("del", "rows_deleted", number=True),
    Column("time", "duration_ms", formats.milliseconds, number=True),
    Column("reason", "reason", prose=True),
    Column("error", "error_message", prose=True),
)


@verb
def status(session: Session, name: OneNameArgument = None) -> None:
    """Show which process refreshes the lake by itself, the stream tables, and how stale their data is.

    Example:

      millstream status
      millstream status customer_totals --json
    """
    with session.connect() as ms, session.progress.working("reading the catalog"):
        records, daemon = list(ms.status()), ms.daemon_status()
    if name is not None:
        wanted = str(TableName.parse(name))
        records = [r for r in records if r.name == wanted]
        if not records:
            raise MillstreamError(
                Code.NOT_A_STREAM_TABLE, f"there is no stream table {wanted}", hint="`millstream status` lists them"
            )
    if records and name is None:
        session.output.line(_headline(daemon, len(records)))
    session.output.records(records, _STATUS, empty="There are no stream tables.")


def _headline(daemon: DaemonStatus, tables: int) -> str:
    counted = f"millstream {daemon.version}: {tables} stream table{'s' if tables != 1 else ''}"
    if daemon.leader is None:
        return f"{counted}; nothing refreshes them by itself (`millstream run` does)"
    paused = "paused; " if daemon.is_paused else ""
    woke = formats.moment(daemon.woke_at)
    return f"{counted}; {paused}refreshed by process {daemon.leader}, which last looked for work at {woke}"


@verb
def stats(session: Session) -> None:
    """Show totals over all refreshes of each stream table.

    Example:

      millstream stats
    """
    with session.connect() as ms, session.progress.working("reading the catalog"):
        records = ms.refresh_stats()
    session.output.records(records, _STATS, empty="There are no stream tables.")


@verb
def history(
    session: Session,
    name: OneNameArgument = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")] = 20,
) -> None:
    """Show past refreshes, newest first.

    Example:

      millstream history customer_totals --limit 5
    """
    with session.connect() as ms, session.progress.working("reading the catalog"):
        records = ms.refresh_history(name, limit=limit)
    session.output.records(records, _HISTORY, empty="There are no refreshes.")
