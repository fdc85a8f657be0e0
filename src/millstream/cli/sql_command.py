"""`sql`: run statements."""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.facade import Facade
from millstream.cli.output import ResultSet
from millstream.cli.queries import FileOption, read_sql
from millstream.cli.session import Session, verb
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.sql.statements import StatementText

DEFAULT_LIMIT = 100


@verb
def sql(
    session: Session,
    statements: Annotated[str | None, typer.Argument(help="Statements separated by ;, or use --file or stdin.")] = None,
    file: FileOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Rows shown per result; 0 shows all.")
    ] = DEFAULT_LIMIT,
) -> None:
    """Run SQL statements, millstream's own and Spark's.

    Stops at the first statement that fails.

    Example:

      millstream sql "CREATE TABLE t (id INT); INSERT INTO t VALUES (1)"
      millstream sql --file setup.sql
      echo "SHOW STREAM TABLES" | millstream sql
    """
    from millstream.sql.statements import changes_session, split_statements

    text = read_sql(statements, file, "the SQL")
    results: list[ResultSet] = []
    pieces = split_statements(text)
    # settings and temporary views of a session must not outlive this command, and must apply to all of it
    with session.connect(alone=any(changes_session(piece.text) for piece in pieces)) as ms:
        for piece in pieces:
            with session.progress.working(_headline(piece.text)):
                result = _run(ms, text, piece, limit)
            results.append(result)
            _show(session, result, limit)
    session.output.results(results)


def _run(ms: Facade, text: str, piece: "StatementText", limit: int) -> ResultSet:
    from millstream.sql.statements import relocated

    try:
        frame = ms.sql(piece.text)
        columns = tuple(frame.columns)
        rows = (frame.take(limit + 1) if limit else frame.collect()) if columns else []
    except MillstreamError as e:
        # The error may be about the statement or about the query inside it; the user wrote the whole text.
        inside = piece.text.find(e.sql) if e.sql else -1
        raise (relocated(e, text, piece.offset + inside) if inside >= 0 else e) from e.__cause__
    shown = rows[:limit] if limit else rows
    return ResultSet(piece.text, columns, tuple(tuple(r) for r in shown), truncated=len(shown) < len(rows))


def _show(session: Session, result: ResultSet, limit: int) -> None:
    session.output.result(result)
    if result.truncated:
        session.output.note(f"Only the first {limit} rows are shown; --limit changes that, --limit 0 shows all.")
    elif not result.columns:
        session.output.note(f"done: {_headline(result.statement)}")


def _headline(statement: str, width: int = 60) -> str:
    """The statement on one line, shortened; for ATTACH without the address, which may contain a password."""
    line = " ".join(statement.split())
    if "ATTACH" in line.upper().split("'")[0]:
        return "ATTACH POSTGRES …"
    return line if len(line) <= width else line[: width - 1] + "…"
