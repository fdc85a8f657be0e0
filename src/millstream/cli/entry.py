"""The entry point: a plain `millstream refresh` for a lake with a running process, and otherwise all of `main`.

Scripts refresh often, and a running process answers in milliseconds. Typer, which parses all commands, takes longer
than that to import; so the plain forms of this one command are recognised here, and all others by Typer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.cli.invocation import DEFAULT_LAKE, Invocation, Options, Session
from millstream.cli.progress import Progress
from millstream.cli.refresh_outcomes import refresh_tables
from millstream.cli.reporting import reported
from millstream.remote.address import address_of

_PATIENCE_SECONDS = 0.3
"""Progress is shown only for what takes longer: the libraries that draw it take almost as long to import."""


@dataclass(frozen=True, slots=True)
class PlainRefresh:
    """A `refresh` command without unusual options; no names stand for all tables."""

    options: Options
    names: tuple[str, ...]
    full: bool


def plain_refresh(given: Sequence[str], lake_variable: str | None = None) -> PlainRefresh | None:
    """The command, if it is a plain refresh.

    >>> plain_refresh(["--lake", "x", "refresh", "a", "b", "--json"]).names
    ('a', 'b')
    >>> plain_refresh(["refresh", "a", "--all"]), plain_refresh(["refresh", "--help"]), plain_refresh(["status"])
    (None, None, None)
    """
    lake, flags, words = lake_variable or None, set[str](), list[str]()
    arguments = iter(given)
    for argument in arguments:
        if argument == "--lake":
            lake = next(arguments, "-")
        elif argument in {"--json", "--all", "--full"}:
            if argument != "--json" and not words:
                return None  # an option of the verb, before it
            flags.add(argument)
        elif argument.startswith("-"):
            return None
        else:
            words.append(argument)
    if words[:1] != ["refresh"] or (len(words) > 1) == ("--all" in flags) or (lake or "").startswith("-"):
        return None
    options = Options(lake=Path(lake) if lake else None, json="--json" in flags)
    return PlainRefresh(options, tuple(words[1:]), "--full" in flags)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    plain = plain_refresh(given, os.environ.get("MILLSTREAM_LAKE"))
    if plain is not None and address_of(plain.options.lake or DEFAULT_LAKE).exists():
        session = Session(plain.options, Progress(patience_seconds=_PATIENCE_SECONDS))
        return reported(
            Invocation(plain.options), lambda: refresh_tables(session, plain.names or None, full=plain.full)
        )
    from millstream.cli.main import main as whole

    return whole(given)
