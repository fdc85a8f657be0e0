"""A compiled query as the catalog records it: enough to compile it again over its sources as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millstream.catalog.json_keys import refuse_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource:
    """A source as it was when a query was compiled.

    Args:
        columns: the name and type of each column.
        obstacle: why its changes cannot be read.
        table_id: the id of the Delta table; None for a stream table and for a table that is not a Delta table.
    """

    columns: tuple[tuple[str, str], ...]
    obstacle: str | None = None
    table_id: str | None = None

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A source from its JSON."""
        refuse_unknown("a source", data, ("columns", "obstacle", "table_id"))
        columns = tuple((name, type_) for name, type_ in data["columns"])
        return cls(columns=columns, obstacle=data["obstacle"], table_id=data.get("table_id"))

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        data = {"columns": [list(column) for column in self.columns], "obstacle": self.obstacle}
        return data if self.table_id is None else {**data, "table_id": self.table_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The Spark query that a query in another dialect was translated to, and the warnings for the user."""

    text: str
    notices: tuple[str, ...] = ()

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A translation from its JSON."""
        refuse_unknown("a translation", data, ("text", "notices"))
        return cls(text=data["text"], notices=tuple(data["notices"]))

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        return {"text": self.text, "notices": list(self.notices)}


_KEYS = (
    "stamp", "outputs", "hides_rows", "fingerprint", "is_faithful", "sources", "views", "functions", "names", "reasons",
    "translation",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionBody:
    """A compiled query.

    Args:
        stamp: differs between any two definitions.
        outputs: the stored column for each column that users see, in their order.
        hides_rows: whether the public stage stores rows that users do not see.
        fingerprint: the fingerprint of the stages; another version of millstream may compile to different ones.
        is_faithful: whether our printed SQL means what the user wrote; None if they were not compared.
        sources: the sources, by id.
        views: the texts of views, by name.
        functions: the texts of functions, by name.
        names: the source or view that each name in the texts refers to.
        reasons: why the query can only be recomputed, if so.
        translation: the translation of a query in a dialect other than Spark's.
    """

    stamp: str
    outputs: tuple[str, ...]
    hides_rows: bool
    fingerprint: str
    is_faithful: bool | None
    sources: Mapping[str, RecordedSource]
    views: Mapping[str, str]
    functions: Mapping[str, str]
    names: Mapping[tuple[str, ...], str]
    reasons: tuple[str, ...]
    translation: Translation | None = None

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A body from its JSON."""
        refuse_unknown("a definition", data, _KEYS)
        translation = data.get("translation")
        return cls(
            stamp=data["stamp"],
            outputs=tuple(data["outputs"]),
            hides_rows=data["hides_rows"],
            fingerprint=data["fingerprint"],
            is_faithful=data["is_faithful"],
            sources={name: RecordedSource.load(source) for name, source in data["sources"].items()},
            views=dict(data["views"]),
            functions=dict(data["functions"]),
            names={tuple(parts): name for parts, name in data["names"]},
            reasons=tuple(data["reasons"]),
            translation=None if translation is None else Translation.load(translation),
        )

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        data = {
            "stamp": self.stamp,
            "outputs": list(self.outputs),
            "hides_rows": self.hides_rows,
            "fingerprint": self.fingerprint,
            "is_faithful": self.is_faithful,
            "sources": {name: source.dump() for name, source in self.sources.items()},
            "views": dict(self.views),
            "functions": dict(self.functions),
            "names": [[list(parts), name] for parts, name in self.names.items()],
            "reasons": list(self.reasons),
        }
        return data if self.translation is None else {**data, "translation": self.translation.dump()}
