"""The type that a cast names."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.types import Type


def type_named(node: exp.DataType) -> Type:
    """The type that a cast names.

    Raises:
        RefusalError: Spark has no such type.
    """
    sizes = [int(p.name) for p in node.expressions if isinstance(p, exp.DataTypeParam) and p.name.isdigit()]
    kind = node.this
    if kind is exp.DType.ARRAY and len(node.expressions) == 1:
        inner = node.expressions[0]
        if inner.this is exp.DType.VARCHAR and inner.expressions:
            raise RefusalError(
                f"the type {node.sql(dialect='postgres')}", "cast it to text[], and shorten its elements"
            )
        return t.array_of(type_named(inner))
    if kind is exp.DType.DECIMAL:
        return _numeric(node, sizes)
    found = _TYPES.get(kind) if isinstance(kind, exp.DType) else None
    if found is None or (sizes and kind is not exp.DType.VARCHAR):
        raise RefusalError(f"the type {node.sql(dialect='postgres')}", _HINTS.get(kind))
    return found


def _numeric(node: exp.DataType, sizes: list[int]) -> Type:
    if not sizes:
        return t.UNBOUNDED
    if sizes[0] > t.MAX_DIGITS:
        raise RefusalError(f"a numeric of {sizes[0]} digits", f"Spark's DECIMAL has {t.MAX_DIGITS}")
    if len(sizes) > 1 and sizes[1] > sizes[0]:
        raise RefusalError(f"the type {node.sql(dialect='postgres')}", "its scale cannot exceed its precision here")
    return t.numeric(sizes[0], sizes[1] if len(sizes) > 1 else 0)


_TYPES = {
    exp.DType.SMALLINT: t.SMALLINT,
    exp.DType.INT: t.INTEGER,
    exp.DType.BIGINT: t.BIGINT,
    exp.DType.FLOAT: t.REAL,
    exp.DType.DOUBLE: t.DOUBLE,
    exp.DType.TEXT: t.TEXT,
    exp.DType.VARCHAR: t.TEXT,
    exp.DType.BOOLEAN: t.BOOLEAN,
    exp.DType.DATE: t.DATE,
    exp.DType.TIMESTAMP: t.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: t.TIMESTAMP,
    exp.DType.TIMESTAMPTZ: t.TIMESTAMPTZ,
    exp.DType.INTERVAL: t.INTERVAL,
    exp.DType.JSON: t.JSON,
    exp.DType.JSONB: t.JSONB,
}
_HINTS: dict[object, str] = {
    exp.DType.CHAR: "use varchar(n) or text: char(n) pads with spaces and ignores them in comparisons",
    exp.DType.UUID: "compare uuids as text",
    exp.DType.TIME: "use a timestamp, or EXTRACT",
}
