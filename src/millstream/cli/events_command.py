"""`events`: what happened in a lake, and what happens from now on."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from millstream.cli import formats
from millstream.cli.session import Session, verb
from millstream.errors import Code, MillstreamError
from millstream.events import Event

POLL_SECONDS = 0.5
_PAGE = 1_000


@verb
def events(
    session: Session,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")] = False,
    since: Annotated[str | None, typer.Option(help="Only events of the last 30m, 1h, 2d, ...")] = None,
    event: Annotated[list[str] | None, typer.Option(help="Only events of this name; may be repeated.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many past ones, the last at the end.")] = 20,
) -> None:
    """Show what happened: refreshes, failures, stale tables, capture, leaders. With --json, one object per line.

    Example:

      millstream events --since 1h --event refresh_failed
      millstream events --follow --json
    """
    names = tuple(event or ())
    start = None if since is None else datetime.now(UTC) - _length(since)
    with session.connect() as ms:
        with session.progress.working("reading the catalog"):
            newest = ms.events(limit=1)
            found = ms.events(since=start, names=names, limit=limit)
        _show(session, found)
        if not follow:
            if not found:
                session.output.note("There are no events.")
            return
        last = max((e.event_id or 0 for e in (*newest, *found)), default=0)
        try:
            while True:
                found = ms.events(after_id=last, names=names, limit=_PAGE)
                _show(session, found)
                last = max((e.event_id or 0 for e in found), default=last)
                if not found:
                    time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            return  # the expected end


def _show(session: Session, found: Sequence[Event]) -> None:
    for item in found:
        line = f"{formats.moment(item.time)}  {item.severity:<7}  {item.text}"
        session.output.entry(line, item.dump())


def _length(text: str) -> timedelta:
    from millstream.scheduler.schedule import Schedule  # only now: it would slow the start of every command

    try:
        seconds = Schedule.parse(text).seconds
    except MillstreamError:
        seconds = None
    if seconds is None:
        hint = "write a length of time, e.g. --since 30m, 1h30m or 2d"
        raise MillstreamError(Code.SETTING_INVALID, f"--since {text!r} is not a length of time", hint=hint)
    return timedelta(seconds=seconds)
