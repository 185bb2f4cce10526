"""Events as lines: one line each, valid JSON, storable, whatever is in them."""

import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.domain.event import (
    EVENTS,
    LEG_ENDS,
    CustomEvent,
    Envelope,
    Event,
    RunCompleted,
    RunContent,
    RunStarted,
    Segment,
    ToolCallCompleted,
    decode,
    name_of,
)

ENVELOPE = Envelope(run_id="r", session_id="s", agent_id="a", agent_name="Ä\u2028")
FIXED = {
    "event_index": 7, "created_at": 12, "agent_id": "a", "agent_name": "Ä\u2028", "run_id": "r", "session_id": "s", "nested_depth": 0,
}  # fmt: skip


def line_of(event: Event) -> bytes:
    return ENVELOPE.line(event, 7, 12.9)


def is_one_line(line: bytes) -> bool:
    return len(line.decode().splitlines()) == 1


def test_a_line_begins_with_name_and_index_and_holds_envelope_and_event() -> None:
    line = line_of(RunContent(content="hi"))
    assert line.startswith(b'{"event":"RunContent","event_index":7,')
    assert json.loads(line) == {"event": "RunContent", **FIXED, "content": "hi", "content_type": "str"}


def test_an_event_without_fields_is_its_envelope() -> None:
    assert json.loads(line_of(EVENTS["RunContinued"]())) == {"event": "RunContinued", **FIXED}


@pytest.mark.parametrize("text", ["\n", "\r", "\r\n", "\x0b\x0c", "\x1c\x1d\x1e", "\x85", "\u2028", "\u2029", "a\u2028\x85\u2029b"])
def test_no_end_of_line_of_any_reader_is_in_a_line_and_none_is_lost(text: str) -> None:
    line = line_of(RunContent(content=text))
    assert is_one_line(line)
    assert json.loads(line)["content"] == text


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x00b", "a\ufffdb"), ("\ud800x", "\ufffdx"), ("\ud83d\ude00", "😀"), ("\\u0000", "\\u0000"), ("上海", "上海")]
)
def test_what_can_not_be_stored_is_replaced_visibly(text: str, shown: str) -> None:
    assert json.loads(line_of(RunCompleted(content=text)))["content"] == shown


def test_text_is_readable_in_a_line() -> None:
    assert "上海".encode() in line_of(RunContent(content="上海"))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"x": math.nan, "y": [math.inf, -math.inf], "z": None}, {"x": None, "y": [None, None], "z": None}),
        ({"a\x00": "\ud800"}, {"a\ufffd": "\ufffd"}),
        (2**70, 2**70),
        ({"at": datetime.date(2026, 1, 2)}, {"at": "2026-01-02"}),
    ],
)
def test_any_content_becomes_valid_json(content: Any, shown: Any) -> None:
    assert json.loads(line_of(RunCompleted(content=content)), parse_constant=pytest.fail)["content"] == shown


def test_nulls_inside_a_tool_call_are_kept_and_those_of_the_event_are_not() -> None:
    body = json.loads(line_of(ToolCallCompleted(content=None, tool={"tool_args": {"x": None, "y": math.nan}})))
    assert "content" not in body
    assert body["tool"] == {"tool_args": {"x": None, "y": None}}


def test_bytes_in_a_result_do_not_break_the_log() -> None:
    assert json.loads(line_of(RunCompleted(content={"raw": b"\xff\xfe"})))["event"] == "RunCompleted"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_result_that_is_nested_very_deep_does_not_break_the_log() -> None:
    assert json.loads(line_of(RunCompleted(content=nested(1_000))))["event"] == "RunCompleted"


def test_a_result_that_holds_itself_does_not_break_the_log() -> None:
    value: list[Any] = []
    value.append(value)
    assert json.loads(line_of(RunCompleted(content=value)))["event"] == "RunCompleted"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_every_line_is_one_line_of_valid_utf8_json_without_nul(content: Any) -> None:
    line = line_of(RunCompleted(content=content))
    assert is_one_line(line)
    assert "\x00" not in json.dumps(json.loads(line, parse_constant=pytest.fail), ensure_ascii=False).replace("\\u0000", "\x00")


@given(st.sampled_from(["hi", "", "\u2028", "a\nb"]))
def test_an_event_is_read_back_as_it_was(text: str) -> None:
    assert decode(line_of(RunContent(content=text))) == (7, RunContent(content=text))


def test_an_event_of_a_newer_version_is_read_without_its_content() -> None:
    assert decode(b'{"event":"Unheard","event_index":3,"x":1}') == (3, None)


def test_a_custom_event_keeps_its_own_fields() -> None:
    assert decode(line_of(CustomEvent(warning={"a": 1}, more=[1]))) == (7, CustomEvent(warning={"a": 1}, more=[1]))


def test_four_events_end_a_leg() -> None:
    assert {"RunCompleted", "RunError", "RunCancelled", "RunPaused"} == LEG_ENDS


# ---- segments ----------------------------------------------------------------------------------------------------------------

LINES = [ENVELOPE.line(event, index, 1.0) for index, event in enumerate([RunStarted(), RunContent(content="a\nb"), RunCompleted()], 4)]
SEGMENT = Segment.stored(4, 6, b"\n".join(LINES).decode())


def test_a_stored_segment_knows_whether_it_ends_a_leg() -> None:
    assert SEGMENT.ends_leg
    assert not Segment.stored(4, 5, b"\n".join(LINES[:2]).decode()).ends_leg


def test_each_event_of_a_segment_comes_with_index_and_name() -> None:
    assert list(SEGMENT.each()) == [(4, "RunStarted", LINES[0]), (5, "RunContent", LINES[1]), (6, "RunCompleted", LINES[2])]
    assert name_of(LINES[1]) == "RunContent"


@pytest.mark.parametrize(("index", "first"), [(-1, 4), (3, 4), (4, 5), (5, 6)])
def test_the_part_of_a_segment_behind_an_index(index: int, first: int) -> None:
    part = SEGMENT.after(index)
    assert (part.first_index, part.last_index, part.ends_leg) == (first, 6, True)
    assert part.lines.split(b"\n") == LINES[first - 4 :]
