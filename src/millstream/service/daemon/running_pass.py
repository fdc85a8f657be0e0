"""A pass that the daemon is running: the slots it holds, and what has become of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.engine.spark_errors import SPARK_ERRORS, environment_error, first_line
from millstream.errors import Code, MillstreamError
from millstream.passes.pass_request import Outcome
from millstream.scheduler.policy import PassPlan

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)

_CAPTURE_SECONDS = 2.0
"""How long a pass that is still reading databases holds its slots; after that it is waiting for one of them."""
_ENDS_THE_PROCESS = (Code.LEADERSHIP_LOST, Code.JVM_LOST, Code.OUT_OF_MEMORY)


@dataclass(frozen=True)
class RunningPass:
    """A pass that has been started.

    Args:
        is_captured: set when it has read the databases behind its tables.
        began: by the monotonic clock.
    """

    plan: PassPlan
    is_captured: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    def slots(self, at_most: int) -> int:
        """How many slots it holds: none while a database does not answer, so that others need not wait for it."""
        if not self.is_captured.is_set() and time.monotonic() - self.began > _CAPTURE_SECONDS:
            return 0
        return min(len(self.plan.tables), at_most)


def outcomes_of(future: Future[dict[str, Outcome]], tables: Sequence[str]) -> dict[str, Outcome]:
    """How each table of a pass that has ended fared; a pass that failed as a whole failed for all its tables.

    Raises:
        MillstreamError: LEADERSHIP_LOST, JVM_LOST, OUT_OF_MEMORY: the process cannot go on.
    """
    try:
        outcomes = future.result()
    except MemoryError as e:
        hint = "give the process more memory, or refresh fewer tables side by side (max_concurrent_refreshes)"
        raise MillstreamError(Code.OUT_OF_MEMORY, "the process ran out of memory", hint=hint) from e
    except (MillstreamError, *SPARK_ERRORS, OSError) as e:
        error = _coded(e)
        _log.warning("a pass over %s failed: %s: %s", ", ".join(tables), error.code, error.message)
        outcomes = dict.fromkeys(tables, Outcome(error=error))
    for outcome in outcomes.values():
        failure = outcome.error or outcome.unserved
        if failure is not None and failure.code in _ENDS_THE_PROCESS:
            raise failure
    return outcomes


def _coded(cause: Exception) -> MillstreamError:
    if isinstance(cause, MillstreamError):
        return cause
    return environment_error(cause) or MillstreamError(
        Code.REFRESH_FAILED, f"a pass failed: {first_line(cause)}", hint="the old contents are still readable"
    )
