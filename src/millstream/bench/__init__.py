"""The benchmark: FULL against DIFFERENTIAL in one run, with raw data, a plot and a page for the docs."""

from millstream.bench.run import run

__all__ = ["run"]
