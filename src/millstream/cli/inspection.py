"""`explain`, `validate`, `verify`, `dag`: how stream tables are maintained, and whether their contents are correct."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from millstream.cli.definitions import DialectOption, NameArgument, QueryArgument
from millstream.cli.output import Column
from millstream.cli.queries import FileOption, read_query
from millstream.cli.refreshing import AllOption, NamesArgument, chosen
from millstream.cli.session import Session, verb

SqlOption = Annotated[bool, typer.Option("--sql/--no-sql", help="Show the delta SQL that a refresh runs.")]

AgainstOption = Annotated[
    str | None, typer.Option(help="What answers the query: postgres; by default Spark.", show_default=False)
]


class GraphFormat(StrEnum):
    """How `dag` draws."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"


@dataclass(frozen=True, slots=True)
class Verification:
    """The fields of `VerifyResult`, with the table's name."""

    name: str
    ok: bool
    missing: int
    extra: int


_VERIFY = (
    Column("table", "name"),
    Column("equal", "ok"),
    Column("missing rows", "missing", number=True),
    Column("extra rows", "extra", number=True),
)


@verb
def explain(session: Session, name: NameArgument, sql: SqlOption = True) -> None:
    """Show how a stream table is maintained.

    Prints the operators, the strategy of each, and the delta SQL that a refresh runs.

    Example:

      millstream explain customer_totals
      millstream explain customer_totals --no-sql
    """
    with session.connect() as ms, session.progress.working(f"explaining {name}"):
        explanation = ms.explain(name)
    session.output.explanation(explanation, with_sql=sql)


@verb
def validate(
    session: Session,
    query: QueryArgument = None,
    file: FileOption = None,
    dialect: DialectOption = None,
    sql: SqlOption = False,
) -> None:
    """Show whether and how a query can be maintained.

    This creates nothing.

    Example:

      millstream validate "SELECT city, COUNT(*) AS n FROM t GROUP BY city"
      millstream validate --file totals.sql --sql
    """
    text = read_query(query, file)
    with session.connect() as ms, session.progress.working("validating the query"):
        explanation = ms.validate(text, dialect=dialect)
    session.output.explanation(explanation, with_sql=sql)


@verb
def verify(
    session: Session, names: NamesArgument = None, all_tables: AllOption = False, against: AgainstOption = None
) -> None:
    """Compare the contents of stream tables with their queries.

    With --against postgres, PostgreSQL itself answers the query; this works for stream tables that read only one
    attached database, and refreshes them first. The exit code is 1 if one differs.

    Example:

      millstream verify customer_totals
      millstream verify --all
      millstream verify customer_totals --against postgres
    """
    found: list[Verification] = []
    with session.connect() as ms:
        for name in chosen(ms, names, all_tables):
            with session.progress.working(f"verifying {name}"):
                result = ms.verify(name, against=against)
            found.append(Verification(name, result.ok, result.missing, result.extra))
    session.output.records(found, _VERIFY, empty="There are no stream tables to verify.")
    if not all(v.ok for v in found):
        raise typer.Exit(1)


@verb
def dag(
    session: Session,
    form: Annotated[GraphFormat, typer.Option("--format", help="How to draw it.")] = GraphFormat.TEXT,
) -> None:
    """Show which stream tables read which tables.

    Example:

      millstream dag
      millstream dag --format dot > lake.dot
    """
    with session.connect() as ms, session.progress.working("reading the catalog"):
        graph = ms.dag()
    session.output.graph(graph, form.value)
