"""Code of a captured table's owner that never runs as the role that reads the table: what docs/trust.md says of it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from kits.capture import open_kit
from kits.quarantine import run
from kits.shops import MILLSTREAM, Shop

pytestmark = pytest.mark.postgres

SPY = f"""
CREATE FUNCTION spy(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF current_user = '{MILLSTREAM}' THEN RAISE EXCEPTION 'called as %', current_user; END IF;
  RETURN 1;
END $$
"""


@pytest.mark.parametrize("parts", ["", " PARTITION BY LIST (id)"])
def test_code_that_runs_as_those_who_write(shop: Shop, tmp_path: Path, parts: str) -> None:
    with shop.owner() as owner, open_kit(tmp_path / "lake", shop.address) as kit:
        owner.execute(SPY.encode())
        with shop.connect() as role, pytest.raises(psycopg.errors.RaiseException):
            role.execute("SELECT public.spy(1)")  # it would be noticed
        run(
            owner,
            "CREATE DOMAIN checked AS int CHECK (public.spy(VALUE) > 0); "
            "CREATE TABLE t (id int NOT NULL, d int DEFAULT spy(1), c checked, "
            f"g int GENERATED ALWAYS AS (spy(id)) STORED, CHECK (d + spy(1) > 0)){parts}",
        )
        if parts:
            owner.execute("CREATE TABLE t1 PARTITION OF t DEFAULT")
        run(owner, "CREATE INDEX ON t (spy(id)); CREATE INDEX ON t (id) WHERE spy(d) > 0")
        run(owner, "CREATE STATISTICS s ON (spy(id)), d FROM t")
        run(owner, "INSERT INTO t (id, c) SELECT i, i FROM generate_series(1, 50) i; ANALYZE t")
        kit.read("a", "t", "id", "d", "c", "g")
        kit.tick("t")
        run(owner, "INSERT INTO t (id, c) VALUES (51, 1); UPDATE t SET c = 7 WHERE id < 5; DELETE FROM t WHERE id = 9")
        kit.tick("t")
        kit.assert_exact(owner, "t")
        run(owner, "VACUUM FULL t; UPDATE t SET c = 8 WHERE id < 5")  # the table itself is read again
        kit.tick("t")
        kit.assert_exact(owner, "t")
