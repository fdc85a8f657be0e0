"""Golden files: inputs with their expected outputs.

A file holds cases separated by blank lines: lines `# title: ...` and other headers, the input, a line `----`, and the
output. If the environment variable MILLSTREAM_UPDATE_FIXTURES is set, the outputs are written instead of compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

UPDATE = "MILLSTREAM_UPDATE_FIXTURES"
_LINE = "----"


@dataclass(frozen=True)
class Case:
    """One input with its headers and its expected output."""

    text: str
    expected: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What the case shows."""
        return self.headers.get("title", self.text)


def read_cases(path: Path) -> list[Case]:
    """The cases of a file."""
    return [_case(block) for block in path.read_text().strip().split("\n\n")]


def assert_golden(path: Path, compute: Callable[[Case], str]) -> None:
    """Assert that every case of the file has its expected output."""
    cases = read_cases(path)
    outputs = [compute(case).strip() for case in cases]
    if os.environ.get(UPDATE):
        path.write_text("\n\n".join(_block(c, o) for c, o in zip(cases, outputs, strict=True)) + "\n")
        return
    for case, output in zip(cases, outputs, strict=True):
        assert output == case.expected, f"{path.name}: {case.title}\n--- expected\n{case.expected}\n--- got\n{output}"


def _case(block: str) -> Case:
    given, _, expected = block.partition(f"\n{_LINE}\n")
    lines = given.split("\n")
    headers = dict(line[1:].strip().split(": ", 1) for line in lines if line.startswith("#"))
    return Case(
        "\n".join(line for line in lines if not line.startswith("#")).removesuffix(f"\n{_LINE}"), expected, headers
    )


def _block(case: Case, output: str) -> str:
    def parts() -> Iterator[str]:
        yield from (f"# {name}: {value}" for name, value in case.headers.items())
        yield from (case.text, _LINE, output)

    return "\n".join(parts())
