"""Processes that race for a catalog, or die in the middle of writing it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from kits.paths import environment


def run(check: str, location: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kits.catalog_processes", check, location],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_processes_that_open_a_new_lake_at_once(location: str) -> None:
    run("migrate_at_once", location)


def test_processes_that_create_the_same_table_at_once(location: str) -> None:
    run("create_at_once", location)


def test_processes_that_refresh_at_once(location: str) -> None:
    run("refresh_at_once", location)


def test_a_process_killed_in_the_middle_of_any_write_leaves_nothing_of_it(location: str) -> None:
    run("kill_everywhere", location)


def test_a_table_dropped_while_it_is_refreshed(location: str) -> None:
    run("drop_while_refreshing", location)


def test_a_lake_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as lake:  # not pytest's own, which no other user may enter
        Path(lake).chmod(0o755)
        run("refuse_to_write", lake)
