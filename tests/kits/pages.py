"""Pages of the documentation as programs: every block is run, and what a page shows must be what was printed.

`sql` goes to a psql that stays open, or to the lake of a page that is about that; `python` to one program, `console`
lines that call millstream to its command line; a `text` block after one of them must be its whole output.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import uuid
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast

from millstream.cli.main import main
from millstream.sql.statements import split_statements
from millstream.testing.postgres_server import Server

if TYPE_CHECKING:
    from millstream import Millstream

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
SHOWN = {"", "json", "toml"}
"""Languages of blocks that nobody types: forms, and what tests of their own look at."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in its order."""
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in found]


class Typed(Protocol):
    """Where a reader types SQL."""

    def run(self, text: str) -> str:
        """What is printed for it."""


@dataclass(frozen=True)
class LakeSql:
    """`ms.sql` of the lake that a page has opened as `ms`; it prints nothing."""

    namespace: dict[str, object]

    def run(self, text: str) -> str:
        """Run the statements one by one."""
        lake = cast("Millstream", self.namespace["ms"])
        for statement in split_statements(text):
            lake.sql(statement.text).collect()
        return ""


class Psql:
    """A psql of an administrator, in which a reader types what a page shows."""

    def __init__(self, server: Server, database: str) -> None:
        program = server.binaries / "psql"
        self._process = subprocess.Popen(
            [str(program), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "pager=off", server.url(database)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def run(self, text: str) -> str:
        """What psql prints for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = f"-- {uuid.uuid4()}"
        self._process.stdin.write(f"{text}\n\\echo '{end}'\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.rstrip("\n") == end:
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"psql ended: {''.join(printed)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@dataclass
class Reader:
    """Somebody who types every block of a page."""

    page: Path
    psql: Typed | None = None
    namespace: dict[str, object] = field(default_factory=dict)

    def read(self) -> dict[str, int]:
        """Run the page; gives how many blocks of each language it has."""
        printed, count = "", dict.fromkeys(("sql", "python", "console", "text"), 0)
        for block in blocks_of(self.page):
            if block.language in SHOWN:
                continue
            count[block.language] += 1
            where = f"{self.page.name}:{block.line}"
            if block.language == "text":
                assert _trimmed(printed) == _trimmed(block.text), f"{where} shows other than:\n{printed}"
            else:
                printed = self._run(block, where)
        return count

    def _run(self, block: Block, where: str) -> str:
        if block.language == "sql":
            assert self.psql is not None
            return self.psql.run(block.text)
        with redirect_stdout(io.StringIO()) as printed:
            if block.language == "python":
                exec(compile("\n" * (block.line - 1) + block.text, str(self.page), "exec"), self.namespace)
            else:
                for arguments in commands(block):
                    assert main(arguments) == 0, f"{where}: {arguments}"
        return printed.getvalue()


def commands(block: Block) -> list[list[str]]:
    """The arguments of the calls of millstream in a block; what else a reader's shell does is not ours."""
    lines = [line.removeprefix("$ ") for line in block.text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("millstream ")]


def _trimmed(text: str) -> list[str]:
    """Lines without blanks at their ends, nor empty ones around them: editors do not keep either."""
    return [line.rstrip() for line in text.strip("\n").splitlines() if line.strip()]
