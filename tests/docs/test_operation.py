"""The page on running it names every alert and only codes that exist, and its snippets run."""

from __future__ import annotations

import os
import re
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

import millstream
from kits.pages import ROOT, Block, LakeSql, Reader, blocks_of
from millstream.engine import jars
from millstream.engine.session_settings import LOG_ENVIRONMENT
from millstream.engine.storage import ChangeSet, DeltaStore, Txn
from millstream.errors import Code
from millstream.reasons import Reason
from millstream.results import Action, MaintenanceKind, Status
from millstream.settings import Settings
from millstream.sources.postgres.server import health

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "operation.md"
TEXT = PAGE.read_text()


def test_every_alert_is_there() -> None:
    alerts = [value for name, value in vars(health).items() if name.isupper() and value.islower()]
    assert len(alerts) == 9
    for alert in alerts:
        assert f"| `{alert}` |" in TEXT, alert


def test_codes_that_are_named_exist() -> None:
    words = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", TEXT))
    assert len(words) > 25
    known = {*Code, *Reason, *Status, *MaintenanceKind, "NO_DATA", "JAVA_HOME", jars.ENVIRONMENT, LOG_ENVIRONMENT}
    assert words - known == set()


def test_the_settings_that_are_shown_are_accepted() -> None:
    shown = [block for block in blocks_of(PAGE) if block.language == "toml"]
    assert shown
    for block in shown:
        assert Settings.of(tomllib.loads(block.text)["millstream"])


def test_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyspark==4.2.0", f"delta-spark=={jars.DELTA_VERSION}"} <= set(project["dependencies"])
    assert f"pyspark 4.2.0 and delta-spark {jars.DELTA_VERSION}" in TEXT
    assert f"| Java | {jars.JAVA_MINIMUM} or newer" in TEXT
    assert project["requires-python"] == ">=3.11"


@pytest.mark.parametrize("page", ["reference.md", "operation.md"])
def test_anchors_lead_somewhere(page: str) -> None:
    here = ROOT / "docs" / page
    found = re.findall(r"\]\(([^)#]*)#([^)]+)\)", here.read_text())
    assert found
    for name, anchor in found:
        target = (here.parent / name) if name else here
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{name}#{anchor}"


def test_a_full_vacuum_of_delta_rs_deletes_what_is_in_use(tmp_path: Path) -> None:
    """When this fails, the page need not warn of it any more."""
    path, store = str(tmp_path / "t"), DeltaStore(None, Settings())  # type: ignore[arg-type]
    store.create(path, StructType([StructField("k", LongType())]), stats_columns=["k"])
    store.append(path, pa.table({"k": range(100)}), Txn("a", 1), {})
    found = store.look_up(path, 1, {"k": pa.array([5])})
    assert found is not None
    store.apply(path, ChangeSet(removed=found, added=None, expected_version=1), Txn("a", 2), {})
    [vector] = (tmp_path / "t").glob("deletion_vector_*.bin")
    past = time.time() - 40 * 86_400
    os.utime(vector, (past, past))
    month = 30 * 24
    assert vector.name in DeltaTable(path).vacuum(retention_hours=month, dry_run=True, full=True)
    assert DeltaTable(path).vacuum(retention_hours=month, dry_run=True) == []


class AfterAMonth(Reader):
    """Somebody who comes to the page's maintenance when all files of stream tables are old, one with a dead row."""

    def _run(self, block: Block, where: str) -> str:
        if "ms.maintain" in block.text:
            lake = cast("millstream.Millstream", self.namespace["ms"])
            lake.sql("INSERT INTO orders VALUES (4, 2, 1)")
            assert lake.refresh_stream_table("totals").rows_updated == 1
            past = time.time() - 40 * 86_400
            for file in Path("lake/stream_tables").glob("*/*/**/*.*"):
                os.utime(file, (past, past))
            assert stored("_change_data/*")
        return super()._run(block, where)


def stored(files: str) -> list[Path]:
    return list(Path("lake/stream_tables").glob(f"*/result/{files}"))


@pytest.mark.spark
def test_the_page_runs_as_written(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = AfterAMonth(PAGE)
    reader.psql = LakeSql(reader.namespace)
    count = reader.read()
    assert (count["python"], count["sql"], count["text"]) == (5, 1, 2)
    # maintenance deleted what is old, and nothing that is in use
    assert not stored("_change_data/*")
    assert stored("deletion_vector_*.bin")
    with millstream.connect("lake") as lake:
        lake.sql("INSERT INTO orders VALUES (5, 1, 1)")
        assert lake.refresh_stream_table("totals").action is Action.DIFFERENTIAL
        assert lake.verify("totals").ok
