"""Rows of a bag that are removed, identified by one column alone."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream import naming
from millstream.engine.storage import rows_to_remove

ROWS = st.tuples(st.one_of(st.none(), st.integers(0, 4)), st.sampled_from("xy"))


@st.composite
def bags(draw: st.DrawFn) -> tuple[list[tuple[int | None, str]], Counter[tuple[int | None, str]]]:
    """Stored rows, and some of them that go."""
    stored = draw(st.lists(ROWS, min_size=1, max_size=12))
    going = draw(st.lists(st.sampled_from(range(len(stored))), unique=True, min_size=1))
    return stored, Counter(stored[i] for i in going)


@given(bags())
def test_the_right_rows_or_none(bag: tuple[list[tuple[int | None, str]], Counter[tuple[int | None, str]]]) -> None:
    stored, going = bag
    wanted = pa.table(
        {
            "k": pa.array([k for k, _ in going], pa.int64()),
            "s": [s for _, s in going],
            naming.WEIGHT: [-n for n in going.values()],
        }
    )
    values = {k for k, _ in going}
    places = [i for i, (k, _) in enumerate(stored) if k in values]
    found = pa.table(
        {
            "k": pa.array([stored[i][0] for i in places], pa.int64()),
            naming.FILE: pa.array(["f"] * len(places), pa.string()),
            naming.ROW: pa.array(places, pa.int64()),
        }
    )
    removed = rows_to_remove(wanted, found, ["k", "s"])
    if len(places) > going.total():
        assert removed is None, "another row shares a value: one column is not enough"
        return
    assert removed is not None
    assert Counter(zip(removed["k"].to_pylist(), removed["s"].to_pylist(), strict=True)) == going
    left = [row for i, row in enumerate(stored) if i not in set(removed[naming.ROW].to_pylist())]
    assert Counter(left) == Counter(stored) - going
