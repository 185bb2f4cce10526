"""Messages of the SDK as events, and its totals as usage."""

from typing import Any

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

from support.claude_emitter import MemoryEmitter
from waystation.agents.claude.errors import from_result
from waystation.agents.claude.home import CostState
from waystation.agents.claude.translate import Translator, result_text, usage_of
from waystation.domain.event import CustomEvent, RunContent
from waystation.domain.metrics import ModelUsage

MODEL = "claude-sonnet-4-6"


@pytest.fixture
def emit() -> MemoryEmitter:
    return MemoryEmitter()


@pytest.fixture
def translator(emit: MemoryEmitter) -> Translator:
    return Translator(emit)


def start(message_id: str) -> StreamEvent:
    return streamed({"type": "message_start", "message": {"id": message_id}})


def block_start() -> StreamEvent:
    return streamed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})


def piece(text: str) -> StreamEvent:
    return streamed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})


def thought(text: str) -> StreamEvent:
    return streamed({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}})


def streamed(event: dict[str, Any]) -> StreamEvent:
    return StreamEvent(uuid="u", session_id="s", event=event)


def whole(message_id: str, *blocks: Any, parent: str | None = None) -> AssistantMessage:
    return AssistantMessage(content=list(blocks), model=MODEL, message_id=message_id, parent_tool_use_id=parent)


def tool_result(call_id: str, content: Any, *, is_error: bool | None = None) -> UserMessage:
    return UserMessage(content=[ToolResultBlock(tool_use_id=call_id, content=content, is_error=is_error)])


def result(**fields: Any) -> ResultMessage:
    known = {"subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1, "session_id": "s"}
    return ResultMessage(**known | fields)


def test_streamed_text_is_not_told_again_by_the_whole_message(translator: Translator, emit: MemoryEmitter) -> None:
    for message in (start("m1"), block_start(), piece("Hel"), piece("lo"), whole("m1", TextBlock(text="Hello"))):
        translator.take(message)

    assert emit.events == [RunContent(content="Hel"), RunContent(content="lo")]


def test_whole_message_adds_what_no_piece_has_brought(translator: Translator, emit: MemoryEmitter) -> None:
    for message in (start("m1"), block_start(), piece("Hel"), whole("m1", TextBlock(text="Hello"))):
        translator.take(message)

    assert emit.events == [RunContent(content="Hel"), RunContent(content="lo")]


def test_message_without_pieces_is_told_whole(translator: Translator, emit: MemoryEmitter) -> None:
    translator.take(whole("m1", ThinkingBlock(thinking="Hm.", signature=""), TextBlock(text="Hello")))

    assert emit.events == [RunContent(reasoning_content="Hm."), RunContent(content="Hello")]


def test_equal_texts_of_two_blocks_are_both_told(translator: Translator, emit: MemoryEmitter) -> None:
    for message in (
        start("m1"), block_start(), piece("ha"), whole("m1", TextBlock(text="ha")),
        block_start(), piece("ha"), whole("m1", TextBlock(text="ha")),
    ):  # fmt: skip
        translator.take(message)

    assert emit.text == "haha"


def test_thinking_is_reasoning_and_no_answer(translator: Translator, emit: MemoryEmitter) -> None:
    thinking = whole("m1", ThinkingBlock(thinking="Let me see", signature="x"))
    for message in (start("m1"), block_start(), thought("Let me "), thought("see"), thinking):
        translator.take(message)

    assert [event.reasoning_content for event in emit.contents] == ["Let me ", "see"]
    assert emit.text == ""


def test_message_begun_again_voids_the_pieces_of_the_first(translator: Translator, emit: MemoryEmitter) -> None:
    for message in (
        start("m1"), block_start(), piece("Kept."), whole("m1", TextBlock(text="Kept.")),
        start("m2"), block_start(), piece("Bro"), piece("ken"),
        start("m3"), block_start(), piece("Whole."), whole("m3", TextBlock(text="Whole.")),
    ):  # fmt: skip
        translator.take(message)

    assert emit.text == "Kept.Whole."
    assert [warning["discard_from"] for warning in emit.warnings] == [1]


def test_broken_stream_answered_without_streaming_is_voided_too(translator: Translator, emit: MemoryEmitter) -> None:
    for message in (start("m1"), block_start(), piece("Bro"), whole("m2", TextBlock(text="Whole."))):
        translator.take(message)

    assert emit.text == "Whole."


def test_tool_call_and_result_share_their_id(translator: Translator, emit: MemoryEmitter) -> None:
    translator.take(whole("m1", ToolUseBlock(id="t1", name="Bash", input={"command": "ls"})))
    translator.take(tool_result("t1", [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]))

    assert emit.started[0].tool["tool_args"] == {"command": "ls"}
    assert emit.started[0].tool["tool_call_error"] is None
    done = emit.completed[0].tool
    assert (done["tool_call_id"], done["tool_name"], done["tool_call_error"]) == ("t1", "Bash", False)
    assert done["result"] == "a\n[image]"


def test_tool_error(translator: Translator, emit: MemoryEmitter) -> None:
    translator.take(whole("m1", ToolUseBlock(id="t1", name="Bash", input={})))
    translator.take(tool_result("t1", "exit 3", is_error=True))

    assert emit.completed[0].tool["tool_call_error"] is True


def test_calls_of_a_subagent_name_their_parent_and_its_text_is_no_answer(translator: Translator, emit: MemoryEmitter) -> None:
    translator.take(whole("m1", ToolUseBlock(id="agent", name="Agent", input={})))
    translator.take(whole("m2", TextBlock(text="inside"), ToolUseBlock(id="t2", name="Read", input={}), parent="agent"))

    assert [event.tool["parent_tool_call_id"] for event in emit.started] == [None, "agent"]
    assert emit.text == ""


def test_message_of_a_subagent_does_not_void_the_text_that_streams(translator: Translator, emit: MemoryEmitter) -> None:
    inside = whole("m2", TextBlock(text="inside"), parent="agent")
    for message in (start("m1"), block_start(), piece("Hel"), inside, piece("lo"), whole("m1", TextBlock(text="Hello"))):
        translator.take(message)

    assert emit.text == "Hello"
    assert emit.warnings == []


def test_error_text_of_the_api_is_no_answer(translator: Translator, emit: MemoryEmitter) -> None:
    failed = AssistantMessage(content=[TextBlock(text="API Error: 529")], model="<synthetic>", error="server_error")
    translator.take(failed)

    assert emit.events == []


def test_retries_are_warnings_and_other_system_messages_nothing(translator: Translator, emit: MemoryEmitter) -> None:
    translator.take(SystemMessage(subtype="init", data={}))
    translator.take(SystemMessage(subtype="api_retry", data={"attempt": 1, "max_retries": 3, "error_status": 529}))

    assert [type(event) for event in emit.events] == [CustomEvent]
    assert emit.warnings[0]["attempt"] == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ({"type": "web_search_tool_result_error"}, "[web_search_tool_result_error]"),
    ],
)
def test_result_text(content: Any, text: str) -> None:
    assert result_text(content) == text


