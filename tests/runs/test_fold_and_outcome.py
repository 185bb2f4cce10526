"""What the events of a run add up to, and how a leg ends: pure functions, as tables."""

from typing import Any

import pytest

from support.api_agents import SmallAgent, gated
from waystation.agents.turn import StopReason, TurnResult
from waystation.domain.event import (
    CustomEvent,
    Envelope,
    Event,
    ModelRequestCompleted,
    ModelRequestStarted,
    RunContent,
    RunPaused,
    ToolCallCompleted,
    ToolCallStarted,
)
from waystation.domain.lifecycle import RunStatus
from waystation.domain.metrics import Metrics
from waystation.domain.requirement import ToolExecution
from waystation.domain.retry import RetryPolicy
from waystation.domain.run import Run, RunFailure, RunInput
from waystation.errors import AgentError
from waystation.runs import outcome
from waystation.runs.fold import Fold

USED = ModelRequestCompleted(model="m", model_provider="p", input_tokens=10, output_tokens=2, total_tokens=12)
ENVELOPE = Envelope(run_id="r", session_id="s", agent_id="a", agent_name="A")


def tool(call_id: str, **fields: Any) -> dict[str, Any]:
    return ToolExecution(tool_call_id=call_id, tool_name="t", **fields).model_dump(mode="json")


def retry(discard_from: int) -> CustomEvent:
    return CustomEvent(warning={"type": "retry", "discard_from": discard_from})


def folded(*events: Event, first: int = 1) -> Fold:
    fold = Fold(Metrics())
    for index, event in enumerate(events, first):
        fold.add(event, index)
    return fold


def restored(*events: Event, metrics: Metrics | None = None) -> Fold:
    fold = Fold(metrics or Metrics())
    for index, event in enumerate(events, 1):
        fold.restore(ENVELOPE.line(event, index, 0.0))
    return fold


def test_text_and_reasoning_are_those_of_the_attempt_that_counts() -> None:
    a, b = RunContent(content="a", reasoning_content="x"), RunContent(content="b")
    assert (folded(a, b).text, folded(a, b).reasoning) == ("ab", "x")
    assert (folded(a, retry(1), b).text, folded(a, retry(1), b).reasoning) == ("b", None)
    assert folded(a, retry(1), b, retry(3), a).text == "a"
    assert folded(a, CustomEvent(warning={"type": "takeover", "discard_from": 2}), b).text == "ab"


def test_a_retry_moves_the_place_from_which_content_counts() -> None:
    assert folded(RunContent(content="a"), retry(1)).content_from == 3
    assert folded(RunContent(content="a"), retry(1), RunContent(content="b"), retry(3)).content_from == 5
    assert folded(RunContent(content="a"), retry(1)).waits_for_attempt
    assert not folded(retry(1), RunContent(content="b")).waits_for_attempt


def test_calls_are_kept_once_and_those_without_an_end_are_known() -> None:
    """B115: also over a retry."""
    done = ToolCallCompleted(tool=tool("1", result="r", tool_call_error=False))
    fold = folded(ToolCallStarted(tool=tool("1")), done, retry(1), ToolCallStarted(tool=tool("2")))
    assert list(fold.tools) == ["1", "2"] and fold.tools["1"].result == "r" and fold.started_calls == {"2"}


def test_a_request_without_an_end_is_known_by_its_place() -> None:
    assert folded(ModelRequestStarted(), RunContent(content="a")).open_request_at == 1
    assert folded(ModelRequestStarted(), USED).open_request_at is None


def test_tokens_of_each_request_are_counted_once_also_when_the_log_is_read_again() -> None:
    """B123: what the row holds already is not added again."""
    assert folded(USED, USED).metrics.totals().total_tokens == 24
    row = folded(USED).metrics
    for end in (RunPaused(content="", tools=[], requirements=[]), retry(1)):
        assert restored(USED, end, metrics=row).metrics.totals().total_tokens == 12
        assert restored(USED, end, USED, metrics=row).metrics.totals().total_tokens == 24
    assert restored(USED).metrics.totals().total_tokens == 12, "the process died before the row was written"


def test_an_event_of_a_newer_version_is_passed_over() -> None:
    fold = Fold(Metrics())
    fold.restore(b'{"event":"RunDreamt","event_index":1,"created_at":0,"x":1}')
    assert fold.last_event is None


