"""Finds users' triggers on a served table, keeps some of them from firing, and detects what they wrote elsewhere.

A role that is not a superuser has one way to keep a trigger from firing: `ALTER TABLE … DISABLE TRIGGER` on a table it
owns. That takes SHARE ROW EXCLUSIVE until the end of the transaction: readers continue, other writers wait. It is
undone in the same transaction, so that no other session ever sees a disabled trigger, and a crash leaves none. Capture
triggers of millstream itself, of this lake or another, are not users' triggers and always fire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sinks.postgres.target import Target, listed

# tgtype: 1 row, 2 before, 4 insert, 16 update. Capture, of any lake, has its functions in a schema with this comment.
CAPTURE_MARK = "millstream's capture%"
_TRIGGERS = """
SELECT t.tgname::text, t.tgenabled = 'A', (t.tgtype & 1) <> 0, (t.tgtype & 3) = 3,
       (t.tgtype & 3) = 3 AND (t.tgtype & 20) <> 0
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid = %s::oid AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
      AND coalesce(obj_description(n.oid, 'pg_namespace'), '') NOT LIKE %s
ORDER BY t.tgname
"""
# What this session has written; it may include what earlier transactions did, so two readings are compared.
# Writes to a partitioned table are counted in its leaves.
_WRITTEN = """
WITH RECURSIVE parts (source, relation) AS (
  SELECT s, s FROM unnest(%s::oid[]) AS s
  UNION SELECT p.source, i.inhrelid FROM parts AS p JOIN pg_inherits AS i ON i.inhparent = p.relation
)
SELECT p.source::bigint, sum(w.n_tup_ins + w.n_tup_upd + w.n_tup_del)::bigint
FROM parts AS p JOIN pg_stat_xact_user_tables AS w ON w.relid = p.relation
WHERE w.n_tup_ins + w.n_tup_upd + w.n_tup_del > 0 GROUP BY p.source
"""


@dataclass(frozen=True, slots=True)
class UserTrigger:
    """A user's trigger that fires; `may_veto` if it runs before a row is changed and may prevent that."""

    name: str
    is_always: bool
    is_row: bool
    may_veto: bool
    may_alter: bool


def user_triggers(connection: Connection, relation: int) -> tuple[UserTrigger, ...]:
    """The enabled triggers of users on a table; no other can be created while the caller holds a lock on it."""
    rows = connection.execute(_TRIGGERS, [relation, CAPTURE_MARK]).fetchall()
    return tuple(UserTrigger(*row) for row in rows)


@contextmanager
def suppressed(connection: Connection, target: Target, triggers: Iterable[UserTrigger]) -> Iterator[None]:
    """Keep some triggers from firing inside the block; after an error, the rollback enables them again."""
    chosen = list(triggers)
    if not chosen:
        yield
        return
    _alter(connection, target, [sql.SQL("DISABLE TRIGGER {}").format(sql.Identifier(t.name)) for t in chosen])
    yield  # no deferred check may be pending after this, or the table cannot be altered: see `users_path`
    enable = [
        sql.SQL("ENABLE ALWAYS TRIGGER {}" if t.is_always else "ENABLE TRIGGER {}").format(sql.Identifier(t.name))
        for t in chosen
    ]
    _alter(connection, target, enable)


def _alter(connection: Connection, target: Target, actions: list[sql.Composed]) -> None:
    connection.execute(sql.SQL("ALTER TABLE {} {}").format(target.relation, listed(actions)))


class WrittenElsewhere:
    """Detects which of the given tables triggers have written to since it was created, in the same transaction."""

    def __init__(self, connection: Connection, sources: Mapping[int, str]) -> None:
        self._connection = connection
        self._sources = sources
        self._before = self._written()

    def tables(self) -> list[str]:
        """The names of these tables."""
        before = self._before
        return sorted(self._sources[o] for o, count in self._written().items() if count > before.get(o, 0))

    def _written(self) -> dict[int, int]:
        if not self._sources:
            return {}
        return dict(self._connection.execute(_WRITTEN, [list(self._sources)]).fetchall())


def new_trigger_notice(name: str, target: Target, trigger: UserTrigger) -> str:
    """The notice for a trigger that is seen for the first time."""
    if trigger.is_row:
        fires = "fires for each row that a differential refresh changes, but not during a full one"
    else:
        fires = "fires for each DELETE, UPDATE and INSERT of a refresh"
    return (
        f"the trigger {trigger.name} on {target.name}, where {name} is served, {fires}; "
        "it runs with the rights of the role that serves"
    )


def written_source_notice(name: str, target: Target, source: str) -> str:
    """The notice for a trigger that writes to a table that the stream table reads."""
    return (
        f"a trigger on {target.name}, where {name} is served, wrote into {source}, which {name} reads: "
        "each refresh may cause the next one"
    )
