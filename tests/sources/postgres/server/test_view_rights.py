"""What we say of the rights of a view is what PostgreSQL says to one who reads it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from kits.shops import MILLSTREAM, OWNER, STRANGER, Shop, new_shop
from millstream.errors import Code
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.view_rights import ViewRights, read_view_rights
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

GROUPS = ("view_group_a", "view_group_b")
ROLES = (MILLSTREAM, OWNER, STRANGER, *GROUPS)
TABLES = ("t1", "t2", "hidden", "parts")
# Nothing that the planner can leave out: a subquery whose column nobody uses, a LEFT JOIN that adds nothing. PostgreSQL
# does not look at the rights of what it has left out; we do.
SHAPES = (
    "SELECT k, a, b FROM {0}",
    "SELECT k, 1 AS a, 2 AS b FROM {0}",
    "SELECT count(*)::int AS k, 1 AS a, 2 AS b FROM {0}",
    "SELECT count(r)::int AS k, 1 AS a, 2 AS b FROM {0} r",
    "SELECT k, max(a) AS a, count(r)::int AS b FROM {0} r GROUP BY k",
    "SELECT k, x.a, y.b FROM {0} x JOIN {1} y USING (k)",
    "SELECT x.k, x.a, 1 AS b FROM {0} x WHERE x.b < (SELECT max(y.b) FROM {1} y)",
    "SELECT k, a, 1 AS b FROM {0} x WHERE EXISTS (SELECT FROM {1} y WHERE y.k = x.k)",
    "SELECT k, a, 1 AS b FROM {0} UNION ALL SELECT 1, 2, b FROM {1}",
    "WITH q AS (SELECT k, a FROM {0}) SELECT q.k, q.a, y.b FROM q, {1} y",
    "SELECT k, a, b FROM (SELECT * FROM {0}) s",
    "SELECT j.k, j.a, j.b FROM ({0} x NATURAL JOIN {1} y) j",
    "SELECT s.k, r.a, 1 AS b FROM {0} r, LATERAL (SELECT y.k FROM {1} y WHERE y.a = r.b) s",
)


@dataclass
class World:
    """A database in which anybody may have any right, as a superuser arranges it."""

    shop: Shop
    superuser: psycopg.Connection[Any]
    reader: Connection
    random: random.Random
    views: list[str] = field(default_factory=list)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.superuser.execute(statement.encode())

    def some(self, relations: list[str]) -> str:
        return self.random.choice(relations)

    @property
    def relations(self) -> list[str]:
        return [*(f"inner_.{t}" for t in TABLES), "inner_.kept", *self.views]

    def add_view(self) -> None:
        name = f"public.v{len(self.views)}"
        known = self.relations
        nested = known[-3:] if self.views and self.random.random() < 0.7 else known
        text = self.some(list(SHAPES)).format(self.some(nested), self.some(known))
        self.run(f"CREATE VIEW {name} AS {text}")
        self.views.append(name)
        self.give(name)
        self.run(f"GRANT USAGE ON SCHEMA public TO {MILLSTREAM}", f"GRANT SELECT ON {name} TO {', '.join(ROLES)}")

    def replace_view(self) -> None:
        """Another text that reads only what was there before it, so that no cycle comes of it."""
        at = self.random.randrange(len(self.views))
        known = [*(f"inner_.{t}" for t in TABLES), "inner_.kept", *self.views[:at]]
        text = self.some(list(SHAPES)).format(self.some(known), self.some(known))
        self.run(f"CREATE OR REPLACE VIEW {self.views[at]} AS {text}")

    def give(self, name: str) -> None:
        self.run(f"ALTER TABLE {name} OWNER TO {self.some(list(ROLES))}")

    def change(self) -> None:
        """One random step of somebody who administers rights."""
        role, relation = self.some(list(ROLES)), self.some(self.relations)
        to = self.some([role, role, role, "PUBLIC"])
        other = self.some([r for r in ROLES if r != role])
        choice = self.random.randrange(12)
        with suppress(psycopg.errors.InvalidGrantOperation):  # a circle of members
            match choice:
                case 0 | 1:
                    self.run(f"GRANT SELECT ON {relation} TO {to}")
                case 2:
                    self.run(f"REVOKE SELECT ON {relation} FROM {to}")
                case 3 | 4:
                    columns = ", ".join(self.random.sample(["k", "a", "b"], self.random.randint(1, 3)))
                    self.run(f"GRANT SELECT ({columns}) ON {relation} TO {to}")
                case 5:
                    self.run(f"REVOKE ALL ON {relation} FROM {', '.join(ROLES)}, PUBLIC")
                    columns = ", ".join(self.random.sample(["k", "a", "b"], self.random.randint(1, 3)))
                    self.run(f"GRANT SELECT ({columns}) ON {relation} TO {', '.join(ROLES)}")
                case 6:
                    self.give(relation)
                case 7 if self.views:
                    invoker = self.some(["true", "false", "on", "off", "1", "0"])
                    self.run(f"ALTER VIEW {self.some(self.views)} SET (security_invoker = {invoker})")
                case 8:
                    verb = self.some(["GRANT USAGE ON SCHEMA public TO", "REVOKE USAGE ON SCHEMA public FROM"])
                    self.run(f"{verb} {to}")
                case 9:
                    self.member(role, other)
                case 10:
                    table = self.some(list(TABLES))
                    word = self.some(["ENABLE", "DISABLE", "FORCE", "NO FORCE"])
                    self.run(f"ALTER TABLE inner_.{table} {word} ROW LEVEL SECURITY")
                case 11:
                    word = self.some(["BYPASSRLS", "NOBYPASSRLS", "NOBYPASSRLS", "INHERIT", "NOINHERIT"])
                    self.run(f"ALTER ROLE {role} {word}")
                case _:
                    self.replace_view() if self.views else self.add_view()

    def member(self, role: str, of: str) -> None:
        verb = self.some(["GRANT", "GRANT", "REVOKE"])
        if verb == "REVOKE":
            self.run(f"REVOKE {of} FROM {role} CASCADE")
        elif self.superuser.info.server_version >= 160_000:
            self.run(f"GRANT {of} TO {role} WITH INHERIT {self.some(['TRUE', 'FALSE'])}")
        else:
            self.run(f"GRANT {of} TO {role}")

    def says_postgres(self, view: str) -> bool:
        """Whether the server lets the reader read a view, and all its rows."""
        try:
            self.reader.execute(f"SELECT * FROM {view}".encode())
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    def say_we(self, view: str) -> bool:
        schema, name = view.split(".")
        found = read_view_rights(self.reader, [(schema, name)])[schema, name]
        return found.naming_error() is None and self._may_be_read(found)

    def _may_be_read(self, view: ViewRights) -> bool:
        if (error := view.reading_error()) is not None:
            assert error.code is Code.PRIVILEGE_MISSING
            assert error.hint
            return False
        nested = self.superuser.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'v' AND c.oid = ANY(%s)",
            [list(view.reads)],
        ).fetchall()
        return all(self._may_be_read(v) for v in read_view_rights(self.reader, nested).values())


@contextmanager
def world(server: Server, seed: int) -> Iterator[World]:
    shop = new_shop(server)
    with psycopg.connect(server.url(shop.name), autocommit=True) as superuser, shop.connect() as reader:
        made = World(shop, superuser, reader, random.Random(seed))
        for group in GROUPS:
            with suppress(psycopg.errors.DuplicateObject):
                made.run(f"CREATE ROLE {group}")
        made.run("CREATE SCHEMA inner_")
        for table in TABLES:
            more = " PARTITION BY HASH (k)" if table == "parts" else ""
            made.run(f"CREATE TABLE inner_.{table} (k int, a int, b int){more}")
        made.run(
            "CREATE TABLE inner_.part PARTITION OF inner_.parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            "INSERT INTO inner_.t1 VALUES (1, 2, 3)",
            "CREATE POLICY odd ON inner_.hidden USING (k % 2 = 1)",
            "ALTER TABLE inner_.hidden ENABLE ROW LEVEL SECURITY",
            "CREATE MATERIALIZED VIEW inner_.kept AS SELECT * FROM inner_.t1",
        )
        for name in made.relations:
            made.give(name)
            if made.random.random() < 0.7:
                made.run(f"GRANT SELECT ON {name} TO {', '.join(ROLES)}")
        try:
            yield made
        finally:
            for role in ROLES:
                made.run(f"ALTER ROLE {role} NOBYPASSRLS INHERIT")
                for other in ROLES:
                    made.run(f"REVOKE {other} FROM {role} CASCADE")


def explored(server: Server, seed: int) -> Counter[bool]:
    """Compare after every step; gives how often each verdict was right."""
    verdicts: Counter[bool] = Counter()
    with world(server, seed) as w:
        for step in range(60):
            if step % 6 == 0:
                w.add_view()
            w.change()
            for view in w.views:
                said = w.says_postgres(view)
                verdicts[said] += 1
                assert w.say_we(view) == said, f"step {step}: {view}: PostgreSQL says {said}"
    return verdicts


@pytest.mark.parametrize("seed", range(6))
def test_random_rights(server: Server, seed: int) -> None:
    assert min(explored(server, seed)[verdict] for verdict in (True, False)) > 0


@pytest.mark.parametrize("seed", range(2))
def test_random_rights_on_an_old_server(old_server: Server, seed: int) -> None:
    assert min(explored(old_server, seed)[verdict] for verdict in (True, False)) > 0
