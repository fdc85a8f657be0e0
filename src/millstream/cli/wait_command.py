"""`wait`: until a stream table shows what was committed."""

from typing import Annotated

import typer

from millstream.cli import formats
from millstream.cli.definitions import NameArgument
from millstream.cli.session import Session, verb


@verb
def wait(
    session: Session,
    name: NameArgument,
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="An LSN, or the id of a transaction or a version; NAME=... says of which database or table. "
            "May be repeated; by default all that is committed now."
        ),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="At most this long: 10s, 5m, ...; by default no limit.")] = None,
) -> None:
    """Wait until a stream table shows what was committed.

    While `millstream run` keeps the table fresh, this waits for its next refresh; otherwise it refreshes the table.

    Example:

      millstream wait totals --timeout 10s
      millstream wait totals --after shop=0/16B3748
      millstream wait totals --after shop=1234 --after orders=7 --json
    """
    from millstream.scheduler.schedule import length_of_time  # only now: it would slow the start of every command

    seconds = None if timeout is None else length_of_time(timeout)
    with session.connect() as ms, session.progress.working(f"waiting for {name}"):
        found = ms.wait_for(name, _points(after or []), timeout=seconds)
    sentence = f"{found.name} shows it, after {formats.milliseconds(found.waited_ms)}"
    session.output.done(sentence, {"waited_for": found})


def _points(given: list[str]) -> str | int | dict[str, str | int] | None:
    named = {name: _value(value) for name, sign, value in (text.partition("=") for text in given) if sign}
    if len(named) == len(given):
        return named or None
    if len(given) > 1:
        raise typer.BadParameter("several --after must be of the form NAME=POINT")
    return _value(given[0])


def _value(text: str) -> str | int:
    return int(text) if text.isdigit() else text
