"""`create`, `alter`, `drop`: define stream tables."""

import sys
from typing import Annotated, Any

import typer

from millstream.cli.facade import Facade, Graph
from millstream.cli.queries import FileOption, read_query
from millstream.cli.session import Session, verb
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName

NameArgument = Annotated[str, typer.Argument(help="The stream table: name or schema.name.")]
QueryArgument = Annotated[str | None, typer.Argument(help="The query; or use --file.")]
ServeToOption = Annotated[
    str | None, typer.Option("--serve-to", help="A table of an attached database to hold the result: db.schema.table.")
]
TriggersOption = Annotated[
    str | None, typer.Option("--user-triggers", help="Whether users' triggers on that table fire: auto or off.")
]
OwnerOption = Annotated[str | None, typer.Option(help="The role that owns that table.")]
GrantOption = Annotated[list[str] | None, typer.Option("--grant", help="A role that may read that table; repeatable.")]
DialectOption = Annotated[str | None, typer.Option(help="The query's SQL dialect: spark or postgres.")]


@verb
def create(
    session: Session,
    name: NameArgument,
    query: QueryArgument = None,
    file: FileOption = None,
    schedule: Annotated[str, typer.Option(help="A duration (30s, 1h30m), a cron expression or CALCULATED.")] = "1m",
    refresh_mode: Annotated[
        str, typer.Option("--refresh-mode", "--mode", help="AUTO, DIFFERENTIAL, DIFFERENTIAL STRICT or FULL.")
    ] = "AUTO",
    no_data: Annotated[bool, typer.Option("--no-data", help="Leave it empty until its first refresh.")] = False,
    dialect: DialectOption = None,
    serve_to: ServeToOption = None,
    user_triggers: TriggersOption = None,
    owner: OwnerOption = None,
    grant: GrantOption = None,
) -> None:
    """Create a stream table from a query, and load it.

    Example:

      millstream create per_city "SELECT city, COUNT(*) AS n FROM t GROUP BY city"
      millstream create totals --file totals.sql --schedule 30s --mode DIFFERENTIAL
      millstream create totals --file totals.sql --serve-to shop.public.totals --grant reporting
    """
    text = read_query(query, file)
    serving = _serving(user_triggers, owner, grant, is_served=serve_to is not None)
    with session.connect() as ms:
        with session.progress.working(f"creating {name}"):
            ms.create_stream_table(
                name,
                text,
                schedule=schedule,
                refresh_mode=refresh_mode,
                initialize=not no_data,
                dialect=dialect,
                **({"serve_to": serve_to, **serving} if serve_to is not None else {}),
            )
            explanation = ms.explain(name)
        _say(session, ms, name, "created", reasons=explanation.reasons)


