"""Events by HTTP: one POST per batch, whose body is a JSON array of events."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from millstream.alerts.sink import FailureCount
from millstream.errors import Code, MillstreamError
from millstream.events import Event

_VARIABLE = "env:"
_TRIES = 3
_FIRST_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 10.0
_TOO_MANY_REQUESTS = 429


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without a body."""

    def redirect_request(self, *_: object) -> None:
        return None


class WebhookSink:
    """Sends events to a URL; a request that fails for a passing reason is tried again a few times.

    Args:
        url: `http://…`, `https://…` or `env:NAME`, an environment variable that holds it. It is never logged: webhooks
            often carry a secret in their path.
    """

    def __init__(
        self, url: str, *, timeout: float = _TIMEOUT_SECONDS, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._url, self._timeout, self._sleep = _resolved(url), timeout, sleep
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._failed = FailureCount(f"the webhook at {urlsplit(self._url).hostname}")

    @property
    def failures(self) -> int:
        """How many batches could not be sent."""
        return self._failed.total

    def send(self, events: Sequence[Event]) -> None:
        """POST the events."""
        body = json.dumps([event.dump() for event in events]).encode()
        why = ""
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            why, is_passing = self._post(body)
            if not why:
                return
            if not is_passing:
                break
        self._failed.add(why)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Why a request failed, empty if it did not, and whether another one may succeed."""
        headers = {"Content-Type": "application/json", "User-Agent": "millstream"}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout):
                return "", False
        except urllib.error.HTTPError as e:
            e.close()
            return f"it answered {e.code}", e.code >= 500 or e.code == _TOO_MANY_REQUESTS
        except (OSError, http.client.HTTPException) as e:
            return f"{type(e).__name__}: {getattr(e, 'reason', e)}", True


def _resolved(url: str) -> str:
    found = os.environ.get(url.removeprefix(_VARIABLE), "") if url.startswith(_VARIABLE) else url
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = url if url.startswith(_VARIABLE) else "its value"
        raise MillstreamError(
            Code.SETTING_INVALID,
            f"alert_webhook_url: {shown} is not an http or https URL",
            hint="write https://host/path, or env:NAME for an environment variable that holds it",
        )
    return found
