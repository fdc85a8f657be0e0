"""The CPU time that processes have used, from Linux's /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU time of this process, and of the JVM that it has started."""

    python: float
    jvm: float

    def since(self, before: CpuSeconds) -> CpuSeconds:
        """What was used since an earlier moment."""
        return CpuSeconds(self.python - before.python, self.jvm - before.jvm)


def cpu_seconds() -> CpuSeconds:
    """The time used until now."""
    own = os.getpid()
    return CpuSeconds(_of(own), sum(_of(pid) for pid in _descendants(own) if _name(pid) == "java"))


def _of(pid: int) -> float:
    return sum(int(value) for value in _fields(pid)[11:13]) / _TICKS


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _fields(pid: int) -> list[str]:
    """The fields after the name, which may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = (task / "children").read_text().split()
        for child in map(int, children):
            found += [child, *_descendants(child)]
    return found
