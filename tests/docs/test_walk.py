"""The walk of one UPDATE in docs/architecture.md, from the trigger to the served row, is the one that is taken."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest

import millstream
from kits.captured_lake import open_captured
from kits.paths import DOCS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kits.shops import Shop

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
SOURCE = Path(millstream.__file__).parent


@contextmanager
def traced() -> Iterator[dict[str, None]]:
    """The modules of millstream in which a function is called, in the order they are first entered, in every thread."""
    entered: dict[str, None] = {}

    def enter(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(str(SOURCE)):
            entered.setdefault(module_of(frame.f_code.co_filename))

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def module_of(filename: str) -> str:
    return ".".join(Path(filename).relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def written() -> list[str]:
    """The modules that the page names, in the rows of the walk's table."""
    page = (DOCS / "architecture.md").read_text()
    section = page.split("## The walk of one UPDATE\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)


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
        for amount in (100, 200):  # the first refresh of a process reads and compiles what later ones know
            lake.run(f"UPDATE orders SET amount = {amount} WHERE id = 1")
            with traced() as entered:
                assert lake.ms.refresh_stream_table("totals").action == "DIFFERENTIAL"
        with shop.connect() as connection:
            assert connection.execute("SELECT total FROM public.totals WHERE customer = 'c1'").fetchall() == [(269,)]
    walked, named = list(entered), written()
    assert len(named) == len(set(named)), "each module is one row"
    missing, extra = [m for m in walked if m not in named], [m for m in named if m not in walked]
    assert (missing, extra) == ([], []), f"{len(walked)} modules in this order:\n" + "\n".join(walked)
