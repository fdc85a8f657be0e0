"""Plain changes of source tables by delta-rs: 20 ms instead of the half second to second that Spark's DML takes.

Most tests are about what a change does to stream tables, not about who makes it. Here a writer that shares no code with
millstream or Spark makes it, if both the table and the statement are plain: INSERT of literals, UPDATE and DELETE with
expressions that mean the same everywhere. Everything else is Spark's; `tests/spark` has its statements.
"""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from millstream.catalog.models import ObjectKind
from millstream.naming import TableName

if TYPE_CHECKING:
    from millstream import Millstream

_FEED = "delta.enableChangeDataFeed"
_INTEGERS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_ALIKE = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Null,
    exp.Boolean,
    exp.Paren,
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Is,
    exp.In,
    exp.Add,
    exp.Sub,
    exp.Neg,
)
"""What means the same to Spark and to DataFusion over integers and texts."""


class _Elsewhere(Exception):
    """The statement is one for Spark."""


def change_plainly(ms: Millstream, text: str) -> bool:
    """Make a plain change; False if the statement is one for Spark."""
    if text.lstrip()[:6].upper() not in ("INSERT", "UPDATE", "DELETE"):
        return False
    try:
        statement = parse_one(text, dialect="spark")
        match statement:
            case exp.Insert():
                _insert(ms, statement)
            case exp.Update():
                _update(ms, statement)
            case exp.Delete():
                _delete(ms, statement)
            case _:
                return False
    except (_Elsewhere, SqlglotError):
        return False
    return True


def _insert(ms: Millstream, statement: exp.Insert) -> None:
    _only(statement, "this", "expression")
    values = statement.expression
    if not isinstance(values, exp.Values):
        raise _Elsewhere
    table, types = _table(ms, statement.this)
    rows = [_row(row, types) for row in values.expressions]
    schema = pa.schema(table.schema().to_arrow())
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    write_deltalake(table, pa.table(columns, schema=schema), mode="append")


def _update(ms: Millstream, statement: exp.Update) -> None:
    _only(statement, "this", "expressions", "where")
    table, types = _table(ms, statement.this)
    updates: dict[str, str] = {}
    for assigned in statement.expressions:
        if not isinstance(assigned, exp.EQ) or not isinstance(assigned.this, exp.Column):
            raise _Elsewhere
        updates[assigned.this.name] = _expression(assigned.expression, types)
    table.update(updates=updates, predicate=_condition(statement, types))


def _delete(ms: Millstream, statement: exp.Delete) -> None:
    _only(statement, "this", "where")
    table, types = _table(ms, statement.this)
    table.delete(_condition(statement, types))


def _only(statement: exp.Expression, *arguments: str) -> None:
    if {key for key, value in statement.args.items() if value} - set(arguments):
        raise _Elsewhere


def _table(ms: Millstream, named: exp.Expression) -> tuple[DeltaTable, dict[str, str]]:
    """A table of the lake and its columns' types, if both are plain."""
    if not isinstance(named, exp.Table) or named.args.get("alias") or named.args.get("catalog"):
        raise _Elsewhere
    name = TableName.parse(".".join(part.name for part in named.parts))
    found = ms._catalog.lake_object(ObjectKind.TABLE, name)
    if found is None or found.location is None or found.provider != "delta":
        raise _Elsewhere
    table = DeltaTable(found.location)
    metadata = table.metadata()
    if metadata.partition_columns or metadata.configuration != {_FEED: "true"}:
        raise _Elsewhere
    fields = table.schema().fields
    types = {field.name: getattr(field.type, "type", "nested") for field in fields}
    if any(not field.nullable or field.metadata or not _is_plain(types[field.name]) for field in fields):
        raise _Elsewhere
    return table, types


def _is_plain(type_: str) -> bool:
    return type_ in (*_INTEGERS, "string", "date", "boolean", "double") or type_.startswith("decimal(")


def _row(row: exp.Expression, types: dict[str, str]) -> list[Any]:
    cells = row.expressions if isinstance(row, exp.Tuple) else [row]
    if len(cells) != len(types):
        raise _Elsewhere
    return [_value(cell, type_) for cell, type_ in zip(cells, types.values(), strict=True)]


def _value(cell: exp.Expression, type_: str) -> Any:
    """A literal as a value of a column, where Spark would store the same."""
    if isinstance(cell, exp.Null):
        return None
    if isinstance(cell, exp.Boolean) and type_ == "boolean":
        return bool(cell.this)
    if isinstance(cell, exp.Cast) and type_ == "date" and cell.to.is_type("date") and cell.this.is_string:
        return datetime.date.fromisoformat(cell.this.name)
    if isinstance(cell, exp.Literal) and cell.is_string and type_ == "string" and "\\" not in cell.name:
        return cell.name
    sign, number = (-1, cell.this) if isinstance(cell, exp.Neg) else (1, cell)
    if not isinstance(number, exp.Literal) or number.is_string:
        raise _Elsewhere
    return _number(sign, number.name, type_)


def _number(sign: int, text: str, type_: str) -> Any:
    if text.isdigit() and type_ in _INTEGERS and int(text) < 2 ** _INTEGERS[type_]:
        return sign * int(text)
    value = decimal.Decimal(text) if text.replace(".", "", 1).isdigit() else None
    if value is not None and type_.startswith("decimal("):
        precision, scale = (int(part) for part in type_[8:-1].split(","))
        digits, exponent = len(value.as_tuple().digits), -int(value.as_tuple().exponent)
        if exponent <= scale and digits - exponent <= precision - scale:
            return value if sign > 0 else value.copy_negate()  # a product would be rounded to 28 digits
    if value is not None and type_ == "double" and value != 0 and len(text) < 15:
        return sign * float(text)
    raise _Elsewhere


def _condition(statement: exp.Expression, types: dict[str, str]) -> str | None:
    where = statement.args.get("where")
    return _expression(where.this, types) if where is not None else None


def _expression(tree: exp.Expression, types: dict[str, str]) -> str:
    """An expression in DataFusion's words, if it means there what it means to Spark."""
    for node in tree.walk():
        if not isinstance(node, _ALIKE) or (isinstance(node, exp.Column) and types.get(node.name) not in _COMPARED):
            raise _Elsewhere
        if isinstance(node, exp.Literal) and not node.is_string and not node.name.isdigit():
            raise _Elsewhere
    return tree.sql(dialect="postgres")


_COMPARED = {*_INTEGERS, "string"}
