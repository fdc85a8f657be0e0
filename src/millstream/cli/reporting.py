"""The one place that reports errors and warnings of a command."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from millstream.cli.exit_status import ERROR, exit_status
from millstream.cli.invocation import Invocation, Options
from millstream.cli.output import Problem
from millstream.errors import MillstreamError

INTERRUPTED = 130


def reported(invocation: Invocation, run: Callable[[], int]) -> int:
    """Run a command, and report its errors and warnings; returns its exit code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        code = _run(invocation, run)
    ours = [w for w in caught if invocation.options.verbose or w.category.__module__.startswith("millstream.")]
    for text in dict.fromkeys(str(w.message) for w in ours):
        invocation.options.output().warning(text)
    return code


def _run(invocation: Invocation, run: Callable[[], int]) -> int:
    try:
        return run()
    except KeyboardInterrupt:
        invocation.options.output().problem(Problem("INTERRUPTED", "interrupted"))
        return INTERRUPTED
    except Exception as e:  # noqa: BLE001 - the outermost level: any error becomes a sentence and an exit code
        return _report(e, invocation.options)


def _report(error: Exception, options: Options) -> int:
    if options.traceback:
        import traceback

        traceback.print_exception(error)
    status = ERROR
    if isinstance(error, MillstreamError):
        problem, status = Problem.of(error), exit_status(error.code)
    else:
        first_line = str(error).strip().split("\n")[0]
        message = f"millstream failed unexpectedly: {type(error).__name__}: {first_line}"
        problem = Problem("INTERNAL", message, "run the command again with --traceback to see where")
    options.output().problem(problem)
    return status
