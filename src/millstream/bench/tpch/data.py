"""TPC-H's tables: made by `tpcgen-cli`, loaded into a lake."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.service import Millstream

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
ORIGINAL = "generated"
"""The schema in which the generated rows stay readable while the tables change."""


def generate(directory: Path, scale: float) -> None:
    """Write the tables to a directory, as one Parquet file each; the same at every run.

    Raises:
        MillstreamError: DEPENDENCY_MISSING if the generator is not installed.
    """
    beside = Path(sys.executable).with_name("tpcgen-cli")
    program = str(beside) if beside.exists() else shutil.which("tpcgen-cli")
    if program is None:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING,
            "tpcgen-cli, which generates TPC-H's data, is not installed",
            hint="pip install tpcgen-cli",
        )
    command = [program, "tpch", "parquet", "--scale-factor", str(scale), "--output-dir", str(directory), "--quiet"]
    subprocess.run(command, check=True)


def load(ms: Millstream, directory: Path) -> None:
    """Create the tables in a lake, each with a change data feed, and the views of the generated rows."""
    ms.sql(f"CREATE SCHEMA {ORIGINAL}")
    for name in TABLES:
        file = directory / f"{name}.parquet"
        ms.sql(f"CREATE VIEW {ORIGINAL}.{name} AS SELECT * FROM parquet.`{file}`")
        ms.sql(
            f"CREATE TABLE {name} USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') "
            f"AS SELECT * FROM {ORIGINAL}.{name}"
        )
