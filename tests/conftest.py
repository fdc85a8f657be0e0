"""Fixtures for every test. `spark` is started once per run, by whoever asks first."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from millstream.naming import quote
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["kits.lake", "kits.postgres_fixtures", "kits.turns"]

# The first example of a Spark or DuckDB test pays for warm-up; time limits are pytest-timeout's business.
hypothesis.settings.register_profile("millstream", deadline=None, print_blob=True)
hypothesis.settings.load_profile("millstream")


# Files are shared out among the processes of a run in this order, those that take longest first.
_FIRST = ("tpch", "spark", "nexmark", "refresh", "service", "concurrency", "lake", "serving", "engine", "capture")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    places = {name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(root).parts[0], len(places)))


# A test's plans run once or twice over a handful of rows: generating and compiling code for them takes a third of the
# time. The long tests, and all tests that start processes of their own, run with generated code, as users do.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session")
def spark_settings(request: pytest.FixtureRequest) -> Settings:
    """The settings of the run's one JVM, which lives through hundreds of lakes and their plans."""
    has_long = any(item.get_closest_marker("long") for item in request.session.items)
    return Settings(
        spark_conf={
            "spark.driver.memory": "4g",
            # The second compiler's work never pays for itself here.
            "spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=512m -XX:TieredStopAtLevel=1",
            **({} if has_long else _INTERPRETED),
        }
    )


@pytest.fixture(scope="session")
def spark(spark_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The run's Spark session; mark the test `spark`."""
    from millstream.engine.session import close_session, create_session

    session = create_session(spark_settings, tmp_path_factory.mktemp("warehouse"))
    yield session
    close_session(session)


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """A schema of the test's own, current while it runs."""
    before = spark.catalog.currentDatabase()
    name = f"test_{uuid.uuid4().hex[:12]}"
    spark.sql(f"CREATE SCHEMA {quote(name)}")
    spark.catalog.setCurrentDatabase(name)
    yield name
    spark.catalog.setCurrentDatabase(before)
    spark.sql(f"DROP SCHEMA {quote(name)} CASCADE")
