"""Creating, altering and dropping stream tables."""

from __future__ import annotations

import dataclasses

import pytest

from kits.catalog import T0, Clock, base, definition, new_definition, new_table, outcome, reads, refreshed, start
from millstream.catalog import Catalog, Dependency, LakeObject, ObjectKind, SourceKind, Stage
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import Action, RefreshMode, RefreshStatus, Status

TOTALS = TableName.parse("totals")


def test_a_new_table_is_read_back_exactly(catalog: Catalog) -> None:
    new = new_table("sales.totals")
    made = catalog.create_stream_table(new)

    assert catalog.get(TableName.parse("sales.totals")) == made
    assert catalog.find_by_id(new.id) == made
    assert made.definition == new.definition
    assert made.stages == new.stages
    assert made.public_stage == new.stages[1]
    assert (made.status, made.is_populated, made.definition_version) == (Status.INITIALIZING, False, 1)
    assert (made.frontier, made.base_frontier, made.data_timestamp, made.open_refresh_id) == ({}, {}, None, None)
    assert made.created_at == made.updated_at == T0


def test_another_catalog_on_the_same_lake_sees_the_table_and_a_new_generation(location: str, clock: Clock) -> None:
    with Catalog.open(location, clock) as one, Catalog.open(location, clock) as two:
        before = two.generation()
        made = one.create_stream_table(new_table())
        assert two.generation() > before
        assert two.get(TOTALS) == made
        assert two.lake_id() == one.lake_id()


def test_names_are_taken_once(catalog: Catalog) -> None:
    catalog.create_stream_table(new_table())
    catalog.put_lake_object(LakeObject(kind=ObjectKind.VIEW, name=TableName.parse("v"), text="SELECT 1"))
    generation = catalog.generation()
    for name in ("totals", "v"):
        with pytest.raises(MillstreamError) as caught:
            catalog.create_stream_table(new_table(name))
        assert caught.value.code == Code.NAME_TAKEN
    assert catalog.generation() == generation  # a refusal leaves nothing behind
    assert len(catalog.list()) == 1


def test_list_is_ordered_by_name_and_complete(catalog: Catalog) -> None:
    made = [catalog.create_stream_table(new_table(n)) for n in ("b", "a", "s.c")]
    refreshed(catalog, made[0])
    assert [str(t.name) for t in catalog.list()] == ["a", "b", "s.c"]
    assert catalog.list() == tuple(catalog.get(t.name) for t in catalog.list())


def test_an_unknown_name(catalog: Catalog) -> None:
    assert catalog.find(TOTALS) is None
    for call in (
        lambda: catalog.get(TOTALS),
        lambda: catalog.alter_stream_table(TOTALS, schedule="2m"),
        lambda: catalog.drop_stream_table(TOTALS),
        lambda: catalog.history(TOTALS),
    ):
        with pytest.raises(MillstreamError) as caught:
            call()
        assert caught.value.code == Code.NOT_A_STREAM_TABLE


def test_alter_changes_only_what_is_given(catalog: Catalog, clock: Clock) -> None:
    made = catalog.create_stream_table(new_table())
    clock.pass_seconds(1)
    altered = catalog.alter_stream_table(TOTALS, schedule="5m")
    assert altered == dataclasses.replace(made, schedule="5m", updated_at=clock.now)
    altered = catalog.alter_stream_table(TOTALS, refresh_mode=RefreshMode.FULL)
    assert (altered.schedule, altered.refresh_mode, altered.definition_version) == ("5m", RefreshMode.FULL, 1)
    assert not altered.needs_reinit


def test_suspending_and_resuming(catalog: Catalog) -> None:
    made = catalog.create_stream_table(new_table())
    assert catalog.alter_stream_table(TOTALS, status=Status.SUSPENDED).status == Status.SUSPENDED
    assert catalog.alter_stream_table(TOTALS, status=Status.ACTIVE).status == Status.INITIALIZING  # never filled
    refreshed(catalog, made)
    for _ in range(2):
        intent = catalog.begin_refresh(start(made))
        catalog.fail_refresh(intent, MillstreamError(Code.REFRESH_FAILED, "no"), max_consecutive_errors=2)
    assert catalog.get(TOTALS).status == Status.ERROR
    resumed = catalog.alter_stream_table(TOTALS, status=Status.ACTIVE)
    assert (resumed.status, resumed.status_reason, resumed.consecutive_errors) == (Status.ACTIVE, None, 0)


