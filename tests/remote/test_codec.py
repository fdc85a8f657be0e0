"""Every value that a call returns comes back as it was, and nothing else can be sent or created."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from kits.cli_stand_in import StandIn
from millstream import results
from millstream.errors import Code, MillstreamError, Position
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.remote.codec import RECORDS, decode, encode
from millstream.results import Action, Portion, RefreshOutcome, RefreshResult

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
RESULT = RefreshResult(Action.DIFFERENTIAL, 1, 2, 3, 4.5, "small", {"orders": 7, "shop.public.items": 2**60})


def sent(value: object) -> object:
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 2**70, -0.5, "", "a\nb\u2028\u00e9", [], [1, [None]], (1, ("x",)), frozenset({"a"})),
        *(Decimal("1.200"), Decimal("NaN"), b"\x00\xff", date(2024, 2, 29), NOW, NOW.replace(tzinfo=None), NOW.time()),
        *({}, {"$tuple": 1}, {1: {"k": [Decimal(1)]}}, {("a", 1): 2}, math.inf),
        RESULT,
        Event.of(EventName.REFRESH_COMPLETED, NOW, TableName.parse("t"), refresh_id=3),
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    back = sent(value)
    if value == value:
        assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_an_error_keeps_its_code_hint_and_position() -> None:
    error = MillstreamError(Code.SYNTAX_ERROR, "no", hint="yes", position=Position(2, 3, 4), sql="a\nbcdefgh")
    outcome = sent(RefreshOutcome("t", RESULT, error))
    assert isinstance(outcome, RefreshOutcome)
    assert outcome.error is not None
    assert (outcome.result, str(outcome.error)) == (RESULT, str(error))
    assert outcome.error.code is Code.SYNTAX_ERROR


def test_progress_keeps_its_share() -> None:
    back = sent(Portion.of("reading", 1, 4))
    assert isinstance(back, Portion)
    assert (back, back.share) == ("reading", 0.25)


def test_a_row_inside_a_row_becomes_a_map_and_what_is_unknown_its_text() -> None:
    class Row(tuple):  # type: ignore[type-arg] # as Spark's
        def asDict(self) -> dict[str, object]:
            return {"a": 1}

    assert sent(Row((1,))) == {"a": 1}
    assert sent(NOW - NOW) == "0:00:00"


def test_every_record_that_calls_return_can_be_sent() -> None:
    """A new record of `results` fails here until it is listed."""
    records = {
        name
        for name, kind in vars(results).items()
        if dataclasses.is_dataclass(kind) and kind.__module__ == results.__name__
    }
    assert records <= RECORDS
    lake = StandIn()
    for value in (lake.status(), lake.refresh_stats(), lake.refresh_history(), lake.explain("t"), lake.sources()):
        assert sent(value) == value


@pytest.mark.parametrize(
    "data", [{"$record": ["Settings", []]}, {"$enum": ["Code", "CYCLE"]}, {"$pickle": ""}, {"a": 1, "b": 2}, {}]
)
def test_what_was_not_encoded_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a"):
        decode(data)


def test_what_no_call_returns_is_not_sent() -> None:
    with pytest.raises(TypeError):
        encode(TableName.parse("t"))
