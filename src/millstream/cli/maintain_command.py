"""`maintain`: keep the storage of a lake small."""

from typing import Annotated

import typer

from millstream.cli import formats
from millstream.cli.output import Column
from millstream.cli.session import Session, verb

_COLUMNS = (
    Column("what", "kind"),
    Column("of", "name"),
    Column("files", "files_before", number=True),
    Column("after", "files_after", number=True),
    Column("bytes", "bytes_before", formats.size, number=True),
    Column("after", "bytes_after", formats.size, number=True),
    Column("time", "duration_ms", formats.milliseconds, number=True),
    Column("skipped because", "skipped", prose=True),
)


@verb
def maintain(
    session: Session,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done first.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Begin nothing new after this time.")
    ] = None,
) -> None:
    """Compact stored tables, delete files that nobody needs any more, prune the history.

    Your own tables are never touched, and no refresh has to wait.

    Example:

      millstream maintain --dry-run
      millstream maintain --seconds 60 --json
    """
    with session.connect() as ms, session.progress.working("maintaining the lake"):
        results = ms.maintain(seconds=seconds, dry_run=dry_run)
    session.output.records(results, _COLUMNS, empty="There is nothing to do.")
