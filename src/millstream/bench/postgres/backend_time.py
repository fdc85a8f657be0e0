"""The CPU time of a server process, which other load on the machine does not affect."""

from __future__ import annotations

import os
from pathlib import Path

_NANOSECONDS = 1e-9
_USER_TICKS, _SYSTEM_TICKS = 11, 12  # counted after the program's name, which may contain spaces


def cpu_seconds(pid: int) -> float:
    """From the scheduler's own count, or from clock ticks if the kernel has only those."""
    try:
        on_cpu = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except FileNotFoundError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")
    return on_cpu * _NANOSECONDS
