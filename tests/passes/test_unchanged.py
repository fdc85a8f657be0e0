"""Which stream tables need no refresh, judged from versions alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.passes.agreement import Reads
from millstream.passes.unchanged import Seen, unchanged

T0 = datetime(2026, 1, 1, tzinfo=UTC)
NOW = T0 + timedelta(seconds=1)


def seen(base: str = "", upstream: str = "", *, version: int = 0, is_settled: bool = True, **frontier: int) -> Seen:
    """A table whose inputs are at the given versions; base tables that it reads through others begin with `_`."""
    reads = Reads(frozenset(base.split()), frozenset(upstream.split()))
    direct = {name: v for name, v in frontier.items() if not name.startswith("_")}
    behind = {name.lstrip("_"): v for name, v in frontier.items() if name.lstrip("_") not in reads.upstream}
    return Seen(
        reads=reads,
        frontier=direct,
        base_frontier=behind,
        version=version,
        data_timestamp=T0,
        is_settled=is_settled,
    )


DIAMOND = {
    "top": seen("t", t=3, version=7),
    "left": seen("u", "top", u=4, top=7, _t=3, version=1),
    "right": seen("", "top", top=7, _t=3, version=2),
    "bottom": seen("", "left right", left=1, right=2, _t=3, _u=4, version=9),
}


def look(tables: dict[str, Seen], newest: dict[str, int], *outside: str) -> dict[str, datetime]:
    return unchanged([name for name in tables if name not in outside], tables, newest, NOW)


def test_nothing_has_changed() -> None:
    assert look(DIAMOND, {"t": 3, "u": 4}) == dict.fromkeys(DIAMOND, NOW)


def test_a_change_concerns_what_reads_it() -> None:
    assert look(DIAMOND, {"t": 3, "u": 5}).keys() == {"top", "right"}
    assert not look(DIAMOND, {"t": 4, "u": 4})
    assert not look(DIAMOND, {"t": 2, "u": 4})  # a table that was replaced may have fewer versions


def test_a_base_table_whose_version_is_unknown_has_perhaps_changed() -> None:
    assert look(DIAMOND, {"t": 3}).keys() == {"top", "right"}
    assert not look(DIAMOND, {"u": 4})


def test_what_reads_an_unsettled_table_waits_for_it() -> None:
    tables = {**DIAMOND, "right": replace(DIAMOND["right"], is_settled=False)}
    assert look(tables, {"t": 3, "u": 4}).keys() == {"top", "left"}


def test_a_stream_table_with_another_version_is_a_change() -> None:
    tables = {**DIAMOND, "top": replace(DIAMOND["top"], version=8)}
    assert look(tables, {"t": 3, "u": 4}).keys() == {"top"}


def test_a_table_that_is_not_due_keeps_what_reads_it_at_its_own_time() -> None:
    tables = {"nightly": seen("t", t=2, version=5), "joined": seen("t", "nightly", t=2, nightly=5)}
    assert look(tables, {"t": 9}, "nightly") == {"joined": T0}
    assert not look(tables, {"t": 9})
    moved = {**tables, "nightly": replace(tables["nightly"], version=6)}
    assert not look(moved, {"t": 9}, "nightly")


def test_inputs_that_do_not_agree_are_left_to_a_pass() -> None:
    tables = {
        "nightly": seen("t", t=2, version=5),
        "hourly": seen("t", t=3, version=1),
        "joined": seen("", "nightly hourly", nightly=5, hourly=1, _t=3),
    }
    assert look(tables, {"t": 3}, "nightly").keys() == {"hourly"}


def test_contents_from_the_future_are_left_to_a_pass() -> None:
    tables = {**DIAMOND, "left": replace(DIAMOND["left"], data_timestamp=NOW + timedelta(seconds=1))}
    assert look(tables, {"t": 3, "u": 4}).keys() == {"top", "right"}


def test_a_frontier_of_bases_that_moved_alone_is_left_to_a_pass() -> None:
    """A refresh of `top` found rows in `t` that it does not keep: nothing new to read, but a newer frontier."""
    tables = {"top": seen("t", t=4, version=7), "right": DIAMOND["right"]}
    assert look(tables, {"t": 4}).keys() == {"top"}


# Against passes of a model


@dataclass
class Model:
    """Stream tables as a pass refreshes them: each gets a new version if what it reads has one."""

    reads: dict[str, Reads]
    bases: dict[str, int]
    tables: dict[str, Seen] = field(default_factory=dict)

    def behind(self, name: str) -> set[str]:
        read = self.reads[name]
        return set(read.base).union(*(self.behind(source) for source in read.upstream))

    def inputs(self, name: str) -> dict[str, int | None]:
        read = self.reads[name]
        return {b: self.bases[b] for b in read.base} | {s: self.tables[s].version for s in read.upstream}

    def refresh(self, name: str, now: datetime) -> bool:
        """Bring a table to the newest versions, after all that it reads; whether there was anything to read."""
        before, inputs = self.tables.get(name), self.inputs(name)
        is_changed = before is None or before.frontier != inputs
        version = 0 if before is None or before.version is None else before.version + is_changed
        self.tables[name] = Seen(
            reads=self.reads[name],
            frontier={n: v for n, v in inputs.items() if v is not None},
            base_frontier={base: self.bases[base] for base in self.behind(name)},
            version=version,
            data_timestamp=now,
            is_settled=True,
        )
        return is_changed


@st.composite
def models(draw: st.DrawFn) -> Model:
    bases = ["t", "u", "v"]
    reads: dict[str, Reads] = {}
    for number in range(draw(st.integers(1, 7))):
        upstream = draw(st.sets(st.sampled_from(sorted(reads)), max_size=3)) if reads else set()
        base = draw(st.sets(st.sampled_from(bases), min_size=0 if upstream else 1))
        reads[f"s{number}"] = Reads(frozenset(base), frozenset(upstream))
    return Model(reads, dict.fromkeys(bases, 0))


@settings(max_examples=300)
@given(models(), st.data())
def test_a_pass_finds_nothing_to_do_where_nothing_has_changed(model: Model, data: st.DataObject) -> None:
    for name in model.reads:
        model.refresh(name, T0)
    for base in data.draw(st.sets(st.sampled_from(sorted(model.bases)))):
        model.bases[base] += 1
    found = unchanged(list(model.reads), model.tables, model.bases, NOW)
    for name in found:
        assert model.reads[name].upstream <= found.keys()
    for name in model.reads:
        is_changed = model.refresh(name, NOW)
        assert is_changed == (name not in found)  # no more, and no fewer: the model's frontiers always agree
