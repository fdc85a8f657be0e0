"""WITH RECURSIVE: a common table expression that reads itself, to a recursion of operators.

It is `base UNION [ALL] step`, in this order. In the step, the expression's own name becomes a scan of a source that
only the recursion knows, and the step must be linear in it: then the rows it finds do not depend on how they are
grouped into rounds, so that a change can pass through it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from sqlglot import exp

from millstream import naming
from millstream.errors import MillstreamError
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    Opaque,
    OuterJoin,
    Project,
    Recursion,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    UnionAll,
    Window,
    walk,
)
from millstream.ops.expressions import cast, col
from millstream.sql.lowering.context import Context, Ctes, Lowered, LowersQueries
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import describe_relation


def references(query: exp.Expr, name: str) -> Iterator[exp.Table]:
    """Where a query reads the common table expression of that name, unless a WITH inside the query hides it."""
    for table in query.find_all(exp.Table):
        if len(table.parts) == 1 and table.name.lower() == name.lower() and not _is_hidden(table, query, name):
            yield table


def _is_hidden(table: exp.Table, query: exp.Expr, name: str) -> bool:
    node: exp.Expr = table
    while node is not query and node.parent is not None:
        node = node.parent
        with_ = node.args.get("with_")
        if with_ is not None and any(cte.alias.lower() == name.lower() for cte in with_.expressions):
            return True
    return False


def refuse_later_ones(with_: exp.With, context: Context) -> None:
    """Refuse expressions that read one defined after them, as all mutual recursion does."""
    for position, cte in enumerate(with_.expressions):
        for later in with_.expressions[position + 1 :]:
            for table in references(cte.this, later.alias):
                message = f"{cte.alias} reads {later.alias}, which is defined after it"
                hint = f"define {later.alias} first; two expressions cannot read each other"
                raise invalid(message, table, context.sql, hint)


@dataclass(frozen=True)
class RecursiveCte:
    """Lowers one common table expression that reads itself."""

    lowering: LowersQueries
    ctes: Ctes
    cte: exp.CTE

    @property
    def context(self) -> Context:
        """The text, and what is known about it."""
        return self.lowering.context

    def lowered(self) -> Lowered:
        """The recursion and the names of its columns.

        Raises:
            MillstreamError: QUERY_INVALID or UNSUPPORTED_SQL.
        """
        union = self._union()
        base = self.lowering.query(union.this, self.ctes)
        names = tuple(c.name for c in self.cte.args["alias"].columns) or base.names
        if len(names) != len(base.names):
            message = f"{len(base.names)} columns are given {len(names)} names"
            raise invalid(message, self.cte.args["alias"], self.context.sql)
        fresh = self.context.namer.fresh
        columns = tuple(Column(fresh(n), c.type) for n, c in zip(names, base.outputs, strict=True))
        reference = naming.RECURSION + fresh("recursion").removeprefix("recursion")
        rows = tuple(Column(fresh(n), c.type) for n, c in zip(names, columns, strict=True))
        itself = Lowered(Scan(reference, tuple(c.name for c in columns), rows), names)
        step = self.lowering.query(union.expression, {**self.ctes, self.cte.alias.lower(): itself}).relation
        self._refuse_not_linear(step, reference)
        step = self._typed(step, columns, names, union.expression)
        return Lowered(Recursion(base.relation, step, reference, columns, bool(union.args.get("distinct"))), names)

    def _union(self) -> exp.Union:
        """The UNION of base and step."""
        query = self.cte.this
        while isinstance(query, exp.Subquery):
            self._refuse_clauses(query)
            query = query.this
        name = self.cte.alias
        itself = list(references(self.cte.this, name))
        hint = "write WITH RECURSIVE name AS (base UNION [ALL] step), where only the step reads the name"
        if not isinstance(query, exp.Union):
            raise invalid(
                f"{name} reads itself but is not a UNION of a base and a step", itself[0], self.context.sql, hint
            )
        self._refuse_clauses(query)
        if query.args.get("by_name"):
            raise unsupported("UNION BY NAME", query, self.context.sql, "name the columns of each branch in order")
        for table in references(query.this, name):
            raise invalid(f"the base of the recursion {name} reads {name} itself", table, self.context.sql, hint)
        return query

    def _refuse_clauses(self, query: exp.Query) -> None:
        """Refuse clauses of the UNION, or of the parentheses around it."""
        for clause in ("limit", "offset"):
            if (found := query.args.get(clause)) is not None:
                raise unsupported(f"{clause.upper()} in a recursion", found, self.context.sql, "stop at a depth")
        if query.args.get("with_") is not None:
            raise unsupported("a WITH inside a recursion", query, self.context.sql, "move it to the outer WITH")

    # Linearity

    def _refuse_not_linear(self, step: Relation, reference: str) -> None:
        problem = _problem(step, reference)
        if problem is not None:
            raise self._refused(*problem)

    def _refused(self, what: str, hint: str) -> MillstreamError:
        places = list(references(self.cte.this, self.cte.alias))
        return unsupported(f"a recursive reference {what}", places[-1], self.context.sql, hint)

    # Types

    def _typed(self, step: Relation, columns: tuple[Column, ...], names: tuple[str, ...], node: exp.Expr) -> Relation:
        """The step, cast to the types of the base, which must be able to hold its values."""
        if len(step.columns) != len(columns):
            message = "the branches of a UNION differ in their number of columns"
            raise invalid(message, node, self.context.sql)
        if [c.type for c in step.columns] == [c.type for c in columns]:
            return step
        united = describe_relation(self.context.analyzer, UnionAll((Scan("base", _names(columns), columns), step)))
        items: list[Item] = []
        for name, column, own, common in zip(names, columns, step.columns, united, strict=True):
            if common.type != column.type:
                raise invalid(
                    f"{name} is {column.type} in the base and {own.type} in the step of the recursion",
                    node,
                    self.context.sql,
                    f"cast it to {common.type} in the base, or to {column.type} in the step",
                )
            typed = Column(self.context.namer.fresh(own.name), column.type)
            items.append(Item(col(own.name) if own.type == column.type else cast(col(own.name), column.type), typed))
        return Project(step, tuple(items))


_AFTERWARDS = "aggregate in the query that reads the recursion"


def _problem(relation: Relation, reference: str) -> tuple[str, str] | None:
    """Why a step is not linear in the recursion, and what to do; None if it is."""
    readers = [child for child in relation.children if _reads(child, reference)]
    match relation:
        case Scan():
            return None
        case Filter() | Project() | Repeat():
            pass
        case UnionAll():
            if len(readers) < len(relation.inputs):
                return "in only one of the step's branches", "move the other branch to the base"
        case InnerJoin():
            if len(readers) > 1:
                return "next to another one", "join it with what it is derived from: base tables, or an earlier WITH"
        case SemiJoin() | AntiJoin():
            if _reads(relation.right, reference):
                return "in a subquery or on the right of a semi or anti join", "read it in the step's FROM"
        case OuterJoin():
            if relation.kind == "full" or _reads(relation.right, reference):
                return "on the side of an outer join that may be missing", "use an inner join"
        case Recursion():
            return "inside another recursion", "move the inner one to the outer WITH, before this one"
        case Aggregate():
            return "below DISTINCT, EXCEPT, INTERSECT or an aggregation", _AFTERWARDS
        case Window():
            return "below a window function or LIMIT", _AFTERWARDS
        case Opaque():
            return f"below {relation.label}", _AFTERWARDS
        case _:
            assert_never(relation)
    return next((found for child in readers if (found := _problem(child, reference)) is not None), None)


def _reads(relation: Relation, reference: str) -> bool:
    return any(isinstance(node, Scan) and node.source == reference for node in walk(relation))


def _names(columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(c.name for c in columns)
