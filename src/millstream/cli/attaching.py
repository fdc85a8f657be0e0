"""`attach`, `detach`, `sources`, `health`, `slots`: PostgreSQL databases whose tables are read."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from millstream.cli import formats
from millstream.cli.definitions import confirm
from millstream.cli.output import Column
from millstream.cli.session import Session, verb
from millstream.errors import Code, MillstreamError

DatabaseArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the database in queries.")]

_SOURCES = (
    Column("database", "name"),
    Column("kind", "kind"),
    Column("address", "address"),
    Column("cdc", "cdc"),
    Column("mode", "mode"),
    Column("table", "table"),
    Column("columns", "columns", lambda names: ", ".join(names), prose=True),
    Column("position", "position", prose=True),
    Column("stale for", "staleness", formats.duration, number=True),
    Column("waiting", "buffered_rows", number=True),
    Column("read by", "readers", lambda names: ", ".join(names), prose=True),
    Column("why not WAL", "hindrance", prose=True),
    Column("state", "state"),
    Column("because", "reason", prose=True),
    Column("numeric", "numeric", lambda ranges: ", ".join(ranges), prose=True),
)
_HEALTH = (
    Column("database", "database"),
    Column("table", "source_table"),
    Column("mode", "cdc_mode"),
    Column("slot", "slot_name"),
    Column("behind (bytes)", "lag_bytes", number=True),
    Column("read up to", "confirmed_lsn"),
    Column("alert", "alert"),
)
_SLOTS = (
    Column("slot", "slot_name"),
    Column("tables", "sources", lambda names: ", ".join(names), prose=True),
    Column("WAL", "wal_status"),
    Column("keeps (bytes)", "retained_wal_bytes", number=True),
    Column("may keep (bytes)", "safe_wal_bytes", number=True),
    Column("read up to", "confirmed_lsn"),
    Column("idle since", "inactive_since", formats.moment),
    Column("invalid", "invalidation_reason"),
)


@verb
def attach(
    session: Session,
    name: DatabaseArgument,
    address: Annotated[
        str, typer.Argument(help="env:VARIABLE (it holds the URL), a URL without a password, or service=NAME.")
    ],
    cdc: Annotated[str, typer.Option(help="How changes are captured: auto, trigger or wal.")] = "auto",
    numeric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=TYPE",
            help="The range of a numeric without a precision: schema.table.column=decimal(p,s). May be repeated.",
        ),
    ] = None,
) -> None:
    """Attach a PostgreSQL database: queries read its tables as NAME.schema.table.

    If a database is already attached as NAME, this changes its address, --cdc and the given ranges.

    The address must not contain a password: put the URL into an environment variable, or the password into ~/.pgpass.

    Example:

      export SHOP_URL=postgresql://millstream:...@db.example.com/shop
      millstream attach shop env:SHOP_URL
      millstream create totals "SELECT customer, SUM(amount) AS total FROM shop.public.orders GROUP BY customer"
    """
    with session.connect() as ms:
        with session.progress.working(f"attaching {name}"):
            ms.attach(name, address, cdc=cdc, numeric=_ranges(numeric or ()))
        record = next(s for s in ms.sources() if s.name == name.strip().lower())
    sentence = f"attached {record.name}: {record.address}, cdc {record.cdc}"
    session.output.done(sentence, {"attached": {f: getattr(record, f) for f in ("name", "kind", "address", "cdc")}})


def _ranges(given: Sequence[str]) -> dict[str, str]:
    ranges: dict[str, str] = {}
    for text in given:
        column, equals, type_ = text.rpartition("=")
        if not equals:
            raise MillstreamError(
                Code.SETTING_INVALID,
                f"--numeric {text!r} has no range",
                hint="write schema.table.column=decimal(p,s), e.g. public.orders.price=decimal(30,4)",
            )
        ranges[column] = type_
    return ranges


@verb
def detach(
    session: Session,
    name: DatabaseArgument,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Drop the stream tables that read it or are served into it, too.")
    ] = False,
    script: Annotated[
        bool, typer.Option("--script", help="Only print the SQL that removes what millstream created there.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Do not touch the database: it is gone, or the script has been run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Detach a database, and remove everything millstream created in it.

    On a terminal, --cascade asks first.

    Example:

      millstream detach shop
      millstream detach shop --script | psql shop
    """
    with session.connect() as ms:
        if script:
            text = ms.detach_script(name)
            session.output.done(text.rstrip("\n"), {"script": text})
            return
        if cascade and not yes and sys.stdin.isatty():
            confirm(f"Detach {name}, and drop all stream tables that read it?")
        with session.progress.working(f"detaching {name}"):
            ms.detach(name, cascade=cascade, forget=forget)
    session.output.done(f"detached {name}", {"detached": name.strip().lower()})


@verb
def sources(session: Session) -> None:
    """Show the attached databases and their captured tables: how each is captured, up to where, how stale.

    Example:

      millstream sources
      millstream sources --json
    """
    with session.connect() as ms, session.progress.working("reading the catalog"):
        records = ms.sources()
    session.output.records(records, _SOURCES, empty="There are no attached databases.")


@verb
def health(session: Session) -> None:
    """Show the health of the captured tables: how each is captured, how far behind it is, and any alert.

    Example:

      millstream health
      millstream health --json
    """
    with session.connect() as ms, session.progress.working("querying the databases"):
        records = ms.check_cdc_health()
    session.output.records(records, _HEALTH, empty="Nothing is captured.")


@verb
def slots(session: Session) -> None:
    """Show the replication slots of the attached databases, and how much WAL each retains.

    Example:

      millstream slots
      millstream slots --json
    """
    with session.connect() as ms, session.progress.working("querying the databases"):
        records = ms.slot_health()
    session.output.records(records, _SLOTS, empty="No database is captured from the WAL.")
