"""What a served table shall be."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kits.serving import served

if TYPE_CHECKING:
    from kits.shops import Shop
pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(("columns", "keys"), [(32, 1), (33, 0)])
def test_a_key_of_more_columns_than_an_index_has_is_none(shop: Shop, columns: int, keys: int) -> None:
    names = [f"k{i}" for i in range(columns)]
    table = served(shop, pa.schema([(n, pa.int64()) for n in names]), names, total=True)
    table.declare()
    assert len(table.run("SELECT 1 FROM pg_index WHERE indrelid = 'public.totals'::regclass AND indisunique")) == keys
    rows = [tuple(range(i, i + columns)) for i in range(4)]
    table.serve(*rows[:3])
    assert table.serve(*rows[1:]).mode == "DIFFERENTIAL"
    assert table.rows() == Counter(rows[1:])
