"""Paths in the catalog: those inside the lake are recorded relative to its root, so that a lake can be moved.

`Catalog` stores and resolves every path here, so that all other code sees only absolute paths. A path outside the lake,
or a URL of another file system, is recorded unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.catalog.attached import Capture
from millstream.catalog.models import Definition, Dependency, LakeObject, SourceKind, Stage, StreamTable

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HERE = "./"


@dataclass(frozen=True, slots=True)
class LakePaths:
    """Stores and resolves the paths of one lake; without a root they stay unchanged."""

    root: Path | None

    def stored(self, path: str) -> str:
        """A path as it is recorded.

        >>> LakePaths(Path("/data/lake")).stored("/data/lake/tables/orders")
        'tables/orders'
        >>> LakePaths(Path("/data/lake")).stored("/data/lakes/orders")
        '/data/lakes/orders'
        """
        if self.root is None or not path.startswith(f"{self.root}/"):
            return path
        relative = path.removeprefix(f"{self.root}/")
        return f"{_HERE}{relative}" if _HAS_SCHEME.match(relative) else relative

    def resolved(self, path: str) -> str:
        """A recorded path as an absolute one.

        >>> LakePaths(Path("/data/lake")).resolved("tables/orders")
        '/data/lake/tables/orders'
        """
        if self.root is None or not path or path.startswith("/") or _HAS_SCHEME.match(path):
            return path
        return f"{self.root}/{path.removeprefix(_HERE)}"

    def store_stages(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """Stages as they are recorded."""
        return tuple(replace(stage, path=self.stored(stage.path)) for stage in stages)

    def store_definition(self, definition: Definition) -> Definition:
        """A definition as it is recorded."""
        dependencies = tuple(_at(d, self.stored(d.source_id)) for d in definition.dependencies)
        return replace(definition, dependencies=dependencies)

    def resolve_table(self, table: StreamTable) -> StreamTable:
        """A stream table with absolute paths."""
        definition = table.definition
        dependencies = tuple(_at(d, self.resolved(d.source_id)) for d in definition.dependencies)
        return replace(
            table,
            definition=replace(definition, dependencies=dependencies),
            stages=tuple(replace(stage, path=self.resolved(stage.path)) for stage in table.stages),
        )

    def store_object(self, item: LakeObject) -> LakeObject:
        """A table, view or function as it is recorded."""
        details = item.details
        if details.landing is not None:
            details = replace(details, landing=self.stored(details.landing))
        location = None if item.location is None else self.stored(item.location)
        return replace(item, location=location, details=details)

    def resolve_object(self, item: LakeObject) -> LakeObject:
        """A table, view or function with absolute paths."""
        details = item.details
        if details.landing is not None:
            details = replace(details, landing=self.resolved(details.landing))
        location = None if item.location is None else self.resolved(item.location)
        return replace(item, location=location, details=details)

    def store_capture(self, capture: Capture) -> Capture:
        """A captured table as it is recorded."""
        return replace(capture, path=self.stored(capture.path))

    def resolve_capture(self, capture: Capture) -> Capture:
        """A captured table with the absolute path of its mirror."""
        return replace(capture, path=self.resolved(capture.path))


def _at(dependency: Dependency, place: str) -> Dependency:
    """A dependency on a table, with another path; the ids of other dependencies are not paths."""
    return replace(dependency, source_id=place) if dependency.kind is SourceKind.TABLE else dependency