@verb
def alter(
    session: Session,
    name: NameArgument,
    schedule: Annotated[str | None, typer.Option(help="The new schedule.")] = None,
    refresh_mode: Annotated[str | None, typer.Option("--refresh-mode", "--mode", help="The new refresh mode.")] = None,
    status: Annotated[str | None, typer.Option(help="ACTIVE or SUSPENDED.")] = None,
    query: Annotated[str | None, typer.Option(help="The new query; or use --file.")] = None,
    file: FileOption = None,
    dialect: DialectOption = None,
    serve_to: ServeToOption = None,
    user_triggers: TriggersOption = None,
    owner: OwnerOption = None,
    grant: GrantOption = None,
    stop_serving: Annotated[
        bool, typer.Option("--stop-serving", help="Stop serving it, and drop the served table.")
    ] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="With --stop-serving: drop views that read it, too.")
    ] = False,
    keep_table: Annotated[
        bool, typer.Option("--keep-table", help="With --stop-serving: keep the served table.")
    ] = False,
) -> None:
    """Change a stream table's schedule, refresh mode, status or query, or where it is served.

    Example:

      millstream alter customer_totals --status SUSPENDED
      millstream alter customer_totals --schedule "*/5 * * * *" --file totals.sql
      millstream alter customer_totals --serve-to shop.public.totals
    """
    text = read_query(query, file) if query is not None or file is not None else None
    serving = _serving(user_triggers, owner, grant, is_served=serve_to is not None)
    if (cascade or keep_table) and not stop_serving:
        raise typer.BadParameter("--cascade and --keep-table require --stop-serving")
    is_altered = any(change is not None for change in (text, schedule, refresh_mode, status))
    if not is_altered and serve_to is None and not stop_serving:
        raise typer.BadParameter(
            "nothing to change: give --schedule, --refresh-mode, --status, --query, --file, --serve-to, --stop-serving"
        )
    with session.connect() as ms:
        with session.progress.working(f"altering {name}"):
            if stop_serving:
                ms.stop_serving(name, cascade=cascade, keep_table=keep_table)
            if is_altered:
                ms.alter_stream_table(
                    name, query=text, schedule=schedule, refresh_mode=refresh_mode, status=status, dialect=dialect
                )
            if serve_to is not None:
                ms.serve_stream_table(name, serve_to, **serving)
        _say(session, ms, name, "altered")


@verb
def drop(
    session: Session,
    name: NameArgument,
    cascade: Annotated[bool, typer.Option("--cascade", help="Drop the stream tables that read it, too.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do nothing if there is no such stream table.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Drop a stream table.

    On a terminal, --cascade asks first.

    Example:

      millstream drop customer_totals
      millstream drop customer_totals --cascade --yes
    """
    with session.connect() as ms:
        dropped = [str(TableName.parse(name))]
        if cascade:
            dropped += _readers(ms.dag(), dropped[0])
            if not yes and sys.stdin.isatty():
                confirm(f"Drop {', '.join(dropped)}?")
        try:
            with session.progress.working(f"dropping {name}"):
                ms.drop_stream_table(name, cascade=cascade)
        except MillstreamError as e:
            if not (if_exists and e.code is Code.NOT_A_STREAM_TABLE):
                raise
            dropped = []
    sentence = f"dropped {', '.join(dropped)}" if dropped else f"there is no stream table {name}"
    session.output.done(sentence, {"dropped": dropped})


def _serving(
    user_triggers: str | None, owner: str | None, grant: list[str] | None, *, is_served: bool
) -> dict[str, Any]:
    """The options that go with --serve-to."""
    given = {"user_triggers": user_triggers, "owner": owner, "grants": tuple(grant) if grant else None}
    chosen = {key: value for key, value in given.items() if value is not None}
    if chosen and not is_served:
        raise typer.BadParameter("--user-triggers, --owner and --grant require --serve-to")
    return chosen


def _say(session: Session, ms: Facade, name: str, what: str, reasons: tuple[str, ...] = ()) -> None:
    """Report the stream table's new state."""
    canonical = str(TableName.parse(name))
    record = next(s for s in ms.status() if s.name == canonical)
    sentence = f"{what} {record.name}: {record.status}, refresh mode {record.refresh_mode}, schedule {record.schedule}"
    fields = {f: getattr(record, f) for f in ("name", "status", "refresh_mode", "schedule", "is_populated")}
    session.output.done(sentence, {what: {**fields, "reasons": reasons}})
    for reason in reasons:
        session.output.note(f"note: {reason}")


def confirm(question: str) -> None:
    """Ask on stderr, because `typer.confirm` would print a space to stdout, which is for results."""
    typer.echo(f"{question} [y/N]: ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise typer.Abort


def _readers(graph: Graph, name: str) -> list[str]:
    """The stream tables that read it, directly or not, in the order of the graph."""
    reached = {name}
    for node in graph.nodes:
        if any(source in reached and reader == node for source, reader in graph.edges):
            reached.add(node)
    return [n for n in graph.nodes if n in reached and n != name]
