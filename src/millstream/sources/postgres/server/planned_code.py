"""Finds functions of other roles that would run with our rights when PostgreSQL plans a SELECT.

While planning, PostgreSQL simplifies the expressions and predicates of a table's indexes, its extended statistics and
the expressions of its partition key, whether or not the statement uses them. It then runs a function that is declared
immutable and is called with constants; a function in SQL it inlines first, with everything that its body calls. A call
that has a column as its argument stays as it is, if the function is in another language. (PostgreSQL would simplify a
table's CHECKs too, but our sessions turn `constraint_exclusion` off; defaults, generated columns, triggers and policies
run for writers, or not at all for roles that bypass them.)

Functions of superusers are no risk, since superusers need no table to run code; nor are SECURITY DEFINER functions,
which run with their owner's rights. A table's owner can create such an index while the table is being read: no lock
that a reader may take prevents it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection

_EXPRESSIONS = """
WITH RECURSIVE below AS (
  SELECT %(oid)s::oid AS oid
  UNION SELECT i.inhrelid FROM pg_inherits i JOIN below ON below.oid = i.inhparent
)
SELECT format('the index %%I', c.relname), concat_ws(' ', i.indexprs::text, i.indpred::text)
FROM below JOIN pg_index i ON i.indrelid = below.oid JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
UNION ALL
SELECT format('the statistics %%I', s.stxname), s.stxexprs::text
FROM below JOIN pg_statistic_ext s ON s.stxrelid = below.oid WHERE s.stxexprs IS NOT NULL
UNION ALL
SELECT 'the partition key', p.partexprs::text
FROM below JOIN pg_partitioned_table p ON p.partrelid = below.oid WHERE p.partexprs IS NOT NULL
"""
_FUNCTIONS = """
SELECT p.oid::bigint, p.oid::regprocedure::text, r.rolname::text, l.lanname = 'sql' AND p.proconfig IS NULL,
       ARRAY(SELECT o.oid::bigint FROM pg_operator o WHERE o.oprcode = p.oid AND o.oid = ANY(%(oids)s))
FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner JOIN pg_language l ON l.oid = p.prolang
WHERE (p.oid = ANY(%(oids)s) OR EXISTS (SELECT FROM pg_operator o WHERE o.oid = ANY(%(oids)s) AND o.oprcode = p.oid))
  AND NOT r.rolsuper AND r.rolname <> current_user AND NOT (r.rolname = ANY(%(trusted)s::text[])) AND NOT p.prosecdef
"""
_FIRST_USER_OID = 16_384
_TOKEN = re.compile(r"[{}()]|(?:\\.|[^\s{}()\\])+")
_CALLED = ("funcid", "opfuncid", "opno")
_THROUGH = ("RELABELTYPE", "COERCEVIAIO")
"""Nodes that may wrap a column; the column in them is still not a constant."""

Value: TypeAlias = "Node | list[Value] | str"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a stored expression."""

    name: str
    fields: dict[str, list[Value]] = field(default_factory=dict)

    @property
    def called(self) -> set[int]:
        """The oids of the functions and operators it calls itself."""
        found = (value for name in _CALLED for value in self.fields.get(name, ()))
        return {int(value) for value in found if isinstance(value, str) and value.isdecimal()}

    @property
    def has_column(self) -> bool:
        """Whether one of its arguments is a column: then planning does not run it."""
        return any(_is_column(argument) for argument in _flat(self.fields.get("args", [])))

    def walk(self) -> Iterator[Node]:
        """It and all nodes below it."""
        yield self
        for values in self.fields.values():
            for inner in _flat(values):
                yield from inner.walk()


def refuse_planned_code(connection: Connection, oid: int, name: str, trusted: Collection[str] = ()) -> None:
    """Refuse to read a table if reading would run its owner's code.

    Args:
        name: the table's, for messages.
        trusted: roles whose functions may run with our rights.

    Raises:
        MillstreamError: UNTRUSTED_CODE.
    """
    rows = connection.execute(_EXPRESSIONS, {"oid": oid}).fetchall()
    if not rows:
        return
    calls = [(where, node) for where, text in rows for top in _flat(parse(text)) for node in top.walk() if node.called]
    oids = sorted({called for _, node in calls for called in node.called if called >= _FIRST_USER_OID})
    if not oids:
        return
    risky: dict[int, tuple[str, str, bool]] = {}
    for function, signature, owner, is_inlined, operators in connection.execute(
        _FUNCTIONS, {"oids": oids, "trusted": list(trusted)}
    ):
        risky |= dict.fromkeys([function, *operators], (signature, owner, is_inlined))
    for where, node in calls:
        for signature, owner, is_inlined in (risky[called] for called in sorted(node.called & risky.keys())):
            if is_inlined or not node.has_column:
                raise MillstreamError(
                    Code.UNTRUSTED_CODE,
                    f"reading {name} would run the function {signature} of the role {owner} with the rights of the "
                    f"role that reads: {where} calls it, and PostgreSQL runs it to plan a query",
                    hint=_hint(signature, owner, is_inlined and node.has_column),
                )


def parse(text: str) -> list[Value]:
    """A stored expression, as pg_node_tree prints it.

    >>> [node] = parse("{FUNCEXPR :funcid 16400 :args ({VAR :varno 1})}")
    >>> node.called, node.has_column
    ({16400}, True)
    """
    values, rest = _parsed(_TOKEN.findall(text), 0, None)
    assert rest >= 0
    return values


def _parsed(tokens: Sequence[str], at: int, end: str | None) -> tuple[list[Value], int]:
    values: list[Value] = []
    while at < len(tokens) and tokens[at] != end:
        token, at = tokens[at], at + 1
        if token == "(":
            inner, at = _parsed(tokens, at, ")")
            values.append(inner)
        elif token == "{":
            inner, at = _parsed(tokens, at, "}")
            values.append(_node(inner))
        else:
            values.append(token)
    return values, at + 1


def _node(values: list[Value]) -> Node:
    node, current = Node(str(values[0]) if values else ""), list[Value]()
    for value in values[1:]:
        if isinstance(value, str) and value.startswith(":"):
            current = node.fields.setdefault(value[1:], [])
        else:
            current.append(value)
    return node


def _flat(values: Sequence[Value]) -> Iterator[Node]:
    """The nodes of nested lists."""
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list):
            yield from _flat(value)


def _is_column(node: Node) -> bool:
    if node.name in _THROUGH:
        return any(_is_column(inner) for inner in _flat(node.fields.get("arg", [])))
    return node.name == "VAR"


def _hint(signature: str, owner: str, is_inlined: bool) -> str:
    kept = f"ALTER FUNCTION {signature} SET search_path = ..., so that it is not inlined; or " * is_inlined
    return (
        f"{kept}make a superuser the owner of the function; or, if you trust {owner} with everything that the reading "
        f"role may do, add it to the setting trusted_owners"
    )
