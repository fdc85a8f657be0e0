"""The walk of one UPDATE in docs/architecture.md, from the trigger to the served row, is the one that is taken."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millstream
from kits.captured_lake import open_captured
from kits.paths import DOCS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kits.shops import Shop

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
SOURCE = Path(millstream.__file__).parent


@dataclass
class Walk:
    """The modules that a refresh entered, in this order, and those in which the changed row was at hand."""

    entered: dict[str, None] = field(default_factory=dict)
    with_row: set[str] = field(default_factory=set)


@contextmanager
def traced(marker: str) -> Iterator[Walk]:
    """Which modules of millstream are entered, in every thread.

    Args:
        marker: a text of the changed row: where an argument or a result contains it, the row is at hand.
    """
    walk = Walk()

    def enter(frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        if (
            event not in ("call", "return")
            or code.co_name == "<module>"
            or not code.co_filename.startswith(str(SOURCE))
        ):
            return
        module = module_of(code.co_filename)
        walk.entered.setdefault(module)
        if module not in walk.with_row and (holds(result, marker) or any(holds(v, marker) for v in given(frame))):
            walk.with_row.add(module)

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def given(frame: FrameType) -> list[object]:
    """The arguments of a call; `self` is how a part holds its tools, not what it is given."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals[name] for name in names if name != "self" and name in frame.f_locals]


def holds(value: object, marker: str, depth: int = 3) -> bool:
    """Whether a value is, or contains, the changed row."""
    match value:
        case str():
            return marker in value
        case bytes() | bytearray():
            return marker.encode() in value
        case pa.Table() | pa.RecordBatch():
            return any(holds(column, marker) for column in value.columns)
        case pa.Array() | pa.ChunkedArray():
            is_text = pa.types.is_string(value.type) or pa.types.is_large_string(value.type)
            return is_text and len(value) < 1000 and marker in value.to_pylist()
        case list() | tuple() | dict():
            inside = list(value.values()) if isinstance(value, dict) else list(value)
            return depth > 0 and len(inside) < 100 and any(holds(v, marker, depth - 1) for v in inside)
    if depth > 0 and is_dataclass(value) and not isinstance(value, type):
        return any(holds(getattr(value, f.name, None), marker, depth - 1) for f in fields(value))
    return False


def module_of(filename: str) -> str:
    return ".".join(Path(filename).relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def written() -> dict[str, bool]:
    """The modules in the rows of the page's table, and whether the row is said to be at hand there."""
    page = (DOCS / "architecture.md").read_text()
    section = page.split("## The walk of one UPDATE\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| (●?) ?\|$", section, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "each module is one row"
    return {module: bool(mark) for module, mark in rows}


def write_down(walked: dict[str, bool]) -> None:
    """Put the walk into the page, each module with the first sentence of its docstring."""
    page = (DOCS / "architecture.md").read_text()
    head, rest = page.split("## The walk of one UPDATE\n")
    section, rest = rest.split("\n## ", 1)
    intro = section.split("\n| module |")[0]
    lines = ["| module | what it holds | the row |", "|---|---|---|"]
    for module, is_marked in walked.items():
        found = importlib.import_module(f"millstream.{module}").__doc__ or ""
        lines.append(f"| `{module}` | {found.strip().splitlines()[0]} | {'● ' if is_marked else ''}|")
    (DOCS / "architecture.md").write_text(
        f"{head}## The walk of one UPDATE\n{intro}\n" + "\n".join(lines) + f"\n\n## {rest}"
    )


def test_the_walk_is_written_down(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    with open_captured(tmp_path / "lake", shop) as lake:
        lake.run(
            "GRANT CREATE ON SCHEMA public TO millstream",
            "CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10, 2))",
            "INSERT INTO orders SELECT n, 'c' || n % 3, n FROM generate_series(1, 20) n",
        )
        lake.ms.create_stream_table(
            "totals",
            "SELECT customer, SUM(amount) AS total FROM shop.public.orders GROUP BY customer",
            refresh_mode="DIFFERENTIAL STRICT",
            serve_to="shop.public.totals",
        )
        lake.run("UPDATE orders SET customer = 'walker' WHERE id = 1")
        lake.ms.refresh_stream_table("totals")
        for amount in (100, 200):  # the first refresh of a process reads and compiles what later ones know
            lake.run(f"UPDATE orders SET amount = {amount} WHERE id = 1")
            with traced("walker") as walk:
                assert lake.ms.refresh_stream_table("totals").action == "DIFFERENTIAL"
        with shop.connect() as connection:
            assert connection.execute("SELECT total FROM public.totals WHERE customer = 'walker'").fetchall() == [
                (200,)
            ]
    named, walked = written(), {module: module in walk.with_row for module in walk.entered}
    if os.environ.get("MILLSTREAM_UPDATE_FIXTURES"):
        write_down(walked)
        return
    shown = "\n".join(f"{module} {'●' if is_marked else ''}" for module, is_marked in walked.items())
    assert named == walked, f"{len(walked)} modules, {len(walk.with_row)} of them with the row:\n{shown}"
