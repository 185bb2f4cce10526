"""The checkers of chaos and kills: each thing that must not be is found in a history that was doctored to have it."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from support.chaos_checks import of_cancels, of_effects, of_logs, of_order, wrongly_ended
from support.e2e_history import History, StoredRun, problems
from support.e2e_viewer import Frames, Viewer

ANSWER = "Hello from the stub."


def segment(run_id: str, first: int, *events: dict[str, Any]) -> dict[str, Any]:
    lines = [json.dumps({"event_index": first + n, "run_id": run_id, **event}) for n, event in enumerate(events)]
    return {"run_id": run_id, "first_index": first, "last_index": first + len(lines) - 1, "payload": "\n".join(lines)}


def run(run_id: str, began: float, agent: str = "native", message: str = "hi", **more: Any) -> StoredRun:
    """A run that is as it must be: COMPLETED, in two segments, a second after it began."""
    row = {
        "id": run_id, "agent_id": agent, "session_id": "s", "status": "COMPLETED", "epoch": 1, "next_index": 4, "worker_id": None,
        "holds_session": False, "attempt": 1, "takeovers": 0, "idempotency_key": f"key of {run_id}",
        "input": json.dumps({"message": message}), "output": json.dumps({"content": ANSWER}), "error": None, "started_at": began,
        "finished_at": began + 1,
    }  # fmt: skip
    streamed = segment(run_id, 1, {"event": "RunContent", "content": "Hello from "}, {"event": "RunContent", "content": "the stub."})
    end = segment(run_id, 3, {"event": "RunCompleted", "content": ANSWER})
    return StoredRun(row | more, [segment(run_id, 0, {"event": "RunStarted"}), streamed, end])


def history() -> History:
    runs = [run("r1", 10.0), run("r2", 11.5), run("n1", 13.0, "effect", "note w1")]
    return History({found.row["id"]: found for found in runs}, {"s": 3}, "ok")


def seen(found: History, run_id: str = "r1") -> Viewer:
    """What a client was shown of a run."""
    viewer = Viewer("native", run_id)
    for index, line in enumerate(found.runs[run_id].lines):
        viewer._take(index, json.loads(line)["event"], line)
    return viewer


def put_event(found: History, segment_number: int, *events: dict[str, Any]) -> None:
    """Replace the events of a segment of r1."""
    segments = found.runs["r1"].segments
    segments[segment_number] = segment("r1", segments[segment_number]["first_index"], *events)


def lose_segment(found: History) -> None:
    del found.runs["r1"].segments[1]


def repeat_segment(found: History) -> None:
    found.runs["r1"].segments.insert(2, copy.deepcopy(found.runs["r1"].segments[1]))


def lose_last_event(found: History) -> None:
    found.runs["r1"].segments.pop()
    found.runs["r1"].row["next_index"] = 3


def add_event_after_end(found: History) -> None:
    put_event(found, 2, {"event": "RunCompleted", "content": ANSWER}, {"event": "RunContent", "content": ""})
    found.runs["r1"].row["next_index"] = 5


def lose_text(found: History) -> None:
    put_event(found, 1, {"event": "RunContent", "content": "Hello "}, {"event": "RunContent", "content": "the stub."})


def finish_call_twice(found: History) -> None:
    call = {"event": "ToolCallCompleted", "tool": {"tool_call_id": "c1"}}
    put_event(found, 0, {"event": "RunStarted"}, call, call)
    for number, shift in ((1, 2), (2, 2)):
        old = found.runs["r1"].segments[number]
        events = [{k: v for k, v in json.loads(line).items() if k != "event_index"} for line in old["payload"].split("\n")]
        found.runs["r1"].segments[number] = segment("r1", old["first_index"] + shift, *events)
    found.runs["r1"].row["next_index"] = 6


def put_foreign_event(found: History) -> None:
    found.runs["r1"].segments[0] = segment("r2", 0, {"event": "RunStarted"})


def put_row(**values: Any) -> Callable[[History], None]:
    return lambda found: found.runs["r1"].row.update(values)


DOCTORED: dict[str, tuple[Callable[[History], None], str]] = {
    "a segment is lost": (lose_segment, "a segment begins at 3, not 1"),
    "a segment is there twice": (repeat_segment, "a segment begins at 1, not 3"),
    "the end is lost": (lose_last_event, "its ends are []"),
    "something comes after the end": (add_event_after_end, "the last event RunContent"),
    "two ends": (lambda h: put_event(h, 2, {"event": "RunError"}), "its ends are ['RunError']"),
    "the log is shorter than the row says": (put_row(next_index=9), "the row says 9"),
    "streamed text is lost": (lose_text, "streamed"),
    "another answer": (lambda h: put_event(h, 2, {"event": "RunCompleted", "content": "Hello"}), "answered 'Hello'"),
    "a call finishes twice": (finish_call_twice, "the call c1 finished 2 times"),
    "an event of another run": (put_foreign_event, "an event of another run"),
    "it does not end": (put_row(status="RUNNING"), "has not ended: RUNNING"),
    "it keeps its session": (put_row(holds_session=True), "still holds its session"),
    "the row has another output": (put_row(output="{}"), "the row's output"),
    "two turns at once": (lambda h: h.runs["r2"].row.update(started_at=10.5), "r2 began before r1 had ended"),
    "a key made two runs": (lambda h: h.runs["r2"].row.update(idempotency_key="key of r1"), "key key of r1 made 2 runs"),
    "a run is not counted": (lambda h: h.sessions.update(s=2), "session s counts 2 runs, and has 3"),
    "a run is lost": (lambda h: h.runs.pop("r1") and h.sessions.update(s=2), "r1: a client knows it, the database does not"),
    "a broken file": (lambda h: setattr(h, "integrity", "row missing"), "integrity check: row missing"),
}  # fmt: skip


def test_a_history_that_is_as_it_must_be_has_no_problems() -> None:
    found = history()
    assert problems(found, [seen(found, run_id) for run_id in found.runs]) == []
    assert [*of_cancels(found, []), *of_order(found), *of_effects(found, ["w1"], ["w1"]), *wrongly_ended(found, [])] == []


@pytest.mark.parametrize("name", DOCTORED)
def test_what_is_wrong_in_a_history_is_told(name: str) -> None:
    doctor, sentence = DOCTORED[name]
    found = history()
    viewer = seen(found)
    doctor(found)
    assert any(sentence in problem for problem in problems(found, [viewer])), problems(found, [viewer])


def test_what_a_client_saw_otherwise_than_it_is_stored_is_told() -> None:
    found = history()
    viewer = seen(found)
    viewer.lines[1] = viewer.lines[1].replace(b"Hello", b"Hallo")
    assert problems(found, [viewer]) == ["r1: events [1] are stored otherwise than they were seen"]


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        (b"id: 0\nevent: RunStarted\ndata: {}\n\nid: 2\nevent: RunContent\ndata: {}\n\n", "event 2 came after 0"),
        (b"id: 0\nevent: RunStarted\ndata: {}\n\nid: 0\nevent: RunStarted\ndata: {}\n\n", "event 0 came after 0"),
        (b"id: 0\nevent: RunError\ndata: {}\n\nid: 1\nevent: RunContent\ndata: {}\n\n", "event 1 came after the end RunError"),
    ],
)
def test_a_stream_with_a_gap_a_repeat_or_more_after_its_end_is_told(frames: bytes, sentence: str) -> None:
    viewer = Viewer("native", "r1")
    for number, name, line in Frames().feed(frames):
        viewer._take(number, name, line)
    assert any(sentence in problem for problem in viewer.problems)


def test_a_cancelled_run_that_is_not_is_told() -> None:
    assert of_cancels(history(), ["r1", "gone"]) == [
        "r1 was answered CANCELLED, and is COMPLETED",
        "gone was answered CANCELLED, and is missing",
    ]


def test_a_turn_that_overtakes_an_earlier_one_is_told() -> None:
    found = history()
    found.runs["r2"].row["started_at"] = 9.0
    assert of_order(found) == ["in session s r2 began before r1, which was accepted before"]


def test_an_effect_made_twice_not_at_all_or_for_nobody_is_told() -> None:
    assert of_effects(history(), ["w1", "w1", "w2"], ["w1"]) == ["the effect w1 was made 2 times", "the effect w2 was asked for by nobody"]
    assert of_effects(history(), [], ["w1"]) == ["n1 is COMPLETED, and its effect was not made"]


def test_a_bug_in_a_log_is_told() -> None:
    assert of_logs(["all is well", "something\nTraceback (most recent call last)"]) == [
        "a log has 'Traceback': Traceback (most recent call last)"
    ]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"status": "ERROR"}, 1),
        ({"status": "CANCELLED"}, 1),
        ({"status": "CANCELLED", "id": "asked"}, 0),
        ({"status": "ERROR", "takeovers": 4}, 0),
        ({"status": "ERROR", "agent_id": "ext"}, 0),
    ],
)
def test_a_run_that_could_go_on_and_did_not_is_told(values: dict[str, Any], count: int) -> None:
    found = history()
    found.runs["r1"].row.update(values)
    assert len(wrongly_ended(found, ["asked"])) == count
