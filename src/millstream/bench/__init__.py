"""The benchmark: FULL against DIFFERENTIAL in one run, with raw data, a plot and a page for the docs."""

from millstream.bench.daemon.run import run_daemon
from millstream.bench.postgres.run import run_postgres
from millstream.bench.run import run
from millstream.bench.tpch.run import run_tpch

__all__ = ["run", "run_daemon", "run_postgres", "run_tpch"]
