"""The command line as a client of a lake's running process: a real lake, and commands in processes of their own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.daemon import running, until
from kits.lake import Lake, open_lake
from kits.paths import environment
from millstream import Code, MillstreamError, __version__
from millstream.cli import formats
from millstream.remote.address import address_of
from millstream.remote.client import AloneError, RemoteLake, dial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SLOW = ("pyspark", "sqlalchemy", "pandas", "pyarrow", "sqlglot", "deltalake", "importlib.metadata", "logging")
CLIENT = f"""
import sys
from millstream.cli.entry import main
code = main(sys.argv[1:])
print([m for m in {SLOW!r} if m in sys.modules], file=sys.stderr)
sys.exit(code)
"""
VALUES = """
SELECT 1 AS i, 1.50BD AS d, CAST('nan' AS DOUBLE) AS f, 'x' AS s, X'00FF' AS b, TRUE AS t, NULL AS n,
       DATE'2024-02-29' AS day, TIMESTAMP'2024-02-29 01:02:03.000004' AS at, TIMESTAMP_NTZ'2024-02-29 01:02:03' AS ntz,
       ARRAY(1, NULL) AS a, MAP('k', 1) AS m, NAMED_STRUCT('x', 1, 'y', ARRAY(2.5BD)) AS st, INTERVAL '1' DAY AS iv
"""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake that another thread runs; nothing is due in it."""
    with open_lake(tmp_path_factory.mktemp("client") / "lake") as opened:
        opened.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
        opened.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1h")
        with running(opened.ms):
            until(lambda: address_of(opened.root).exists())
            yield opened


def command(lake: Lake, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-c", CLIENT, "--lake", str(lake.root), *arguments]
    return subprocess.run(given, text=True, capture_output=True, env=environment(), timeout=120)


def connected(lake: Lake) -> RemoteLake:
    return dial(lake.root, None, __version__, lambda _: None)


def test_a_refresh_imports_nothing_slow(lake: Lake) -> None:
    lake.insert("t", "'c', 3")
    first, second = command(lake, "refresh", "sums", "--json"), command(lake, "refresh", "--all")
    assert [(r["action"], r["rows_inserted"]) for r in json.loads(first.stdout)] == [("DIFFERENTIAL", 1)]
    assert "NO_DATA" in second.stdout
    assert (first.stderr, second.stderr) == ("[]\n", "[]\n")
    assert lake.rows("sums")[("c", 3)] == 1
    newest = lake.ms.refresh_history("sums", limit=1)[0]
    assert newest.initiated_by == "MANUAL"


def test_a_refresh_takes_at_most_twice_the_start_of_typer_and_rich(lake: Lake, tmp_path: Path) -> None:
    """In seconds of CPU of the client, the best of several: a busy machine must not fail the test."""
    # with bytecode, as after an installation; the tests may be run without
    variables = {**environment(), "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}

    def best(*arguments: str) -> float:
        seconds = []
        for _ in range(6):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=variables, timeout=60)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(seconds)

    refresh = best("-m", "millstream.cli", "--lake", str(lake.root), "refresh", "sums")
    assert refresh <= 2 * best("-c", "import typer, rich")


def test_statements_run_and_errors_have_their_position(lake: Lake) -> None:
    text = "CREATE TABLE IF NOT EXISTS u (x INT); INSERT INTO u VALUES (7); SELECT x FROM u; SELECT nope FROM u"
    found = command(lake, "sql", text)
    assert found.returncode == 1
    assert found.stdout.splitlines()[-1].split() == ["7"]
    assert "UNKNOWN_COLUMN" in found.stderr
    assert f"(line 1, column {text.index('nope') + 1})" in found.stderr
    assert "pyspark" not in found.stderr.splitlines()[-1]


def test_values_are_printed_as_without_a_running_process(lake: Lake) -> None:
    here = lake.ms.sql(VALUES)
    with connected(lake) as client:
        there = client.sql(VALUES)
        assert there.columns == here.columns
        [mine], [its] = here.collect(), there.take(5)
    assert [formats.cell(v) for v in its] == [formats.cell(v) for v in mine]
    assert [formats.plain(v) for v in its] == [formats.plain(v) for v in mine]


def test_a_failing_query_is_a_coded_error(lake: Lake) -> None:
    with connected(lake) as client:
        frame = client.sql("SELECT 1 / (v - v) AS x FROM t")
        with pytest.raises(MillstreamError) as caught:
            frame.collect()
        assert caught.value.code is Code.QUERY_INVALID
        assert client.status()[0].name == "sums"


def test_settings_and_temporary_views_belong_to_one_client(lake: Lake) -> None:
    zone = "SELECT current_timezone() AS z"
    with connected(lake) as first, connected(lake) as second:
        first.sql("SET TIME ZONE 'Asia/Tokyo'")
        first.sql("CREATE TEMPORARY VIEW mine AS SELECT 1 AS x")
        assert first.sql(zone).collect() == [["Asia/Tokyo"]]
        assert first.sql("SELECT x FROM mine").collect() == [[1]]
        assert second.sql(zone).collect() == [["UTC"]]
        with pytest.raises(MillstreamError):
            second.sql("SELECT x FROM mine")
    assert lake.ms.sql(zone).collect()[0][0] == "UTC"


def test_definitions_are_made_by_the_process(lake: Lake) -> None:
    made = command(lake, "create", "big", "SELECT k FROM sums WHERE s > 1", "--json")
    assert json.loads(made.stdout)["created"]["status"] == "ACTIVE"
    assert command(lake, "verify", "big").returncode == 0
    assert "sums" in command(lake, "dag").stdout
    assert json.loads(command(lake, "drop", "big", "--json").stdout) == {"dropped": ["big"]}
    assert json.loads(command(lake, "events", "--limit", "1", "--json").stdout)["event"]


def test_only_the_leader_listens(spark: SparkSession, tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake") as first, open_lake(tmp_path / "lake") as second:
        with running(first.ms) as leader:
            until(lambda: address_of(first.root).exists())
            mark = address_of(first.root).stat().st_ino
            with running(second.ms) as standby:
                assert standby.is_standby.wait(60)
                assert address_of(first.root).stat().st_ino == mark
                leader.end()
                catalog = second.ms._catalog  # an inode may be used again
                until(lambda: catalog.leadership().epoch == 2 and address_of(first.root).exists())
                with connected(second) as client:
                    assert client.daemon_status().leader is not None
        with pytest.raises(AloneError):
            connected(first)
