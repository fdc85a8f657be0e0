from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.engine import lake_schemas, session
from millstream.naming import TableName
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Open = Callable[[Path], "SparkSession"]


@pytest.fixture
def open_lake(spark: SparkSession, spark_settings: Settings) -> Iterator[Open]:
    """Opens further lakes beside the run's own session."""
    opened: list[SparkSession] = []

    def open_(warehouse: Path) -> SparkSession:
        opened.append(session.create_session(spark_settings, warehouse))
        return opened[-1]

    yield open_
    for one in opened:
        session.close_session(one)


def run_python(body: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process, and so a JVM, of its own."""
    prelude = """\
    import sys
    from pathlib import Path
    from millstream.engine.session import adopt_session, close_session, create_session
    from millstream.errors import MillstreamError
    from millstream.settings import Settings
    FAST = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "1g"}
    """
    command = [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(body), *map(str, arguments)]
    directory = tempfile.mkdtemp()  # a plain Spark leaves a spark-warehouse where it starts
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=directory)


def test_a_start_and_an_end_say_nothing(tmp_path: Path) -> None:
    run = run_python(
        """
        spark = create_session(Settings(spark_conf=FAST), Path(sys.argv[1]))
        spark.sql("CREATE TABLE t (id BIGINT, name STRING)")
        spark.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        spark.sql("MERGE INTO t USING (SELECT 2L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
        print(spark.table("t").count())
        try:
            spark.sql("SELECT raise_error('no') FROM t").collect()
        except Exception as e:
            print(type(e).__name__)
        """,
        tmp_path / "lake",
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "1\nSparkRuntimeException\n", "")


def test_what_cannot_start_says_why_and_the_next_start_works(tmp_path: Path) -> None:
    run = run_python(
        """
        for conf in ({"spark_master": "nonsense"}, {"spark_conf": FAST | {"spark.driver.memory": "lots"}}):
            try:
                create_session(Settings(**conf), Path(sys.argv[1]))
            except MillstreamError as e:
                print(e.code, e.message)
        print(create_session(Settings(spark_conf=FAST), Path(sys.argv[1])).range(3).count())
        """,
        tmp_path / "lake",
    )
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["SESSION_FAILED", "SESSION_FAILED", "3"]
    assert "Master must" in lines[0]
    assert "lots" in lines[1]


def test_a_session_of_the_caller(tmp_path: Path) -> None:
    run = run_python(
        """
        from millstream.engine import jars
        from pyspark.sql import SparkSession
        builder = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(map(str, jars.find_jars())))
        plain = builder.getOrCreate()
        for use in (adopt_session, lambda spark: create_session(Settings(), Path(sys.argv[1]))):
            try:
                use(plain)
            except MillstreamError as e:
                print(e.code)
        plain.stop()
        own = (
            builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.sql.shuffle.partitions", "7")
            .getOrCreate()
        )
        print(adopt_session(own, Settings(time_zone="Asia/Tokyo")) is own)
        print(own.conf.get("spark.sql.shuffle.partitions"), own.conf.get("spark.sql.session.timeZone"))
        ours = create_session(Settings(), Path(sys.argv[1]))
        ours.sql("CREATE TABLE t AS SELECT 1 AS id")
        print((Path(sys.argv[1]) / "t" / "_delta_log").is_dir())
        close_session(ours)
        close_session(own)
        print(own.range(2).count())
        """,
        tmp_path / "lake",
    )
    expected = ["SESSION_WITHOUT_DELTA", "SESSION_WITHOUT_DELTA", "True", "7 Asia/Tokyo", "True", "2"]
    assert run.stdout.splitlines() == expected, run.stderr


def test_a_jvm_that_was_started_without_delta(tmp_path: Path) -> None:
    run = run_python(
        """
        from pyspark.sql import SparkSession
        SparkSession.builder.master("local[1]").getOrCreate().stop()
        try:
            create_session(Settings(), Path(sys.argv[1]))
        except MillstreamError as e:
            print(e.code)
        """,
        tmp_path,
    )
    assert run.stdout == "SESSION_WITHOUT_DELTA\n", run.stderr


def test_lakes_one_after_the_other_share_nothing(tmp_path: Path) -> None:
    run = run_python(
        """
        for name in ("one lake", "it's another"):
            lake = Path(sys.argv[1]) / name
            spark = create_session(Settings(spark_conf=FAST), lake)
            spark.sql("CREATE SCHEMA sales")
            spark.sql("CREATE TABLE sales.t AS SELECT 1 AS id")
            spark.sql("CREATE TABLE default.t AS SELECT 1 AS id")
            print((lake / "t").is_dir(), (lake / "sales.db" / "t").is_dir(), spark.catalog.currentDatabase())
            close_session(spark)
        """,
        tmp_path,
    )
    assert (run.stdout, run.stderr) == ("True True default\n" * 2, "")


def test_the_settings_arrive(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
    assert spark.conf.get("spark.sql.sources.default") == "delta"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    # The JVM's zone: without it Delta checks itself at every commit.
    assert spark.sql("SELECT java_method('java.util.TimeZone', 'getDefault')").head()[0].count("UTC")


def test_the_settings_of_the_user_win(spark: SparkSession, tmp_path: Path) -> None:
    conf = {"spark.sql.shuffle.partitions": "3", "spark.ui.enabled": "true", "spark.sql.session.timeZone": "UTC"}
    own = session.create_session(Settings(spark_conf=conf, time_zone="Europe/Paris"), tmp_path)
    assert own.conf.get("spark.sql.shuffle.partitions") == "3"
    assert own.conf.get("spark.sql.session.timeZone") == "UTC"
    session.close_session(own)


def test_a_lake_beside_an_open_one_keeps_its_tables(spark: SparkSession, open_lake: Open, tmp_path: Path) -> None:
    first, second = open_lake(tmp_path / "a"), open_lake(tmp_path / "b's")
    for number, one in enumerate((first, second)):
        one.sql(f"CREATE TABLE t AS SELECT {number} AS n")
    assert [one.table("t").head()[0] for one in (first, second)] == [0, 1]
    assert (tmp_path / "b's" / "t" / "_delta_log").is_dir()
    assert second.sql(f"SELECT n FROM {lake_schemas.spark_name(second, TableName.parse('t'))}").head()[0] == 1
    assert not spark.catalog.tableExists("t")


def test_a_schema_of_a_lake_beside_an_open_one(open_lake: Open, tmp_path: Path) -> None:
    first, second = open_lake(tmp_path / "a"), open_lake(tmp_path / "b")
    name = TableName.parse("sales.t")
    for number, (one, lake) in enumerate(((first, "a"), (second, "b"))):
        lake_schemas.create_lake_schema(one, tmp_path / lake, "sales")
        one.sql(f"CREATE TABLE {lake_schemas.spark_name(one, name)} AS SELECT {number} AS n")
        assert (tmp_path / lake / "sales.db" / "t" / "_delta_log").is_dir()
    assert [one.table(lake_schemas.spark_name(one, name)).head()[0] for one in (first, second)] == [0, 1]
    worker = session.new_worker_session(second)
    assert worker.table(lake_schemas.spark_name(worker, name)).head()[0] == 1


def test_two_sessions_of_one_lake_see_the_same_tables(open_lake: Open, tmp_path: Path) -> None:
    first, second = open_lake(tmp_path), open_lake(tmp_path)
    first.sql("CREATE TABLE shared AS SELECT 7 AS n")
    assert second.table("shared").head()[0] == 7
    session.close_session(first)
    assert second.table("shared").head()[0] == 7


def test_closing_a_lake_leaves_the_others(spark: SparkSession, tmp_path: Path) -> None:
    other = session.create_session(Settings(), tmp_path)
    session.close_session(other)
    session.close_session(other)
    assert spark.range(3).count() == 3


def test_a_worker_has_settings_of_its_own(open_lake: Open, tmp_path: Path) -> None:
    main = open_lake(tmp_path)
    main.sql("CREATE TABLE t AS SELECT 1 AS n")
    main.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    worker = session.new_worker_session(main)
    assert worker.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert worker.table("t").count() == 1
    worker.conf.set("spark.sql.shuffle.partitions", "11")
    assert main.conf.get("spark.sql.shuffle.partitions") != "11"


def test_semantics_travel(spark: SparkSession) -> None:
    stored = session.read_semantics(spark) | {"spark.sql.session.timeZone": "Asia/Kolkata"}
    worker = session.new_worker_session(spark)
    session.apply_semantics(worker, stored)
    assert session.read_semantics(worker) == stored
    noon = worker.sql("SELECT date_format(TIMESTAMP '2024-01-01 12:00:00Z', 'HH:mm')").head()[0]
    assert noon == "17:30"
