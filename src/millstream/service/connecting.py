"""`connect`: opens a lake, by its directory and its settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.service.daemon.client_call import current_call
from millstream.service.facade import Millstream
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

DEFAULT_LAKE = "./lake"
LAKE_VARIABLE = "MILLSTREAM_LAKE"
CONFIG_FILE = "millstream.toml"


def connect(
    lake: str | Path | None = None,
    *,
    config: str | Path | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] | None = None,
) -> Millstream:
    """Open a lake; the directory is created if it does not exist. The first call that needs Spark starts it.

    Args:
        lake: the lake's directory; by default the value of the environment variable MILLSTREAM_LAKE, else `./lake`.
        config: a `millstream.toml`; by default the one in the lake's directory, if any.
        spark: an existing session to work in; by default one is started for the lake.
        progress: called with a short text when a longer operation begins.

    Raises:
        MillstreamError: LAKE_UNWRITABLE, SETTING_INVALID, CATALOG_UNAVAILABLE.
    """
    root = Path(lake if lake is not None else os.environ.get(LAKE_VARIABLE) or DEFAULT_LAKE).resolve()
    found = Path(config) if config is not None else root / CONFIG_FILE

    def read() -> Settings:
        return Settings.load(found) if config is not None or found.exists() else Settings()

    def logged(phase: str) -> None:
        _log.info("%s", phase)
        if (call := current_call()) is not None:
            call.progress(phase)
        elif progress is not None:
            progress(phase)

    return Millstream(root, read, spark, logged, Path(config) if config is not None else None)