def totals(given: int, answered: int, cost: float) -> dict[str, Any]:
    return {"inputTokens": given, "outputTokens": answered, "cacheReadInputTokens": 5, "costUSD": cost}


def test_usage_of_a_first_turn() -> None:
    usage = usage_of(result(total_cost_usd=0.5, model_usage={MODEL: totals(10, 4, 0.5)}), CostState(), model="other")

    assert usage == [
        ModelUsage(id=MODEL, provider="Anthropic", input_tokens=10, output_tokens=4, total_tokens=14, cache_read_tokens=5, cost=0.5)
    ]


def test_usage_of_a_resumed_turn_is_what_came_on_top() -> None:
    before = CostState(cost=0.5, models={MODEL: totals(10, 4, 0.5), "haiku": totals(1, 1, 0.0)})
    now = {MODEL: totals(25, 6, 0.8), "haiku": totals(1, 1, 0.0)}

    usage = usage_of(result(total_cost_usd=0.8, model_usage=now), before, model=MODEL)

    assert [(one.id, one.input_tokens, one.output_tokens, one.cost) for one in usage] == [(MODEL, 15, 2, 0.3)]


def test_totals_that_began_at_zero_again_are_taken_whole() -> None:
    before = CostState(cost=0.5, models={MODEL: totals(10, 4, 0.5)})

    usage = usage_of(result(total_cost_usd=0.2, model_usage={MODEL: totals(7, 3, 0.2)}), before, model=MODEL)

    assert (usage[0].input_tokens, usage[0].output_tokens, usage[0].cost) == (7, 3, 0.2)


def test_usage_without_totals_of_models() -> None:
    tokens = {"input_tokens": 3, "output_tokens": 2, "cache_creation_input_tokens": 9}
    told = tokens | {"output_tokens_details": {"thinking_tokens": 1}}

    usage = usage_of(result(total_cost_usd=0.7, usage=told), CostState(cost=0.5), model=MODEL)

    assert usage == [
        ModelUsage(
            id=MODEL, provider="Anthropic", input_tokens=3, output_tokens=2, total_tokens=5, reasoning_tokens=1,
            cache_write_tokens=9, cost=0.2,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "error_type", "retryable"),
    [
        ({"subtype": "error_max_turns", "errors": ["Reached maximum number of turns (1)"]}, "max_turns_reached", False),
        ({"subtype": "error_max_budget_usd"}, "max_budget_reached", False),
        ({"subtype": "error_during_execution", "terminal_reason": "aborted_tools"}, "interrupted", False),
        ({"terminal_reason": "prompt_too_long", "api_error_status": 400}, "context_too_long", False),
        ({"terminal_reason": "api_error", "api_error_status": 429}, "rate_limited", True),
        ({"terminal_reason": "api_error", "api_error_status": 503}, "server_error", True),
        ({"terminal_reason": "api_error", "api_error_status": 422}, "invalid_request", False),
        ({"terminal_reason": "api_error", "result": "Request timed out."}, "api_unreachable", True),
        ({"terminal_reason": "api_error", "result": "The answer exceeded its longest."}, "agent_error", False),
        ({"subtype": "error_of_tomorrow"}, "agent_error", False),
    ],
)
def test_failures_by_kind(fields: dict[str, Any], error_type: str, retryable: bool) -> None:
    error = from_result(result(is_error=True, **fields))

    assert (error.error_type, error.retryable) == (error_type, retryable)
    assert error.message
