"""Messages that every provider takes, whatever was interrupted; checkpoints and branches."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.domain.branch import lineage
from waystation.domain.checkpoint import checkpoints, cut, parse_continue_from
from waystation.domain.message import INTERRUPTED, FunctionCall, Message, ToolCall, repaired, safe_cut
from waystation.errors import InvalidCheckpointError, InvalidInputError


def calls(*ids: str) -> Message:
    asked = tuple(ToolCall(id=id, function=FunctionCall(name="t")) for id in ids)
    return Message(id=f"calls-{'-'.join(ids)}", role="assistant", tool_calls=asked or None)


def result(id: str) -> Message:
    return Message(id=f"result-{id}", role="tool", tool_call_id=id, content=f"result {id}")


def said(role: str, text: str = "x") -> Message:
    return Message(id=f"{role}-{text}", role=role, content=text)  # type: ignore[arg-type]


U, A = said("user"), said("assistant")


def shape(messages: list[Message]) -> list[str]:
    return [m.tool_call_id + ("?" if m.content == INTERRUPTED else "") if m.tool_call_id else m.role for m in messages]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], []),
        ([U, A], ["user", "assistant"]),
        ([U, calls("a", "b"), result("a"), result("b"), A], ["user", "assistant", "a", "b", "assistant"]),
        ([U, calls("a", "b"), result("b"), result("a")], ["user", "assistant", "a", "b"]),
        ([U, calls("a", "b"), result("a"), U], ["user", "assistant", "a", "b?", "user"]),
        ([U, calls("a")], ["user", "assistant", "a?"]),
        ([result("a"), U], ["user"]),
        ([U, calls("a"), result("a"), result("x"), result("a")], ["user", "assistant", "a"]),
        ([U, calls("a"), U, result("a")], ["user", "assistant", "a?", "user"]),
        ([calls("a"), calls("b"), result("b")], ["assistant", "a?", "assistant", "b"]),
    ],
)
def test_each_call_is_followed_by_its_results(messages: list[Message], expected: list[str]) -> None:
    assert shape(repaired(messages)) == expected


IDS = st.lists(st.sampled_from("abcd"), max_size=3, unique=True)
MESSAGES = st.lists(
    st.one_of(st.just(U), st.just(A), st.just(said("system")), IDS.map(lambda ids: calls(*ids)), st.sampled_from("abcd").map(result)),
    max_size=12,
)


def parted(messages: list[Message]) -> bool:
    """Whether a call is without its results, or a result without its call, at any place."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not waiting or message.tool_call_id != waiting.pop(0):
                return True
        elif waiting:
            return True
        else:
            waiting = [call.id for call in message.tool_calls or ()]
    return bool(waiting)


@given(MESSAGES)
def test_repaired_messages_are_always_valid_and_lose_nothing_but_stray_results(messages: list[Message]) -> None:
    whole = repaired(messages)
    assert not parted(whole)
    assert repaired(whole) == whole
    assert [m for m in whole if m.role != "tool"] == [m for m in messages if m.role != "tool"]


@given(MESSAGES, st.data())
def test_a_cut_of_valid_messages_is_valid_and_never_past_its_point(messages: list[Message], data: Any) -> None:
    whole = repaired(messages)
    point = data.draw(st.integers(0, len(whole)))
    count = safe_cut(whole, point)
    assert 0 <= count <= point
    assert not parted(whole[:count])


@given(MESSAGES, st.data())
def test_a_cut_of_any_messages_parts_no_result_from_its_call(messages: list[Message], data: Any) -> None:
    point = data.draw(st.integers(0, len(messages)))
    count = safe_cut(messages, point)
    assert count == len(messages) or count == 0 or messages[count].role != "tool"


@pytest.mark.parametrize("text", ["\n", "\r", "\u2028", "a\nb"])
def test_an_encoded_message_is_one_line(text: str) -> None:
    encoded = said("user", text).encode()
    assert "\n" not in encoded
    assert Message.model_validate_json(encoded).content == text


# ---- checkpoints -------------------------------------------------------------------------------------------------------------

LONG = [U, calls("a", "b"), result("a"), result("b"), A, said("user", "2"), calls("c"), result("c"), said("assistant", "2")]


@pytest.mark.parametrize(
    ("point", "count"),
    [("end", 9), ("last_user", 6), (0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (6, 6), (7, 6), (8, 8), (9, 9)],
)
def test_a_continuation_takes_over_no_more_than_asked_for_and_parts_no_call_from_its_results(point: Any, count: int) -> None:
    assert cut(LONG, point) == count


@pytest.mark.parametrize("point", [-1, 10, 10**9])
def test_a_point_outside_of_the_messages_is_refused(point: int) -> None:
    with pytest.raises(InvalidCheckpointError):
        cut(LONG, point)


def test_without_a_user_message_there_is_no_last_one() -> None:
    with pytest.raises(InvalidCheckpointError):
        cut([A], "last_user")


def test_checkpoints_are_behind_each_batch_of_results_and_at_the_end() -> None:
    found = checkpoints(LONG)
    assert [(c.message_index, c.reason, c.is_latest) for c in found] == [
        (4, "checkpoint", False), (8, "checkpoint", False), (9, "end", True),
    ]  # fmt: skip
    assert checkpoints([]) == []


@given(MESSAGES)
def test_every_checkpoint_is_a_place_to_cut(messages: list[Message]) -> None:
    whole = repaired(messages)
    assert [cut(whole, c.message_index) for c in checkpoints(whole)] == [c.message_index for c in checkpoints(whole)]


@pytest.mark.parametrize(("text", "point"), [("end", "end"), ("last_user", "last_user"), ("7", 7), ("-1", -1), (3, 3), ("007", 7)])
def test_a_point_is_read(text: Any, point: Any) -> None:
    assert parse_continue_from(text) == point


@pytest.mark.parametrize("text", ["", "-", "--5", "+5", "5 ", "5\n", "1.0", "1e3", "END", "first", "²", "٣", "9" * 13])
def test_what_is_no_point_is_malformed(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_continue_from(text)


# ---- branches ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    id: str
    forked_from_run_id: str | None = None


@pytest.mark.parametrize(
    ("turns", "branch"),
    [
        ("", ""),
        ("1 2 3", "1 2 3"),
        ("1 2 3<2", "1 3"),
        ("1 2 3 4<1", "4"),
        ("1 2 3<2 4", "1 3 4"),
        ("1 2 3<2 4<3", "1 4"),
        ("1 2 3<2 4 5<3", "1 5"),
        ("1 2 3<1 4 5<2", "1 5"),
        ("2<1 3", "2 3"),
    ],
)
def test_the_conversation_goes_on_before_the_source_of_a_sibling(turns: str, branch: str) -> None:
    oldest_first = [Turn(*word.split("<")) for word in turns.split()]
    assert " ".join(turn.id for turn in lineage(oldest_first[::-1])) == branch
