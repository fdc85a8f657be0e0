"""The changes of one captured table between two positions, in the form that both capture modes produce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of a table, as a Z-set.

    Args:
        rows: the captured columns and `naming.WEIGHT`; a row may occur several times, and its weights may cancel.
        truncated: the table was emptied: the mirror loses all its rows, and `rows` is what came after.
        must_reread: a part of the table was emptied or detached, and only the table itself shows what remains: it
            has to be read again, and `rows` is empty.
    """

    rows: pa.Table
    truncated: bool = False
    must_reread: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rows.num_rows or self.truncated or self.must_reread)
