"""An error about some tables of a database, which does not hold up the others."""

from __future__ import annotations

from collections.abc import Collection

from millstream.errors import Code, MillstreamError


class TableError(MillstreamError):
    """An error that names the tables it is about.

    Args:
        tables: their qualified names.
    """

    def __init__(self, code: Code, message: str, tables: Collection[str], *, hint: str | None = None) -> None:
        super().__init__(code, message, hint=hint)
        self.tables = frozenset(tables)

    @classmethod
    def about(cls, table: str, error: MillstreamError) -> TableError:
        """The same error, about one table."""
        return cls(error.code, error.message, [table], hint=error.hint)
