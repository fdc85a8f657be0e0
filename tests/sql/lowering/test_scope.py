from __future__ import annotations

from millstream.sql.lowering.scope import Namer


def test_names_are_unique_whatever_their_case() -> None:
    namer = Namer()
    assert [namer.fresh(n) for n in ("a", "A", "a_2", "a")] == ["a", "A_2", "a_2_2", "a_3"]


def test_names_are_plain() -> None:
    assert Namer().fresh("sum(a b)") == "sum_a_b_"


def test_names_never_look_reserved() -> None:
    assert Namer().fresh("__MS_w") == "_ms_w"
    assert Namer().fresh("x__ms_o") == "x_ms_o"
