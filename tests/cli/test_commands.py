"""What each verb calls, prints and answers in JSON."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path

import pytest

from kits.cli_stand_in import SAMPLE, Call, Frame, StandIn
from millstream.errors import Code, MillstreamError, Position
from millstream.results import Status

QUERY = "SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer"


def given_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


class Terminal(io.StringIO):
    """A stdin that a person types into."""

    def isatty(self) -> bool:
        return True


class TestCreate:
    def test_from_an_argument(self, lake: StandIn, call: Call) -> None:
        result = call("create", "per_city", QUERY, "--schedule", "30s", "--mode", "full", "--no-data")
        options = {"schedule": "30s", "refresh_mode": "full", "initialize": False, "dialect": None}
        assert ("create", "per_city", QUERY, options) in lake.calls
        assert result.code == 0
        assert result.out == "created per_city: ACTIVE, refresh mode AUTO, schedule 1m\n"
        assert "orders has [no] key" in result.err

    def test_served(self, lake: StandIn, call: Call) -> None:
        call("create", "per_city", QUERY, "--serve-to", "shop.public.t", "--owner", "me")
        options = next(c for c in lake.calls if c[0] == "create")[3]
        assert (options["serve_to"], options["owner"]) == ("shop.public.t", "me")

    def test_json(self, lake: StandIn, call: Call) -> None:
        assert call("create", "per_city", QUERY, "--json").data == {
            "created": {
                "name": "per_city",
                "status": "ACTIVE",
                "refresh_mode": "AUTO",
                "schedule": "1m",
                "is_populated": True,
                "reasons": ["orders has [no] key"],
            }
        }

    def test_from_a_file_keeps_positions(self, lake: StandIn, call: Call, tmp_path: Path) -> None:
        file = tmp_path / "q.sql"
        file.write_text(f"-- why\n\n  {QUERY} ;\n", encoding="utf-8")
        assert call("create", "per_city", "--file", str(file)).code == 0
        created = next(c for c in lake.calls if c[0] == "create")
        assert created[2] == f"-- why\n\n  {QUERY}"

    @pytest.mark.parametrize("arguments", [["--file", "-"], []])
    def test_from_stdin(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
        given_stdin(monkeypatch, QUERY)
        assert call("create", "per_city", *arguments).code == 0
        assert next(c for c in lake.calls if c[0] == "create")[2] == QUERY

    def test_no_query(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal())
        result = call("create", "per_city")
        assert result.code == 2
        assert "the query is missing" in result.err

    @pytest.mark.parametrize("arguments", [[QUERY, "--file", "-"], ["--file", "not_there.sql"], ["  "]])
    def test_wrong_usage(self, lake: StandIn, call: Call, arguments: list[str]) -> None:
        result = call("create", "per_city", *arguments)
        assert result.code == 2
        assert result.out == ""
        assert lake.calls == []


class TestAlter:
    def test_changes(self, lake: StandIn, call: Call) -> None:
        result = call("alter", "totals", "--status", "SUSPENDED", "--schedule", "5m")
        changes = {"query": None, "schedule": "5m", "refresh_mode": None, "status": "SUSPENDED", "dialect": None}
        assert ("alter", "totals", changes) in lake.calls
        assert result.out.startswith("altered totals: ")

    def test_query_from_a_file(self, lake: StandIn, call: Call, tmp_path: Path) -> None:
        file = tmp_path / "q.sql"
        file.write_text(QUERY)
        call("alter", "totals", "-f", str(file), "--dialect", "postgres")
        altered = next(c for c in lake.calls if c[0] == "alter")[2]
        assert (altered["query"], altered["dialect"]) == (QUERY, "postgres")

    def test_serving(self, lake: StandIn, call: Call) -> None:
        call("alter", "totals", "--serve-to", "shop.public.t", "--grant", "a", "--grant", "b", "--user-triggers", "off")
        assert ("serve", "totals", "shop.public.t", {"user_triggers": "off", "grants": ("a", "b")}) in lake.calls
        call("alter", "totals", "--stop-serving", "--keep-table")
        assert ("stop serving", "totals", False, True) in lake.calls
        assert not any(c[0] == "alter" for c in lake.calls)

    @pytest.mark.parametrize("arguments", [["--owner", "me"], ["--keep-table"], ["--status", "ACTIVE", "--grant", "a"]])
    def test_what_goes_with_serving_only(self, lake: StandIn, call: Call, arguments: list[str]) -> None:
        assert call("alter", "totals", *arguments).code == 2
        assert lake.calls == []

    def test_nothing_to_change(self, lake: StandIn, call: Call) -> None:
        result = call("alter", "totals")
        assert result.code == 2
        assert "nothing to change" in result.err


class TestDrop:
    def test_drop(self, lake: StandIn, call: Call) -> None:
        assert call("drop", "best").out == "dropped best\n"
        assert ("drop", "best", False) in lake.calls

    def test_cascade_names_all_that_goes(self, lake: StandIn, call: Call) -> None:
        assert call("drop", "totals", "--cascade", "--json").data == {"dropped": ["totals", "best"]}

    def test_if_exists(self, lake: StandIn, call: Call) -> None:
        assert call("drop", "nothing").code == 1
        result = call("drop", "nothing", "--if-exists", "--json")
        assert (result.code, result.data) == (0, {"dropped": []})

    @pytest.mark.parametrize(("answer", "code", "dropped"), [("y\n", 0, True), ("n\n", 1, False), ("", 1, False)])
    def test_cascade_asks_on_a_terminal(
        self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, dropped: bool
    ) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        result = call("drop", "totals", "--cascade")
        assert result.code == code
        assert (("drop", "totals", True) in lake.calls) is dropped
        assert "Drop totals, best?" in result.err
        assert result.out == ("dropped totals, best\n" if dropped else "")

    def test_no_as_json(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
        assert call("drop", "totals", "--cascade", "--json").data["error"]["code"] == "ABORTED"

    def test_yes_does_not_ask(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal())
        assert call("drop", "totals", "--cascade", "--yes").err == ""


class TestRefresh:
    def test_table(self, lake: StandIn, call: Call) -> None:
        result = call("refresh", "totals")
        lines = [line.split() for line in result.out.splitlines() if line.strip()]
        assert lines[0] == ["table", "action", "inserted", "updated", "deleted", "time", "reason"]
        assert lines[-1][:7] == ["totals", "DIFFERENTIAL", "1,234", "5", "0", "240", "ms"]
        assert "3 of 1,000 rows changed" in result.out

    def test_json(self, lake: StandIn, call: Call) -> None:
        assert call("refresh", "totals", "--json").data == [
            {
                "name": "totals",
                "action": "DIFFERENTIAL",
                "rows_inserted": 1234,
                "rows_updated": 5,
                "rows_deleted": 0,
                "duration_ms": 240.0,
                "reason": "3 of 1,000 rows changed",
                "frontier": {"orders": 7},
                "error": None,
            }
        ]

    def test_full(self, lake: StandIn, call: Call) -> None:
        call("refresh", "totals", "--full")
        assert ("refresh", "totals", "FULL") in lake.calls

    def test_all_in_the_order_of_the_graph_without_suspended_ones(self, lake: StandIn, call: Call) -> None:
        lake.statuses = {"best": Status.ACTIVE, "totals": Status.ERROR, "daily": Status.SUSPENDED}
        call("refresh", "--all")
        assert [c[1] for c in lake.calls if c[0] == "refresh"] == ["totals", "best"]

    def test_one_failure_among_several(self, lake: StandIn, call: Call) -> None:
        lake.errors["daily"] = MillstreamError(Code.SOURCE_MISSING, "orders is gone", hint="create it again")
        result = call("refresh", "daily", "totals", "--json")
        assert result.code == 1
        failed, refreshed = result.data
        assert (failed["name"], failed["action"], failed["error"]["code"]) == ("daily", "FAILED", "SOURCE_MISSING")
        assert (refreshed["name"], refreshed["action"]) == ("totals", "DIFFERENTIAL")
        assert "[SOURCE_MISSING] orders is gone" in call("refresh", "daily", "totals").out

    def test_a_failure_alone_is_an_error(self, lake: StandIn, call: Call) -> None:
        lake.errors["daily"] = MillstreamError(Code.SOURCE_MISSING, "orders is gone")
        result = call("refresh", "daily", "--json")
        assert (result.code, result.data["error"]["code"]) == (1, "SOURCE_MISSING")

    @pytest.mark.parametrize("arguments", [[], ["totals", "--all"]])
    def test_wrong_usage(self, lake: StandIn, call: Call, arguments: list[str]) -> None:
        assert call("refresh", *arguments).code == 2


class TestRunning:
    def test_run(self, lake: StandIn, call: Call) -> None:
        result = call("run")
        assert result.code == 0
        assert ("run",) in lake.calls
        assert "standing by" in result.err
        assert "stopped; nothing is running" in result.err

    def test_cancel(self, lake: StandIn, call: Call) -> None:
        assert call("cancel", "totals").out == "the refresh of totals is being cancelled\n"
        assert call("cancel", "daily", "--json").data == {"name": "daily", "is_cancelled": False}
        assert ("cancel", "totals") in lake.calls

    @pytest.mark.parametrize("code", [Code.JVM_LOST, Code.LAKE_ON_NETWORK, Code.LAKE_UNWRITABLE])
    def test_a_run_that_fails_says_whether_a_restart_helps(
        self, lake: StandIn, call: Call, code: Code, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise MillstreamError(code, "it ended")

        monkeypatch.setattr(lake, "run", fail)
        expected = {Code.JVM_LOST: 75, Code.LAKE_ON_NETWORK: 78}.get(code, 1)
        assert call("run").code == expected

    @pytest.mark.parametrize("verb", ["pause", "resume"])
    def test_pause_and_resume(self, lake: StandIn, call: Call, verb: str) -> None:
        assert call(verb, "--json").data == {"is_paused": verb == "pause"}
        assert (verb,) in lake.calls
        assert call(verb).out.startswith("automatic refreshes are ")


class TestMonitoring:
    def test_status(self, lake: StandIn, call: Call) -> None:
        out = call("status").out
        assert "2025-03-04 12:00:00Z" in out
        assert "2 min 5 s" in out
        head, *lines = [line for line in out.splitlines() if line.strip()]
        assert head.startswith("millstream 0.1.0: 3 stream tables; refreshed by process 4711@here, which last looked")
        assert [line.split()[0] for line in lines][2:] == ["daily", "totals", "best"]

    def test_status_of_one(self, lake: StandIn, call: Call) -> None:
        (record,) = call("status", "TOTALS", "--json").data
        assert record == {
            "name": "totals",
            "status": "ACTIVE",
            "refresh_mode": "AUTO",
            "is_populated": True,
            "consecutive_errors": 0,
            "schedule": "1m",
            "data_timestamp": "2025-03-04T12:00:00+00:00",
            "staleness": 125.0,
            "waits_for": None,
            "cycle": [],
        }

    def test_status_of_an_unknown_one(self, lake: StandIn, call: Call) -> None:
        result = call("status", "nothing", "--json")
        assert (result.code, result.data["error"]["code"]) == (1, "NOT_A_STREAM_TABLE")

    def test_nothing_to_show(self, lake: StandIn, call: Call) -> None:
        lake.statuses = {}
        text = call("status")
        assert (text.out, text.err) == ("", "There are no stream tables.\n")
        assert call("status", "--json").data == []

    def test_stats(self, lake: StandIn, call: Call) -> None:
        assert "1.5 s" in call("stats").out
        assert call("stats", "--json").data[0]["last_refresh_action"] == "NO_DATA"

    def test_history(self, lake: StandIn, call: Call) -> None:
        assert "disk full" in call("history", "totals", "-n", "5").out
        assert ("history", "totals", 5) in lake.calls
        record = call("history", "--json").data[0]
        assert (record["refresh_id"], record["action"], record["details"]) == (12, None, {})

    def test_history_limit(self, lake: StandIn, call: Call) -> None:
        assert call("history", "--limit", "0").code == 2


class TestInspection:
    def test_explain(self, lake: StandIn, call: Call) -> None:
        assert call("explain", "totals").out.splitlines() == [
            "totals: maintained incrementally (refresh mode AUTO)",
            "",
            "Columns",
            "  customer  string",
            "  total  decimal(20,2)",
            "",
            "Operators",
            "  Aggregate(customer)  [algebraic]",
            "    Scan(orders)  [change feed]",
            "",
            "Reasons",
            "  orders has [no] key",
            "",
            "Recomputed in full when",
            "  NO_DELTA: The history is gone.",
            "",
            "Step delta_orders",
            "SELECT *",
            "FROM feed",
        ]

    def test_explain_without_sql(self, lake: StandIn, call: Call) -> None:
        assert "FROM feed" not in call("explain", "totals", "--no-sql").out

    def test_explain_json(self, lake: StandIn, call: Call) -> None:
        data = call("explain", "totals", "--json").data
        assert data["operators"][1] == {
            "depth": 1,
            "operator": "Scan(orders)",
            "strategy": "change feed",
            "falls_back": "never.",
        }
        assert data["fallbacks"] == [{"code": "NO_DELTA", "meaning": "The history is gone."}]
        assert data["steps"] == [{"name": "delta_orders", "sql": "SELECT *\nFROM feed"}]
        assert data["columns"][0] == {"name": "customer", "type": "string"}

    def test_validate(self, lake: StandIn, call: Call) -> None:
        lake.supported = False
        result = call("validate", QUERY + ";")
        assert ("validate", QUERY, None) in lake.calls
        assert result.out.startswith("the query: recomputed in full at each refresh")
        assert result.code == 0

    def test_validate_shows_where(self, lake: StandIn, call: Call) -> None:
        query = "SELECT nope\nFROM orders"
        lake.errors[query] = MillstreamError(
            Code.UNKNOWN_COLUMN, "there is no column nope", hint="known is id", position=Position(1, 8, 4), sql=query
        )
        result = call("validate", query)
        assert result.code == 1
        assert result.out == ""
        assert result.err.splitlines() == [
            "Error: [UNKNOWN_COLUMN] there is no column nope (line 1, column 8)",
            "  SELECT nope",
            "         ^^^^",
            "Hint: known is id",
        ]
        assert call("validate", query, "--json").data == {
            "error": {
                "code": "UNKNOWN_COLUMN",
                "message": "there is no column nope",
                "hint": "known is id",
                "position": {"line": 1, "column": 8},
            }
        }

    def test_verify(self, lake: StandIn, call: Call) -> None:
        result = call("verify", "totals", "--json")
        assert (result.code, result.data) == (0, [{"name": "totals", "ok": True, "missing": 0, "extra": 0}])

    def test_verify_against_postgres(self, lake: StandIn, call: Call) -> None:
        result = call("verify", "totals", "--against", "postgres", "--json")
        assert (result.code, result.data) == (0, [{"name": "totals", "ok": True, "missing": 0, "extra": 0}])
        assert ("verify", "totals", "postgres") in lake.calls

    def test_verify_that_differs(self, lake: StandIn, call: Call) -> None:
        lake.equal = False
        result = call("verify", "--all")
        assert result.code == 1
        lines = [line.split() for line in result.out.splitlines() if line.strip()]
        assert lines[-1] == ["best", "no", "2", "1"]

    def test_dag(self, lake: StandIn, call: Call) -> None:
        assert [line.rstrip() for line in call("dag").out.splitlines()] == [
            "orders  (table)",
            "├── totals",
            "│   └── best",
            "└── daily",
            "    └── best",
        ]

    @pytest.mark.parametrize(("form", "start"), [("mermaid", "flowchart LR\n"), ("dot", "digraph lake {\n")])
    def test_dag_formats(self, lake: StandIn, call: Call, form: str, start: str) -> None:
        assert call("dag", "--format", form).out.startswith(start)

    def test_dag_json(self, lake: StandIn, call: Call) -> None:
        data = call("dag", "--json").data
        assert data["nodes"][0] == {"name": "orders", "is_stream_table": False}
        assert data["edges"][0] == {"source": "orders", "reader": "totals"}


class TestAttaching:
    def test_attach(self, lake: StandIn, call: Call) -> None:
        result = call("attach", "Shop", "env:SHOP", "--cdc", "trigger")
        assert ("attach", "Shop", "env:SHOP", "trigger", {}) in lake.calls
        assert (result.code, result.out) == (0, "attached shop: env:SHOP, cdc auto\n")
        attached = {"name": "shop", "kind": "postgres", "address": "env:SHOP", "cdc": "auto"}
        assert call("attach", "shop", "env:SHOP", "--json").data == {"attached": attached}

    def test_detach(self, lake: StandIn, call: Call) -> None:
        assert call("detach", "shop").out == "detached shop\n"
        assert call("detach", "shop", "--cascade", "--json").data == {"detached": "shop"}
        assert call("detach", "shop", "--forget").code == 0
        assert [c for c in lake.calls if c[0] == "detach"] == [
            ("detach", "shop", False, False),
            ("detach", "shop", True, False),
            ("detach", "shop", False, True),
        ]

    def test_a_cascade_asks_first(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
        assert call("detach", "shop", "--cascade").code == 1
        assert all(c[0] != "detach" for c in lake.calls)
        assert call("detach", "shop", "--cascade", "--yes").code == 0

    def test_the_script_is_only_printed(self, lake: StandIn, call: Call) -> None:
        assert call("detach", "shop", "--script").out == "DROP SCHEMA IF EXISTS x CASCADE;\n"
        assert call("detach", "shop", "--script", "--json").data == {"script": "DROP SCHEMA IF EXISTS x CASCADE;\n"}
        assert all(c[0] != "detach" for c in lake.calls)

    def test_sources(self, lake: StandIn, call: Call) -> None:
        lines = call("sources").out.splitlines()
        assert "shop.public.orders" in lines[2]
        assert "id, amount" in lines[2]
        assert "1 min 2 s" in lines[2]
        assert "wal_level" in lines[2]
        assert "service=store" in lines[3]
        first, second = call("sources", "--json").data
        assert (first["table"], first["columns"], first["buffered_rows"]) == (
            "shop.public.orders",
            ["id", "amount"],
            1200,
        )
        assert (first["hindrance"], second["hindrance"]) == ("wal_level", None)
        assert second["table"] is None

    def test_health(self, lake: StandIn, call: Call) -> None:
        lines = call("health").out.splitlines()
        assert "public.orders" in lines[2]
        assert "replica_sessions_not_captured" in lines[3]
        first, second = call("health", "--json").data
        assert (first["lag_bytes"], first["alert"], second["cdc_mode"]) == (2048, None, "TRIGGER")

    def test_slots(self, lake: StandIn, call: Call) -> None:
        assert "millstream_shop" in call("slots").out.splitlines()[2]
        (slot,) = call("slots", "--json").data
        assert (slot["sources"], slot["retained_wal_bytes"]) == (["public.orders"], 4096)


class TestMaintain:
    def test_what_was_done_and_what_was_not(self, lake: StandIn, call: Call) -> None:
        lines = call("maintain").out.splitlines()
        assert "VACUUM" in lines[2]
        assert "5.0 MiB" in lines[2]
        assert "8.0 KiB" in lines[2]
        assert "the table is being refreshed" in lines[3]
        first, second = call("maintain", "--json").data
        assert (first["kind"], first["files_before"], first["files_after"]) == ("VACUUM", 900, 3)
        assert second["skipped"] == "the table is being refreshed"

    def test_options(self, lake: StandIn, call: Call) -> None:
        call("maintain", "--dry-run", "--seconds", "2.5")
        assert ("maintain", 2.5, True) in lake.calls


class TestSql:
    def test_an_address_is_not_shown(self, lake: StandIn, call: Call) -> None:
        result = call("sql", " -- who\nattach postgres 'postgresql://me:hush@host/db' AS shop")
        assert "hush" not in result.out + result.err
        assert "ATTACH POSTGRES …" in result.err

    def test_results(self, lake: StandIn, call: Call) -> None:
        lake.frames["SELECT 1"] = SAMPLE
        result = call("sql", "CREATE TABLE t (a INT); SELECT 1")
        assert [c[1] for c in lake.calls if c[0] == "sql"] == ["CREATE TABLE t (a INT)", "SELECT 1"]
        lines = [line.rstrip() for line in result.out.splitlines() if line.strip()]
        assert lines[0].split() == ["id", "name", "amount", "at", "raw", "parts"]
        assert lines[2].split() == ["1", "[bold]x", "49.90", "2025-03-04", "01", "FF", "{a:", "[1,", "NULL]}"]
        assert lines[3].split() == ["1000", *["NULL"] * 5]
        assert result.err == "done: CREATE TABLE t (a INT)\n"

    def test_json(self, lake: StandIn, call: Call) -> None:
        lake.frames["SELECT 1"] = SAMPLE
        created, selected = call("sql", "CREATE TABLE t (a INT); SELECT 1;", "--json").data
        assert created == {"statement": "CREATE TABLE t (a INT)", "columns": [], "rows": [], "truncated": False}
        assert selected["rows"][0] == [1, "[bold]x", "49.90", "2025-03-04", "01ff", {"a": [1, None]}]

    def test_many_rows(self, lake: StandIn, call: Call) -> None:
        lake.frames["SELECT 1"] = Frame(["id"], [(i,) for i in range(300)])
        result = call("sql", "SELECT 1")
        assert len([line for line in result.out.splitlines() if line.strip().isdigit()]) == 100
        assert "Only the first 100 rows are shown" in result.err
        data = call("sql", "SELECT 1", "--limit", "2", "--json").data
        assert (data[0]["rows"], data[0]["truncated"]) == ([[0], [1]], True)
        assert len(call("sql", "SELECT 1", "--limit", "0", "--json").data[0]["rows"]) == 300

    def test_wide_rows_reach_a_pipe_whole(self, lake: StandIn, call: Call) -> None:
        lake.frames["SELECT 1"] = Frame(["long"], [("x" * 500,)])
        assert "x" * 500 in call("sql", "SELECT 1").out

    def test_file(self, lake: StandIn, call: Call, tmp_path: Path) -> None:
        file = tmp_path / "setup.sql"
        file.write_text("SELECT ';';\n-- nothing\n")
        call("sql", "-f", str(file))
        assert [c[1] for c in lake.calls if c[0] == "sql"] == ["SELECT ';'"]

    def test_stdin(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        given_stdin(monkeypatch, "SHOW STREAM TABLES;")
        assert call("sql").code == 0
        assert ("sql", "SHOW STREAM TABLES") in lake.calls

    def test_first_failure_ends_it_and_points_into_the_whole_text(self, lake: StandIn, call: Call) -> None:
        query = "SELECT nope FROM orders"
        statement = f"CREATE STREAM TABLE x AS\n{query}"
        lake.errors[statement] = MillstreamError(
            Code.UNKNOWN_COLUMN, "there is no column nope", position=Position(1, 8, 4), sql=query
        )
        result = call("sql", f"SELECT 1;\n\n{statement};\nSELECT 2")
        assert result.code == 1
        assert "(line 4, column 8)\n  SELECT nope FROM orders;\n         ^^^^" in result.err
        assert ("sql", "SELECT 2") not in lake.calls


class TestDemoAndBench:
    def test_they_call_their_modules(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[dict[str, object]] = []
        for name in ("demo", "bench"):
            module = types.ModuleType(f"millstream.{name}")
            module.run = lambda output, **options: called.append(options)  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, f"millstream.{name}", module)
        assert call("demo", "--rows", "1000", "--keep", "kept").code == 0
        assert call("bench", "--quick", "--out", "results").code == 0
        assert (called[0]["rows"], called[0]["keep"]) == (1000, Path("kept"))
        assert (called[1]["quick"], called[1]["out"]) == (True, Path("results"))
        assert callable(called[0]["progress"])

    def test_demo_has_two_parts(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[object] = []
        module = types.ModuleType("millstream.demo")
        module.run_postgres = lambda output, live: called.append(live)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "millstream.demo", module)
        assert (call("demo", "--postgres").code, call("demo", "--postgres", "--json").code) == (0, 0)
        assert called == [None, False]  # a terminal may be repainted, a document may not
        for option in (("--rows", "10"), ("--keep", "kept")):
            assert call("demo", "--postgres", *option).code == 2

    def test_bench_has_two_parts(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[str] = []
        module = types.ModuleType("millstream.bench")
        module.run = lambda output, **options: called.append("run")  # type: ignore[attr-defined]
        module.run_tpch = lambda output, **options: called.append("run_tpch")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "millstream.bench", module)
        assert (call("bench", "--tpch").code, call("bench").code) == (0, 0)
        assert called == ["run_tpch", "run"]
