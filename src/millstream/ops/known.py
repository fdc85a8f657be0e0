"""Facts about a relation that hold for any contents: a key, and columns that are never NULL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """`key`: columns in which no two rows agree (NULLs are equal), or None; `not_null`: columns without NULL."""

    key: frozenset[str] | None = None
    not_null: frozenset[str] = frozenset()

    def renamed(self, names: Mapping[str, str]) -> Known:
        """The facts that remain if a relation keeps only some columns, under other names."""
        key = frozenset(names[k] for k in self.key) if self.key is not None and self.key <= names.keys() else None
        return Known(key, frozenset(names[n] for n in self.not_null if n in names))

    @classmethod
    def joined(cls, inputs: Iterable[Known]) -> Known:
        """The facts about pairs of rows, one of each input."""
        facts = list(inputs)
        keys = [k for i in facts if (k := i.key) is not None]
        key = frozenset[str]().union(*keys) if len(keys) == len(facts) else None
        return cls(key, frozenset[str]().union(*(i.not_null for i in facts)))
