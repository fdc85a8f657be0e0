"""Random results served one after the other: after each step the table holds exactly the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from kits.serving import BAG, KEYED, Row, served
from kits.shops import Shop
from millstream.sinks.postgres.target import UserTriggers

pytestmark = pytest.mark.postgres

NUMBER = st.none() | st.integers(0, 3)
GROUPS = st.dictionaries(NUMBER, st.integers(0, 2) | st.none(), max_size=5).map(lambda d: list(d.items()))
PAIRS = st.dictionaries(st.tuples(st.sampled_from(["x", "y", None]), NUMBER), st.just(0), max_size=6).map(
    lambda d: list(d)
)
ROWS = st.lists(st.tuples(st.sampled_from(["x", "y\t\\N", "", None]), NUMBER), max_size=7)
TRIGGERS = st.sampled_from(["none", "audit", "alter"])
MEDDLING = st.sampled_from(["nothing", "nothing", "VACUUM FULL public.{}", "VACUUM public.{}"])


@dataclass(frozen=True)
class Step:
    """The next result, whether it is a full one, or large, whether it is served at once, and what others do before."""

    rows: Sequence[Row]
    full: bool
    is_large: bool
    is_served: bool
    meddling: str


def steps(rows: st.SearchStrategy[list[Row]]) -> st.SearchStrategy[list[Step]]:
    kinds = (st.sampled_from([True, False, False]), st.booleans(), st.sampled_from([True, True, False]))
    return st.lists(st.builds(Step, rows, *kinds, MEDDLING), max_size=6)


def check(shop: Shop, schema: object, key: list[str] | None, off: bool, triggers: str, given_steps: list[Step]) -> None:
    name = f"t{next(NUMBERS)}"
    t = served(shop, schema, key, triggers=UserTriggers.OFF if off else UserTriggers.AUTO, name=name)  # type: ignore[arg-type]
    t.serve()
    if triggers != "none":
        when = "BEFORE" if triggers == "alter" else "AFTER"
        t.run(
            # one that alters nothing and yet might: rows are matched by their places
            f"CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$",
            f"CREATE TRIGGER f {when} INSERT OR UPDATE OR DELETE ON public.{name} "
            f"FOR EACH ROW EXECUTE FUNCTION public.{name}()",
        )
    for step in given_steps:
        if step.meddling != "nothing":
            t.run(step.meddling.format(name))
        t.feed.is_large = step.is_large
        t.put(*step.rows, full=step.full)
        if step.is_served:
            t.again()
            assert t.rows() == Counter(step.rows)
    t.again()
    assert t.rows() == t.feed.versions[-1]
    t.run(f"DROP TABLE public.{name}")


NUMBERS = iter(range(1_000_000))
FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(off=st.booleans(), triggers=TRIGGERS, given_steps=steps(GROUPS))
def test_keyed_by_one_column(shop: Shop, off: bool, triggers: str, given_steps: list[Step]) -> None:
    check(shop, KEYED, ["k"], off, triggers, given_steps)


@FEW
@given(off=st.booleans(), triggers=TRIGGERS, given_steps=steps(PAIRS))
def test_keyed_by_all_columns(shop: Shop, off: bool, triggers: str, given_steps: list[Step]) -> None:
    check(shop, BAG, ["a", "b"], off, triggers, given_steps)


@FEW
@given(off=st.booleans(), triggers=TRIGGERS, given_steps=steps(ROWS))
def test_bags(shop: Shop, off: bool, triggers: str, given_steps: list[Step]) -> None:
    check(shop, BAG, None, off, triggers, given_steps)


@FEW
@given(given_steps=steps(ROWS))
def test_bags_that_a_trigger_makes_all_alike(shop: Shop, given_steps: list[Step]) -> None:
    """All rows look the same, so only the right number of them can be seen; full steps bring their true values."""
    name = f"t{next(NUMBERS)}"
    t = served(shop, BAG, None, name=name)
    t.serve()
    t.run(
        f"CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.a := 'same'; NEW.b := 0; RETURN NEW; END $$",
        f"CREATE TRIGGER f BEFORE INSERT ON public.{name} FOR EACH ROW EXECUTE FUNCTION public.{name}()",
    )
    for step in given_steps:
        t.feed.is_large = step.is_large
        done = t.serve(*step.rows, full=step.full)
        if done.mode == "FULL":
            assert t.rows() == Counter(step.rows)
        else:
            assert t.rows().total() == len(step.rows)
        assert t.rows() - Counter({("same", 0): 100}) - Counter(step.rows) == Counter()
    t.serve()
    assert t.rows() == Counter()
    t.run(f"DROP TABLE public.{name}")
