"""The optional driver is loaded through one door, and only when a database is reached."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.paths import ROOT
from millstream.errors import Code, MillstreamError
from millstream.postgres.driver import psycopg, sql

SOURCE = ROOT / "src" / "millstream"
DOOR = SOURCE / "postgres" / "driver.py"
# Programs around millstream, which say themselves what they need.
RIM = ("demo", "bench", "testing")

BLOCKED = "import sys; sys.modules['psycopg'] = None\n"
IMPORT_ALL = f"""
import importlib, pkgutil, millstream
for module in pkgutil.walk_packages(millstream.__path__, "millstream."):
    if module.name.split(".")[1] not in {RIM} and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
USE_A_LAKE = """
import millstream
with millstream.connect({lake!r}) as ms:
    assert ms.status() == [] and ms.sources() == [] and ms.slot_health() == [] and ms.check_cdc_health() == []
    try:
        ms.attach("shop", "postgresql://localhost/shop")
    except millstream.MillstreamError as error:
        print(error.code, error.hint)
"""


def run(program: str) -> str:
    """What a program prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_module_can_be_imported_without_the_driver() -> None:
    assert run(BLOCKED + IMPORT_ALL) == ""


def test_importing_every_module_does_not_load_the_driver() -> None:
    assert run(IMPORT_ALL + "import sys; print('psycopg' in sys.modules)") == "False"


def test_a_lake_without_databases_needs_no_driver(tmp_path: Path) -> None:
    printed = run(BLOCKED + USE_A_LAKE.format(lake=str(tmp_path)))
    assert printed == f"{Code.DEPENDENCY_MISSING} pip install 'millstream[postgres]'"


def test_a_missing_driver_is_a_coded_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MillstreamError) as raised:
        _ = psycopg.Error
    assert raised.value.code is Code.DEPENDENCY_MISSING


def test_what_the_door_gives_is_the_driver() -> None:
    import psycopg as driver

    assert psycopg.Error is driver.Error
    assert sql.SQL is driver.sql.SQL


def test_only_the_door_imports_the_driver() -> None:
    sources = [p for p in SOURCE.rglob("*.py") if p.relative_to(SOURCE).parts[0] not in RIM]
    assert [p for p in sources if "psycopg" in imported(p)] == [DOOR]


def imported(path: Path) -> set[str]:
    """The packages that a file imports, wherever in it."""

    def packages() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                yield node.module

    return {name.split(".")[0] for name in packages()}
