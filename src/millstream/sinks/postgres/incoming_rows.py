"""The temporary table that rows are copied into before a statement writes them, and SQL for its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sinks.postgres.target import Target, listed

_CREATE = """
CREATE TEMPORARY TABLE ms_incoming (
  n bigint GENERATED ALWAYS AS IDENTITY, op "char" NOT NULL, place tid, seen xid, entry tid, key text, {columns}
) ON COMMIT DROP
"""
# With these, a value has the same text under any settings of the role; they are set only while no trigger can run.
_EXACT = {"extra_float_digits": "1", "datestyle": "ISO", "timezone": "UTC", "bytea_output": "hex"}
_WORTH_ANALYZING = 500
_SIGNED_ZEROS = ("real", "double precision")  # 0 and -0 are equal, but print differently under every setting


def incoming_table() -> sql.Identifier:
    """The session's table of incoming rows.

    Columns: n, op (`P`ut, `A`dd or `D`elete as given; `U`pdate, `I`nsert, `N`othing once decided), place, entry,
    key, and c1, c2, … for the columns of the result, so that users' column names cannot clash with ours.
    """
    return sql.Identifier("pg_temp", "ms_incoming")


def copy_incoming(connection: Connection, target: Target, lines: Iterable[tuple[str, str]]) -> int:
    """Copy rows, each with its op, into the session's `incoming_table()`; returns their number."""
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(f"c{i}"), c.type_sql) for i, c in enumerate(target.columns, start=1)
    ]
    connection.execute(sql.SQL(_CREATE).format(columns=listed(columns)))
    names = listed([sql.SQL("op"), *(sql.Identifier(f"c{i}") for i in range(1, len(target.columns) + 1))])
    count = 0
    with connection.cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN").format(incoming_table(), names)) as copy:
        for op, line in lines:
            copy.write(f"{op}\t{line}\n")
            count += 1
    if count > _WORTH_ANALYZING:
        connection.execute(sql.SQL("ANALYZE {}").format(incoming_table()))
    return count


@contextmanager
def exact_texts(connection: Connection) -> Iterator[None]:
    """Inside the block the text of a row is the same in every session."""
    before = connection.execute(
        sql.SQL("SELECT {}").format(listed([sql.SQL("current_setting({})").format(sql.Literal(k)) for k in _EXACT]))
    ).fetchone()
    assert before is not None
    _set_local(connection, _EXACT)
    yield
    _set_local(connection, dict(zip(_EXACT, map(str, before), strict=True)))


def _set_local(connection: Connection, values: dict[str, str]) -> None:
    calls = [sql.SQL("set_config({}, {}, true)").format(sql.Literal(k), sql.Literal(v)) for k, v in values.items()]
    connection.execute(sql.SQL("SELECT {}").format(listed(calls)))


def names(target: Target) -> sql.Composed:
    """The served table's columns."""
    return listed([c.identifier for c in target.columns])


def incoming_columns(target: Target, alias: str = "d") -> sql.Composed:
    """The incoming columns, in the same order."""
    return listed([incoming_column(target, c.name, alias) for c in target.columns])


def incoming_column(target: Target, name: str, alias: str = "d") -> sql.Composed:
    """The incoming column for a column of the result."""
    return sql.SQL("{}.{}").format(sql.Identifier(alias), sql.Identifier(f"c{target.position(name) + 1}"))


def row_text(columns: Iterable[sql.Composable]) -> sql.Composed:
    """Values as one text: two texts are equal exactly if all values are, NULLs included; see `exact_texts`."""
    return sql.SQL("ROW({})::pg_catalog.text").format(listed(list(columns)))


def assignments(target: Target, *, with_key: bool) -> sql.Composed:
    """`column = d.c1, …` for an UPDATE."""
    chosen = target.columns if with_key else target.others
    return listed([sql.SQL("{} = {}").format(c.identifier, incoming_column(target, c.name)) for c in chosen])


def differs(target: Target, *, with_key: bool) -> sql.Composable:
    """Whether the row `t` differs from the incoming row: equal rows are not updated, so that no trigger fires.

    IS DISTINCT FROM would look up the operator in the search path.
    """
    chosen = target.columns if with_key else target.others
    if not chosen:
        return sql.SQL("false")
    term = sql.SQL("(({0} OPERATOR(pg_catalog.=) {1}) IS NOT TRUE AND ({0} IS NOT NULL OR {1} IS NOT NULL))")
    terms: list[sql.Composed] = []
    for column in chosen:
        mine, its = sql.SQL("t.{}").format(column.identifier), incoming_column(target, column.name)
        terms.append(term.format(mine, its))
        if column.pg_type.removesuffix("[]") in _SIGNED_ZEROS:
            text = sql.SQL("{}::pg_catalog.text")
            terms.append(term.format(text.format(mine), text.format(its)))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(terms))


def same_key(target: Target, null_keys: frozenset[str]) -> sql.Composed:
    """Whether the row `t` has the key of the incoming row `d`.

    IS NOT DISTINCT FROM uses no index, so it is spelled out, and only for columns in which an incoming row has NULL.
    """
    terms: list[sql.Composable] = []
    equal, both_null = sql.SQL("{} OPERATOR(pg_catalog.=) {}"), sql.SQL("({0} OR ({1} IS NULL AND {2} IS NULL))")
    for name in target.key or ():
        mine, its = sql.SQL("t.{}").format(sql.Identifier(name)), incoming_column(target, name)
        same = equal.format(mine, its)
        terms.append(both_null.format(same, mine, its) if name in null_keys else same)
    return sql.SQL(" AND ").join([sql.SQL("true"), *terms])