# ---- outcomes -------------------------------------------------------------------------------------------------------------------


def leg(*events: Event, agent: SmallAgent | None = None, **changes: Any) -> outcome.Leg:
    values: dict[str, Any] = {"max_attempts": 3, "metadata": {"mine": 1}, "epoch": 1, "next_index": 1}
    run = Run(
        id="r", agent_id="small", session_id="s", user_id=None, status=RunStatus.RUNNING, input=RunInput(message="hi"), created_at=0,
        **{**values, **changes},
    )  # fmt: skip
    fold, chosen = folded(*events), agent or gated("small")[0]
    return outcome.Leg(run=run, agent=chosen, fold=fold, next_index=len(events) + 1, at=100.0, duration_s=2.0)


def test_a_result_that_says_nothing_is_what_the_events_said() -> None:
    end = outcome.completed(leg(RunContent(content="a"), USED), TurnResult())
    assert (end.run.status, end.run.output.content, end.event.content) == ("COMPLETED", "a", "a")
    assert end.finish.usage["total_tokens"] == 12 and not end.finish.holds_session and end.finish.metadata is None


def test_event_status_output_and_sums_are_made_of_the_same_values() -> None:
    end = outcome.completed(leg(USED), TurnResult(content={"x": float("nan"), "a\x00": "\ud800"}, content_type="Y", metadata={"k": 1}))
    assert end.run.output.content == end.event.content == {"x": None, "a\ufffd": "\ufffd"}
    assert end.event.metrics["total_tokens"] == end.run.metrics.totals().total_tokens == 12
    assert end.run.metadata == {"mine": 1, "k": 1} and end.run.finished_at == 100.0


def test_a_failed_run_says_its_error_and_keeps_its_tools() -> None:
    failure = RunFailure(type="x", message="It failed.", retryable=True)
    end = outcome.failed(leg(RunContent(content="text"), ToolCallStarted(tool=tool("1"))), failure)
    assert (end.run.status, end.run.output.content, end.event.content) == ("ERROR", "It failed.", "It failed.")
    assert [t.tool_call_id for t in end.run.output.tools] == ["1"]
    assert end.event.additional_data == {"retryable": True, "attempts": 1}


def test_a_cancelled_run_keeps_what_it_said_and_used() -> None:
    """B30, B123."""
    end = outcome.cancelled(leg(RunContent(content="text"), USED))
    assert (end.run.status, end.run.output.content, end.event.content) == ("CANCELLED", "text", "text")
    assert end.finish.usage["total_tokens"] == 12


def test_a_retry_waits_keeps_its_session_and_voids_what_was_said() -> None:
    agent = SmallAgent(gated()[1].turn, retry=RetryPolicy(attempts=3, delay_s=4, exponential=True))
    warning, end = outcome.retried(leg(RunContent(content="a"), agent=agent, attempt=2), RunFailure(type="x", message="m"))
    assert (warning.warning["attempt"], warning.warning["attempts"], warning.warning["discard_from"]) == (2, 3, 1)
    assert (end.event, end.run.status, end.run.attempt, end.finish.attempt) == (None, "PENDING", 3, 3)
    assert (end.finish.available_at, end.finish.holds_session) == (108.0, True)


def test_only_what_an_agent_says_in_words_is_told() -> None:
    """B98."""
    said = outcome.failure_of(AgentError("No credit\x00.", error_type="billing", retryable=True))
    assert (said.type, said.message, said.retryable) == ("billing", "No credit\ufffd.", True)
    inside = outcome.failure_of(RuntimeError("postgresql://user:secret@host"))
    assert inside.type == "internal_error" and "secret" not in inside.message and not inside.retryable


@pytest.mark.parametrize("reason", list(StopReason))
def test_each_reason_to_stop_has_one_end(reason: StopReason) -> None:
    ends_in_error = {StopReason.TIMEOUT: "timeout", StopReason.STORE: "store_unavailable"}
    stopped = outcome.STOPS.get(reason)
    assert (stopped.type if stopped else None) == ends_in_error.get(reason)


def test_the_time_of_all_legs_is_added_and_the_first_token_is_that_of_the_first() -> None:
    before = Metrics(duration=3.0, time_to_first_token=0.5)
    end = outcome.completed(leg(metrics=before), TurnResult())
    assert (end.run.metrics.duration, end.run.metrics.time_to_first_token) == (5.0, 0.5)
