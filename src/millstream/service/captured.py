"""The captured tables of a lake, behind a door that needs psycopg only when somebody goes through it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.refresh.locks import LockManager
from millstream.refresh.unread import forgotten
from millstream.service.notices import CaptureWarning, NoticeWarning, tell
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.refresh.capture import Captures
    from millstream.refresh.capture.cut import Cut


class CapturedTables:
    """What definitions and refreshes ask about attached databases."""

    def __init__(
        self,
        root: Path,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        settings: Settings,
        clock: Callable[[], datetime],
        progress: Callable[[str], None],
    ) -> None:
        self._arguments = (root, catalog, workers, locks, settings, clock, progress)
        self._made: Captures | None = None
        self._making = threading.Lock()

    def advance(
        self,
        names: Collection[str],
        named_views: Collection[str] = (),
        at_cut: Callable[[Cut], None] | None = None,
    ) -> Mapping[str, int]:
        """Bring the databases of some tables or views to now; gives the versions of the tables, by name."""
        return self._captures.advance(names, named_views, at_cut)

    @contextmanager
    def beginning(self, used: Mapping[str, Sequence[str]]) -> Iterator[None]:
        """Capture the columns a query uses of tables of attached databases, while it is being recorded."""
        attached = {name: columns for name, columns in used.items() if _database(name) is not None}
        said: list[str] = []
        with self._captures.beginning(attached) if attached else nullcontext(said) as said:
            for sentence in said:
                tell(sentence, CaptureWarning)
            yield

    def end_unread(self, names: Collection[str]) -> None:
        """End the capture of what nobody reads any more, in the databases of some names."""
        databases = {d for name in names if (d := _database(name)) is not None}
        if not databases:
            return
        try:
            self._captures.end_unread(databases)
        except MillstreamError as error:
            if error.code not in (Code.DATABASE_UNREACHABLE, Code.LOCK_TIMEOUT):
                raise
            tell(
                f"capture could not be ended in {', '.join(databases)} and will be later: {error.message}",
                NoticeWarning,
            )

    def end_forgotten(self) -> None:
        """End what should have been ended before, in whichever database; those out of reach are left for later."""
        if forgotten(self._arguments[1]):
            self._captures.end_forgotten()

    def close(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.close()

    @property
    def _captures(self) -> Captures:
        with self._making:
            if self._made is None:
                from millstream.refresh.capture import Captures

                self._made = Captures(*self._arguments, warn=lambda text: tell(text, CaptureWarning))
            return self._made


def _database(name: str) -> str | None:
    return TableName.parse(name).database