@pytest.mark.parametrize("status", [Status.ERROR, Status.INITIALIZING])
def test_only_two_states_can_be_set(catalog: Catalog, status: Status) -> None:
    catalog.create_stream_table(new_table())
    with pytest.raises(MillstreamError) as caught:
        catalog.alter_stream_table(TOTALS, status=status)
    assert caught.value.code == Code.STATUS_INVALID


def test_a_new_definition_takes_effect_with_what_it_was_loaded_with(catalog: Catalog, clock: Clock) -> None:
    totals = catalog.create_stream_table(new_table())
    best = catalog.create_stream_table(new_table("best", reads(totals)))
    catalog.create_stream_table(new_table("very_best", reads(best)))
    catalog.create_stream_table(new_table("other"))
    refreshed(catalog, totals)
    catalog.mark_needs_reinit(totals.id, "for some reason")
    query = definition(base("other_orders"), original_query="SELECT 2")
    clock.pass_seconds(1)

    new = new_definition(
        totals, catalog.begin_load(start(totals)), definition=query, refresh_mode=RefreshMode.FULL, schedule="9m"
    )
    assert catalog.get(TOTALS).definition == totals.definition  # until then nothing has changed
    assert new.load is not None
    replaced = catalog.replace_stream_table(new)

    assert (replaced.definition, replaced.definition_version, replaced.stages) == (query, 2, new.stages)
    assert (replaced.refresh_mode, replaced.schedule, replaced.status) == (RefreshMode.FULL, "9m", Status.ACTIVE)
    assert (replaced.is_populated, replaced.frontier) == (True, new.load.intent.new_frontier)
    last = catalog.history(TOTALS)[0]
    assert (last.refresh_id, last.status) == (new.load.intent.refresh_id, RefreshStatus.COMPLETED)
    assert {str(t.name): t.needs_reinit for t in catalog.list()} == {
        "totals": False, "best": True, "very_best": True, "other": False,
    }  # fmt: skip
    assert catalog.dependents("orders") == (TableName.parse("other"),)


def test_a_new_definition_without_contents_was_never_refreshed(catalog: Catalog) -> None:
    totals = catalog.create_stream_table(new_table())
    refreshed(catalog, totals)
    replaced = catalog.replace_stream_table(new_definition(totals))
    assert (replaced.status, replaced.is_populated, replaced.data_timestamp) == (Status.INITIALIZING, False, None)
    assert (replaced.frontier, replaced.base_frontier, replaced.public_stage.version) == ({}, {}, None)
    assert len(catalog.history(TOTALS)) == 1


def test_a_mark_that_comes_while_it_is_loaded_outlives_that(catalog: Catalog) -> None:
    totals = catalog.create_stream_table(new_table())
    new = new_definition(totals, catalog.begin_load(start(totals, action=Action.REINITIALIZE)))
    catalog.mark_needs_reinit(totals.id, "meanwhile")
    assert catalog.replace_stream_table(new).reinit_reason == "meanwhile"


def test_a_new_definition_gives_up_a_refresh_that_was_cut_short(catalog: Catalog) -> None:
    made = catalog.create_stream_table(new_table())
    catalog.begin_refresh(start(made))
    replaced = catalog.replace_stream_table(new_definition(made, catalog.begin_load(start(made))))
    assert replaced.open_refresh_id is None
    assert catalog.open_intents() == ()
    assert {r.status for r in catalog.history(TOTALS)} == {RefreshStatus.COMPLETED, RefreshStatus.FAILED}
    catalog.begin_refresh(start(replaced))


def test_a_new_definition_of_a_table_that_was_created_again(catalog: Catalog) -> None:
    made = catalog.create_stream_table(new_table())
    new = new_definition(made, catalog.begin_load(start(made)))
    catalog.drop_stream_table(TOTALS)
    again = catalog.create_stream_table(new_table())
    with pytest.raises(MillstreamError) as caught:
        catalog.replace_stream_table(new)
    assert caught.value.code == Code.NOT_A_STREAM_TABLE
    assert catalog.get(TOTALS) == again


def test_what_fits_what_it_reads_again_is_no_new_query(catalog: Catalog) -> None:
    made = catalog.create_stream_table(new_table())
    best = catalog.create_stream_table(new_table("best", reads(made)))
    generation = catalog.generation()
    replaced = catalog.replace_stream_table(new_definition(made, is_altered=False))
    assert replaced.definition_version == 1
    assert not catalog.get(best.name).needs_reinit
    assert catalog.generation() > generation


