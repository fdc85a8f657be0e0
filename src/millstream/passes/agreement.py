"""Which versions of the base tables each stream table of a pass is brought to, so that all it reads agrees. Pure.

A pass takes one frontier. But a stream table may read another one that the pass does not refresh, e.g. one on cron.
That one stays at its own, older frontier, and so must everything that is joined with it. Where two such inputs stand
for different versions of one base table, no frontier fits both: the one that lags has to join the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Versions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reads:
    """What a stream table of a pass reads directly."""

    base: frozenset[str] = frozenset()
    upstream: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Agreement:
    """The versions of base tables behind each stream table of a pass.

    Args:
        versions: by stream table, for every base table that it reads, directly or not.
        held_back: by stream table whose inputs cannot agree, the tables outside the pass that have to join it.
    """

    versions: Mapping[str, Versions]
    held_back: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def lagging(self) -> frozenset[str]:
        """The stream tables outside the pass that have to join it."""
        return frozenset[str]().union(*self.held_back.values())


def agree(
    order: Sequence[str], reads: Mapping[str, Reads], outside: Mapping[str, Versions], newest: Versions
) -> Agreement:
    """Give each stream table the newest versions at which everything that it reads agrees.

    Args:
        order: the stream tables of the pass, what is read before what reads it.
        outside: the frontiers of the stream tables that they read and the pass does not refresh.
        newest: the frontier of the pass.

    >>> reads = {"joined": Reads(frozenset({"t"}), frozenset({"nightly"}))}
    >>> agree(["joined"], reads, {"nightly": {"t": 5}}, {"t": 9}).versions["joined"]
    {'t': 5}
    """
    settled: dict[str, Versions] = {}
    behind: dict[str, frozenset[str]] = {name: frozenset({name}) for name in outside}
    held_back: dict[str, frozenset[str]] = {}
    for name in order:
        upstream = sorted(reads[name].upstream)
        behind[name] = frozenset().union(*(behind[source] for source in upstream))
        fixed: dict[str, int] = {}
        for source in upstream:
            for base, version in (settled.get(source) or outside.get(source, {})).items():
                if fixed.setdefault(base, version) != version:
                    # refreshing one more of them than needed is never wrong
                    others = frozenset(other for other in behind[name] if base in outside[other])
                    held_back[name] = held_back.get(name, frozenset()) | others
        own = {base: newest[base] for base in reads[name].base if base not in fixed}
        settled[name] = {**fixed, **own}
    return Agreement(settled, held_back)
