"""The registry of supported functions: the name, the arguments and the translation of each.

A signature names the type of each argument; `?` marks arguments that may be omitted, `!` those that must be constants,
and `*` a last argument that may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import fn
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import Type

Rule = Callable[..., Value]
_TYPES = {
    "text": t.TEXT,
    "integer": t.INTEGER,
    "bigint": t.BIGINT,
    "double": t.DOUBLE,
    "boolean": t.BOOLEAN,
    "date": t.DATE,
    "timestamp": t.TIMESTAMP,
    "timestamptz": t.TIMESTAMPTZ,
    "interval": t.INTERVAL,
}


@dataclass(frozen=True, slots=True)
class _Argument:
    kind: str
    is_optional: bool
    is_constant: bool
    repeats: bool


@dataclass(frozen=True, slots=True)
class Function:
    """An entry of the registry."""

    arguments: tuple[_Argument, ...]
    rule: Rule


FUNCTIONS: dict[str, Function] = {}


def function(names: str, signature: str) -> Callable[[Rule], Rule]:
    """Register a rule."""
    arguments = tuple(
        _Argument(word.rstrip("?!*"), word.endswith(("?", "*")), "!" in word, word.endswith("*"))
        for word in signature.split()
    )

    def register(rule: Rule) -> Rule:
        for name in names.split():
            FUNCTIONS[name] = Function(arguments, rule)
        return rule

    return register


def simple(result: Type, signature: str, **spark_names: str) -> None:
    """Register functions that Spark has under another name, with the same arguments."""
    for name, spark_name in spark_names.items():

        def rule(*args: Value, spark_name: str = spark_name) -> Value:
            return Value(fn(spark_name, *(a.tree for a in args)), result)

        function(name, signature)(rule)


def call(name: str, args: list[Value]) -> Value:
    """Translate a call of a registered function.

    Raises:
        RefusalError: the function is not registered, or does not accept these arguments.
    """
    entry = FUNCTIONS.get(name)
    if entry is None:
        raise RefusalError(f"the function {name}", _INSTEAD.get(name))
    wanted = list(entry.arguments)
    if wanted and wanted[-1].repeats:
        wanted += [wanted[-1]] * (len(args) - len(wanted))
    least = sum(not a.is_optional for a in entry.arguments)
    if not least <= len(args) <= len(wanted):
        raise RefusalError(f"{name} with {len(args)} arguments")
    return entry.rule(*(_fitted(name, value, want) for value, want in zip(args, wanted, strict=False)))


_INSTEAD = {
    "age": "use a difference of timestamps and EXTRACT(EPOCH FROM ...)",
    "unnest": "put it into FROM",
    "generate_series": "put it into FROM",
    "jsonb_array_elements": "put it into FROM",
    "jsonb_array_elements_text": "put it into FROM",
    "jsonb_each": "put it into FROM",
    "jsonb_each_text": "put it into FROM",
    "jsonb_object_keys": "put it into FROM",
    "regexp_matches": "use regexp_match",
    "row_to_json": "use json_build_object",
}


def _fitted(name: str, value: Value, want: _Argument) -> Value:
    if want.is_constant and value.constant is None:
        raise RefusalError(f"{name} with an argument that is not a constant")
    if want.kind == "any":
        return value
    if want.kind in _TYPES:
        try:
            return coerce(value, _TYPES[want.kind])
        except RefusalError as e:
            raise RefusalError(f"{name} of {value.type}", e.hint) from e
    if not _FITS[want.kind](value.type):
        raise RefusalError(f"{name} of {value.type}")
    return value


_FITS: dict[str, Callable[[Type], bool]] = {
    "number": lambda type_: type_.is_number,
    "exact": lambda type_: type_.is_integer or type_.name == "numeric",
    "whole": lambda type_: type_.is_integer,
    "time": lambda type_: type_.is_time,
    "json": lambda type_: type_.is_json or type_.name in {"text", "unknown"},
    "array": lambda type_: type_.element is not None,
}