def test_a_cycle_is_refused_with_its_path(catalog: Catalog) -> None:
    a = catalog.create_stream_table(new_table("a"))
    b = catalog.create_stream_table(new_table("b", reads(a)))
    c = catalog.create_stream_table(new_table("c", reads(b), base()))
    for source, path in ((c, "a -> c -> b -> a"), (a, "a -> a")):
        with pytest.raises(MillstreamError) as caught:
            catalog.replace_stream_table(new_definition(a, definition=definition(reads(source))))
        assert caught.value.code == Code.CYCLE
        assert path in caught.value.message
    assert catalog.get(a.name) == a


def test_a_source_dropped_meanwhile_is_noticed(catalog: Catalog) -> None:
    a = catalog.create_stream_table(new_table("a"))
    catalog.drop_stream_table(a.name)
    with pytest.raises(MillstreamError) as caught:
        catalog.create_stream_table(new_table("b", reads(a)))
    assert caught.value.code == Code.UNKNOWN_TABLE


def test_drop_forgets_everything_of_a_table(catalog: Catalog) -> None:
    made = catalog.create_stream_table(new_table())
    last = refreshed(catalog, made)
    catalog.begin_refresh(start(made))
    (dropped,) = catalog.drop_stream_table(TOTALS)
    assert (dropped.id, dropped.stages[0].version) == (made.id, 1)  # enough to delete its files
    assert catalog.list() == catalog.history() == catalog.open_intents() == catalog.dependents("orders") == ()
    again = catalog.create_stream_table(new_table())
    assert refreshed(catalog, again).refresh_id > last.refresh_id


def test_drop_refuses_while_others_read_the_table(catalog: Catalog) -> None:
    a = catalog.create_stream_table(new_table("a"))
    b = catalog.create_stream_table(new_table("b", reads(a)))
    catalog.create_stream_table(new_table("c", reads(b), reads(a)))
    catalog.create_stream_table(new_table("d"))
    assert catalog.dependents(a.name) == (TableName.parse("b"), TableName.parse("c"))
    with pytest.raises(MillstreamError) as caught:
        catalog.drop_stream_table(a.name)
    assert caught.value.code == Code.DEPENDENTS_EXIST
    assert "b, c" in caught.value.message
    assert [str(t.name) for t in catalog.drop_stream_table(a.name, cascade=True)] == ["c", "b", "a"]
    assert [str(t.name) for t in catalog.list()] == ["d"]


def test_a_function_of_a_tables_name_is_no_dependent(catalog: Catalog) -> None:
    function = Dependency(kind=SourceKind.FUNCTION, name="tax", source_id="tax")
    catalog.create_stream_table(new_table("totals", base(), function))
    assert catalog.dependents("tax") == ()
    assert catalog.get(TOTALS).definition.dependencies == (base(), function)


def test_a_mark_set_during_a_refresh_outlives_it(catalog: Catalog) -> None:
    made = catalog.create_stream_table(new_table())
    catalog.mark_needs_reinit(made.id, "SOURCE_CHANGED")
    intent = catalog.begin_refresh(start(made, action=Action.REINITIALIZE))
    catalog.mark_needs_reinit(made.id, "SOURCE_CHANGED_AGAIN")
    catalog.complete_refresh(intent, outcome(made))
    assert (catalog.get(TOTALS).needs_reinit, catalog.get(TOTALS).reinit_reason) == (True, "SOURCE_CHANGED_AGAIN")
    refreshed(catalog, made, action=Action.DIFFERENTIAL)
    assert catalog.get(TOTALS).needs_reinit  # a delta starts nothing over
    refreshed(catalog, made, action=Action.FULL)
    assert (catalog.get(TOTALS).needs_reinit, catalog.get(TOTALS).reinit_reason) == (False, None)


def test_malformed_records_cannot_be_made() -> None:
    stage = Stage(id="1", ordinal=0, path="/", is_public=True)
    with pytest.raises(ValueError, match="one public stage"):
        new_table(stages=(stage, dataclasses.replace(stage, ordinal=1)))
    with pytest.raises(ValueError, match="numbered from 0"):
        new_table(stages=(dataclasses.replace(stage, ordinal=1),))
    with pytest.raises(ValueError, match="twice"):
        definition(base(), base())
