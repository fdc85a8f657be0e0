"""Where a command's SQL comes from: the command line, a file or stdin."""

import sys
from pathlib import Path
from typing import Annotated

import typer

FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help="Read it from a file; - is stdin.", allow_dash=True)
]


def read_sql(given: str | None, file: Path | None, what: str) -> str:
    """The text from the argument or the file.

    Raises:
        typer.BadParameter: both or neither was given, or the file cannot be read.
    """
    if given is not None and file is not None:
        raise typer.BadParameter(f"give {what} as an argument or by --file, not both")
    text = given if given is not None else _read(file, what)
    if not text.strip():
        raise typer.BadParameter(f"{what} is empty")
    return text


def read_query(given: str | None, file: Path | None) -> str:
    """One query, without its semicolon. The text before it stays, so that positions are those of the file."""
    from millstream.sql.statements import split_statements

    text = read_sql(given, file, "the query")
    pieces = split_statements(text)
    return text[: pieces[0].offset + len(pieces[0].text)] if len(pieces) == 1 else text


def _read(file: Path | None, what: str) -> str:
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter(f"{what} is missing: give it as an argument, by --file, or on stdin")
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except OSError as e:
        raise typer.BadParameter(f"cannot read {file}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise typer.BadParameter(f"{file} is not UTF-8 text") from e
