"""The run loop of native agents: fresh turns, tools, pauses, crashes, limits."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.emitter import MemoryEmitter, asking, drive, gone_on, is_valid, make_turn, user
from waystation.agents.native.agent import Agent
from waystation.agents.native.calls import UNKNOWN_OUTCOME
from waystation.agents.native.models.base import Model, UsageDelta, provider_failure
from waystation.agents.native.models.scripted import Call, Pause, ScriptedModel, Step, Think
from waystation.agents.native.tools import Tool, tool
from waystation.agents.turn import StopReason, Turn, TurnResult
from waystation.domain.event import ModelRequestCompleted, RunContent, ToolCallCompleted
from waystation.domain.media import Attachment, MediaKind
from waystation.domain.message import Message, repaired
from waystation.domain.requirement import Requirement, ToolExecution
from waystation.errors import AgentError, ConfigError, RunCancelledError, RunLostError

USAGE = UsageDelta(input_tokens=11, output_tokens=7, total_tokens=18)


def answers(*scripts: Iterable[Step]) -> ScriptedModel:
    """A model that answers by one script after the other, whatever it is asked, and then with "done"."""
    left = iter(scripts)
    return ScriptedModel(lambda messages: next(left, ["done"]), id="m", provider="P", usage=USAGE)


def spying(seen: list[list[Message]]) -> ScriptedModel:
    def script(messages: list[Message]) -> Iterable[Step]:
        seen.append(messages)
        return ["ok"]

    return ScriptedModel(script)


def agent_of(model: Model, *tools: Callable[..., Any], **settings: Any) -> Agent:
    return Agent(id="a", model=model, tools=tools, **settings)


class Deed:
    """A tool that counts how often it ran."""

    def __init__(self, **settings: Any) -> None:
        self.done: list[str] = []
        self.tool: Tool = tool(name="deed", **settings)(self.run)

    def run(self, what: str) -> str:
        self.done.append(what)
        return f"did {what}"


ONE_DEED = [Call("deed", {"what": "x"}, id="c1")]


def results(messages: Iterable[Message]) -> dict[str | None, str | None]:
    return {m.tool_call_id: m.content for m in messages if m.role == "tool"}


# ---- text ----------------------------------------------------------------------------------------------------------------


async def test_a_fresh_turn_records_system_user_and_answer() -> None:
    agent = agent_of(answers(["Hel", "lo"]), description="You are D.", instructions="Be I.")
    result, emit = await drive(agent, make_turn("hi"))
    assert [(m.role, m.content) for m in emit.messages] == [
        ("system", "You are D.\n\nBe I."),
        ("user", "hi"),
        ("assistant", "Hello"),
    ]
    assert emit.names == ["ModelRequestStarted", "RunContent", "RunContent", "ModelRequestCompleted", "RunContentCompleted"]
    assert emit.messages[-1].metrics == {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    assert result == TurnResult(session_state={})


async def test_the_end_of_a_request_tells_tokens_and_time_to_the_first() -> None:
    _, emit = await drive(agent_of(answers(["Hello"])), make_turn())
    done = next(e for e in emit.events if isinstance(e, ModelRequestCompleted))
    assert (done.model, done.model_provider, done.input_tokens, done.output_tokens, done.total_tokens) == ("m", "P", 11, 7, 18)
    assert done.time_to_first_token is not None


async def test_reasoning_is_told_and_kept_apart() -> None:
    _, emit = await drive(agent_of(answers([Think("hm"), "yes"])), make_turn())
    said = [(e.content, e.reasoning_content) for e in emit.events if isinstance(e, RunContent)]
    assert said == [("", "hm"), ("yes", None)]
    assert (emit.messages[-1].content, emit.messages[-1].reasoning_content) == ("yes", "hm")


async def test_the_model_sees_history_between_system_and_own_messages() -> None:
    seen: list[list[Message]] = []
    history = [user("before"), asking(("h1", "gone", "{}"))]
    await drive(agent_of(spying(seen), description="S"), make_turn("now", history=history))
    assert [m.role for m in seen[0]] == ["system", "user", "assistant", "tool", "user"]


async def test_given_messages_are_not_recorded_again() -> None:
    seen: list[list[Message]] = []
    messages = [
        Message(id="1", role="system", content="S", from_history=True),
        user("a", from_history=True),
        Message(id="3", role="assistant", content="b", from_history=True),
        user("c"),
    ]
    _, emit = await drive(agent_of(spying(seen), description="S"), make_turn(messages=messages))
    assert [(m.role, m.content) for m in emit.messages] == [("assistant", "ok")]
    assert [m.content for m in seen[0]] == ["S", "a", "b", "c"]


async def test_a_sibling_without_new_input_is_answered_anew() -> None:
    messages = [user("a", from_history=True), Message(id="2", role="assistant", content="b", from_history=True)]
    _, emit = await drive(agent_of(answers(["again"])), make_turn(messages=messages))
    assert emit.text == "again"


async def test_text_files_are_put_before_the_model_but_not_into_the_record() -> None:
    seen: list[list[Message]] = []
    file = Attachment(id="f", name="a.txt", mime_type="text/plain", kind=MediaKind.FILE, content="größer".encode())
    _, emit = await drive(agent_of(spying(seen)), make_turn("read", attachments=[file]))
    assert "größer" in (seen[0][-1].content or "")
    assert emit.messages[0].content == "read"


async def test_session_state_is_merged_and_returned() -> None:
    turn = make_turn(session_state={"a": 1, "b": 1})
    turn = replace(turn, run=replace(turn.run, input=turn.run.input.model_copy(update={"session_state": {"b": 2}})))
    result, _ = await drive(agent_of(answers()), turn)
    assert result.session_state == {"a": 1, "b": 2}


async def test_a_failing_model_fails_the_turn_after_what_it_said() -> None:
    turn = make_turn()
    emit = MemoryEmitter(turn.cancel)
    with pytest.raises(AgentError) as failure:
        await agent_of(answers(["partial ", provider_failure("down")])).run_turn(turn, emit)
    assert (failure.value.error_type, failure.value.retryable, emit.text) == ("model_provider_error", True, "partial ")


SCHEMA = {"type": "object", "title": "City", "properties": {"city": {"type": "string"}}}


async def test_an_output_schema_gives_an_object() -> None:
    result, _ = await drive(agent_of(answers(['{"city": ', '"Paris"}'])), make_turn(output_schema=SCHEMA))
    assert (result.content, result.content_type) == ({"city": "Paris"}, "City")


async def test_an_answer_that_is_no_object_is_a_mismatch() -> None:
    with pytest.raises(AgentError) as failure:
        await drive(agent_of(answers(["Paris"])), make_turn(output_schema=SCHEMA))
    assert failure.value.error_type == "output_schema_mismatch"


async def test_a_turn_has_at_most_a_hundred_requests() -> None:
    deed = Deed()
    model = ScriptedModel(lambda messages: [Call("deed", {"what": "x"})])
    turn = make_turn()
    with pytest.raises(AgentError) as failure:
        await agent_of(model, deed.tool).run_turn(turn, MemoryEmitter(turn.cancel))
    assert (failure.value.error_type, len(deed.done)) == ("loop_limit", 100)


# ---- stopping ------------------------------------------------------------------------------------------------------------


async def stopped(agent: Agent, turn: Turn, reason: StopReason) -> None:
    task = asyncio.create_task(agent.run_turn(turn, MemoryEmitter(turn.cancel)))
    await asyncio.sleep(0.05)
    turn.cancel.request(reason)
    await turn.cancel.interrupt()
    await asyncio.wait_for(task, 1)


async def test_a_silent_model_is_interrupted_at_once() -> None:
    with pytest.raises(RunCancelledError):
        await stopped(agent_of(answers([Pause(60_000), "late"])), make_turn(), StopReason.CANCELLED)


async def test_an_async_tool_is_interrupted_by_a_cancel() -> None:
    @tool
    async def sleep() -> None:
        await asyncio.sleep(60)

    with pytest.raises(RunCancelledError):
        await stopped(agent_of(answers([Call("sleep")]), sleep), make_turn(), StopReason.CANCELLED)


async def test_a_drain_lets_a_tool_end() -> None:
    @tool
    async def nap() -> str:
        await asyncio.sleep(0.2)
        return "rested"

    turn = make_turn()
    emit = MemoryEmitter(turn.cancel)
    task = asyncio.create_task(agent_of(answers([Call("nap")]), nap).run_turn(turn, emit))
    await asyncio.sleep(0.05)
    turn.cancel.request(StopReason.DRAINING)
    await turn.cancel.interrupt()
    with pytest.raises(RunCancelledError):
        await task
    assert emit.completed[0].result == "rested"


@pytest.mark.parametrize("refusal", [RunCancelledError, RunLostError])
async def test_no_tool_starts_that_may_not(refusal: type[Exception]) -> None:
    def refuse() -> None:
        raise refusal

    deed, turn = Deed(), make_turn()
    emit = MemoryEmitter(turn.cancel, on_stored=refuse)
    with pytest.raises(refusal):
        await agent_of(answers(ONE_DEED), deed.tool).run_turn(turn, emit)
    assert (deed.done, emit.started) == ([], ["c1"])


# ---- tools ---------------------------------------------------------------------------------------------------------------


async def test_a_tool_runs_after_its_start_is_stored_and_its_result_goes_to_the_model() -> None:
    deed = Deed()
    _, emit = await drive(agent_of(answers(["let me see ", *ONE_DEED], ["fine"]), deed.tool), make_turn())
    kinds = [item if isinstance(item, str) else item.role if isinstance(item, Message) else item.name for item in emit.log]
    assert kinds == [
        "user", "ModelRequestStarted", "RunContent", "ModelRequestCompleted", "assistant", "ToolCallStarted", "stored",
        "ToolCallCompleted", "tool", "ModelRequestStarted", "RunContent", "ModelRequestCompleted", "RunContentCompleted",
        "assistant",
    ]  # fmt: skip
    done = emit.completed[0]
    assert (done.result, done.tool_call_error, done.tool_args) == ("did x", False, {"what": "x"})
    assert set(done.metrics or {}) == {"start_time", "end_time", "duration"}
    assert emit.text == "let me see fine"
    told = next(e for e in emit.events if isinstance(e, ToolCallCompleted))
    assert (told.content or "").startswith("deed(what=x) done in 0.")


async def test_calls_run_in_parallel_and_are_recorded_in_their_order() -> None:
    @tool
    async def nap(s: float) -> float:
        await asyncio.sleep(s)
        return s

    calls = [Call("nap", {"s": s}, id=f"c{s}") for s in (0.3, 0.1, 0.2)]
    began = time.monotonic()
    _, emit = await drive(agent_of(answers(calls), nap), make_turn())
    assert time.monotonic() - began < 0.5
    assert emit.started == ["c0.3", "c0.1", "c0.2"]
    assert list(results(emit.messages)) == ["c0.3", "c0.1", "c0.2"]
    assert [e.tool_call_id for e in emit.completed] == ["c0.1", "c0.2", "c0.3"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("nope"), "no tool 'nope'"),
        (Call("deed", "{broken"), "not valid JSON"),
        (Call("deed", '["x"]'), "not a JSON object"),
        (Call("deed", {}), "don't fit"),
        (Call("deed", {"what": "x", "more": 1}), "don't fit"),
    ],
)
async def test_a_bad_call_goes_back_to_the_model(call: Call, text: str) -> None:
    deed = Deed()
    _, emit = await drive(agent_of(answers([call]), deed.tool), make_turn())
    assert (deed.done, emit.text) == ([], "done")
    assert emit.completed[0].tool_call_error is True
    assert text in (emit.messages[2].content or "")
    assert emit.messages[2].tool_call_error is True


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()])
async def test_a_tool_that_raises_does_not_fail_the_run(error: BaseException) -> None:
    @tool
    def broken() -> None:
        raise error

    _, emit = await drive(agent_of(answers([Call("broken")]), broken), make_turn())
    assert (emit.completed[0].tool_call_error, emit.text) == (True, "done")


async def test_calls_beyond_the_limit_are_answered_with_an_error() -> None:
    deed = Deed()
    calls = [Call("deed", {"what": str(i)}) for i in range(3)]
    _, emit = await drive(agent_of(answers(calls, calls), deed.tool, tool_call_limit=2), make_turn())
    assert sorted(deed.done) == ["0", "1"]
    assert [e.tool_call_error for e in emit.completed] == [True, False, False, True, True, True]
    assert emit.text == "done"


async def test_ids_that_a_model_gives_twice_are_replaced() -> None:
    deed = Deed()
    _, emit = await drive(agent_of(answers([*ONE_DEED, *ONE_DEED], ONE_DEED), deed.tool), make_turn())
    assert len({e.tool_call_id for e in emit.completed}) == 3
    assert is_valid(emit.messages)


async def test_a_tool_may_give_the_answer() -> None:
    deed = Deed(stop_after_tool_call=True)
    _, emit = await drive(agent_of(answers(ONE_DEED), deed.tool), make_turn())
    assert (emit.text, emit.names[-1], emit.names.count("ModelRequestStarted")) == ("did x", "RunContentCompleted", 1)


# ---- pauses --------------------------------------------------------------------------------------------------------------


async def paused(agent: Agent) -> tuple[Turn, TurnResult, MemoryEmitter]:
    turn = make_turn()
    result, emit = await drive(agent, turn)
    return turn, result, emit


def answered(paused: TurnResult, /, **answer: Any) -> list[Requirement]:
    return [requirement.answered_by(answer) for requirement in paused.requirements]


async def test_a_call_that_needs_confirmation_pauses_after_the_others_ran() -> None:
    asks, runs = Deed(requires_confirmation=True), tool(name="free")(lambda: "free")
    model = answers([*ONE_DEED, Call("free", id="c2")])
    _, result, emit = await paused(agent_of(model, asks.tool, runs))
    assert result.content == "Waiting for confirmation of: deed"
    assert [r.tool_execution.tool_args for r in result.requirements] == [{"what": "x"}]
    assert (asks.done, results(emit.messages)) == ([], {"c2": "free"})


async def test_a_confirmed_call_runs_and_the_turn_goes_on() -> None:
    deed = Deed(requires_confirmation=True)
    agent = agent_of(answers(ONE_DEED), deed.tool)
    turn, result, emit = await paused(agent)
    _, after = await drive(agent, gone_on(turn, emit, requirements=answered(result, confirmed=True)))
    assert after.names[:3] == ["ToolCallStarted", "ToolCallCompleted", "ModelRequestStarted"]
    assert (deed.done, results(after.messages), after.text) == (["x"], {"c1": "did x"}, "done")


async def test_arguments_of_a_confirmed_call_are_those_of_the_requirement() -> None:
    deed = Deed(requires_confirmation=True)
    agent = agent_of(answers(ONE_DEED), deed.tool)
    turn, _, _ = await paused(agent)
    execution = ToolExecution(tool_call_id="c1", tool_name="deed", tool_args={"what": "stored"}, requires_confirmation=True, confirmed=True)
    turn = replace(
        turn,
        messages=[user("hi"), asking(("c1", "deed", '{"what": "other"}'))],
        requirements=[Requirement(id="r", created_at=0.0, tool_execution=execution)],
    )
    await drive(agent, turn)
    assert deed.done == ["stored"]


async def test_a_declined_call_does_not_run() -> None:
    deed = Deed(requires_confirmation=True)
    agent = agent_of(answers(ONE_DEED), deed.tool)
    turn, result, emit = await paused(agent)
    declined = answered(result, confirmed=False, confirmation_note="too risky")
    _, after = await drive(agent, gone_on(turn, emit, requirements=declined))
    assert after.names[:2] == ["ToolCallCompleted", "ModelRequestStarted"]
    assert (deed.done, results(after.messages)) == ([], {"c1": "The user declined this call: too risky"})


async def test_an_open_requirement_pauses_again() -> None:
    deed = Deed(requires_confirmation=True)
    agent = agent_of(answers(ONE_DEED), deed.tool)
    turn, result, emit = await paused(agent)
    again, after = await drive(agent, gone_on(turn, emit, requirements=result.requirements))
    assert (again.requirements, after.events, deed.done) == (result.requirements, [], [])


@pytest.mark.parametrize(("status", "done"), [("approved", ["x"]), ("rejected", [])])
async def test_an_admin_decides_on_a_tool_with_approval(status: str, done: list[str]) -> None:
    deed = Deed(approval=True)
    agent = agent_of(answers(ONE_DEED), deed.tool)
    turn, result, emit = await paused(agent)
    assert result.requirements[0].needs_approval
    decided = [result.requirements[0].resolved_by_approval(status, "ap1")]
    await drive(agent, gone_on(turn, emit, requirements=decided))
    assert deed.done == done


async def test_the_input_of_the_user_reaches_the_tool() -> None:
    @tool(user_input_fields=["to"])
    def mail(subject: str, to: str) -> str:
        return f"{subject} to {to}"

    agent = agent_of(answers([Call("mail", {"subject": "s"}, id="c1")]), mail)
    turn, result, emit = await paused(agent)
    fields = result.requirements[0].tool_execution.user_input_schema or []
    assert [(f.name, f.field_type, f.value) for f in fields] == [("subject", "str", "s"), ("to", "str", None)]
    filled = answered(result, user_input_schema=[{"name": "to", "value": "bob"}])
    _, after = await drive(agent, gone_on(turn, emit, requirements=filled))
    assert results(after.messages) == {"c1": "s to bob"}
    assert after.completed[0].tool_args == {"subject": "s", "to": "bob"}


async def test_the_result_of_the_client_is_taken_verbatim() -> None:
    deed = Deed(external_execution=True)
    agent = agent_of(answers(ONE_DEED), deed.tool)
    turn, result, emit = await paused(agent)
    assert result.requirements[0].tool_execution.external_execution_required
    _, after = await drive(agent, gone_on(turn, emit, requirements=answered(result, result=" a.txt\n ü")))
    assert after.names[0] == "ToolCallCompleted"
    assert (deed.done, results(after.messages)) == ([], {"c1": " a.txt\n ü"})


async def test_bad_arguments_do_not_pause() -> None:
    deed = Deed(requires_confirmation=True)
    result, emit = await drive(agent_of(answers([Call("deed", {})]), deed.tool), make_turn())
    assert (result.requirements, emit.text) == ([], "done")


# ---- crashes -------------------------------------------------------------------------------------------------------------


def crashed(**changes: Any) -> Turn:
    messages = [user("hi"), asking(("c1", "deed", '{"what": "x"}'))]
    return make_turn(messages=messages, resumed=True, **changes)


STARTED = ToolExecution(tool_call_id="c1", tool_name="deed", tool_args={"what": "x"})


async def test_a_finished_call_is_not_repeated() -> None:
    deed = Deed(effect="safe")
    finished = STARTED.model_copy(update={"result": "from the log", "tool_call_error": False})
    _, emit = await drive(agent_of(answers(), deed.tool), crashed(tools=[finished]))
    assert (deed.done, results(emit.messages), emit.completed) == ([], {"c1": "from the log"}, [])


async def test_a_call_that_never_started_runs() -> None:
    deed = Deed()
    _, emit = await drive(agent_of(answers(), deed.tool), crashed())
    assert (deed.done, emit.text) == (["x"], "done")


async def test_a_started_call_is_unknown_to_the_model() -> None:
    deed = Deed()
    _, emit = await drive(agent_of(answers(), deed.tool), crashed(tools=[STARTED], started_calls=frozenset({"c1"})))
    assert (deed.done, results(emit.messages)) == ([], {"c1": UNKNOWN_OUTCOME})
    assert emit.names[0] == "ToolCallCompleted"
    assert emit.completed[0].tool_call_error is True


async def test_a_started_call_of_a_safe_tool_runs_again() -> None:
    deed = Deed(effect="safe")
    _, emit = await drive(agent_of(answers(), deed.tool), crashed(tools=[STARTED], started_calls=frozenset({"c1"})))
    assert (deed.done, emit.started) == (["x"], ["c1"])


async def test_a_started_call_of_an_asking_tool_pauses_and_runs_when_confirmed() -> None:
    deed = Deed(effect="ask")
    agent = agent_of(answers(), deed.tool)
    turn = crashed(tools=[STARTED], started_calls=frozenset({"c1"}))
    result, emit = await drive(agent, turn)
    assert "interrupted" in (result.requirements[0].tool_execution.confirmation_note or "")
    confirmed = answered(result, confirmed=True)
    _, after = await drive(agent, gone_on(turn, emit, resumed=False, requirements=confirmed))
    assert (deed.done, after.text) == (["x"], "done")


async def test_a_confirmed_call_that_was_started_before_the_crash_is_unknown() -> None:
    deed = Deed(requires_confirmation=True)
    execution = STARTED.model_copy(update={"requires_confirmation": True, "confirmed": True})
    confirmed = Requirement(id="r", created_at=0.0, tool_execution=execution)
    turn = crashed(tools=[execution], started_calls=frozenset({"c1"}), requirements=[confirmed])
    _, emit = await drive(agent_of(answers(), deed.tool), turn)
    assert (deed.done, results(emit.messages)) == ([], {"c1": UNKNOWN_OUTCOME})


async def test_a_confirmed_call_that_was_not_started_before_the_crash_runs() -> None:
    deed = Deed(requires_confirmation=True)
    execution = STARTED.model_copy(update={"requires_confirmation": True, "confirmed": True})
    turn = crashed(tools=[execution], requirements=[Requirement(id="r", created_at=0.0, tool_execution=execution)])
    await drive(agent_of(answers(), deed.tool), turn)
    assert deed.done == ["x"]


async def test_a_finished_answer_ends_the_turn_without_another_request() -> None:
    messages = [user("hi"), Message(id="2", role="assistant", content="all said")]
    _, emit = await drive(agent_of(answers()), make_turn(messages=messages, resumed=True))
    assert emit.log == []


async def test_an_answer_that_broke_off_is_asked_for_again() -> None:
    _, emit = await drive(agent_of(answers(["again"])), make_turn(messages=[user("hi")], resumed=True))
    assert emit.text == "again"


# ---- always --------------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.text(max_size=3),
        st.builds(Think, st.text(max_size=3)),
        st.builds(
            Call,
            st.sampled_from(["deed", "asks", "nope"]),
            st.sampled_from([{"what": "x"}, {}, "{", "null", '{"what": 1}']),
            st.sampled_from([None, "", "c1", "c2"]),
        ),
    ),
    max_size=5,
)


def without_crash(scripts: list[list[Step]]) -> Iterator[list[Step]]:
    yield from scripts


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=4), st.booleans(), st.integers(0, 30))
def test_whatever_the_model_does_the_history_is_valid(scripts: list[list[Step]], confirm: bool, cut: int) -> None:
    asyncio.run(check_history(scripts, confirm, cut))


async def check_history(scripts: list[list[Step]], confirm: bool, cut: int) -> None:
    left = without_crash(scripts)
    seen: list[list[Message]] = []

    def script(messages: list[Message]) -> Iterable[Step]:
        seen.append(messages)
        return next(left, ["done"])

    asks = tool(name="asks", requires_confirmation=True)(Deed().run)
    agent = agent_of(ScriptedModel(script), Deed().tool, asks, tool_call_limit=6)
    turn = make_turn()
    result, emit = await drive(agent, turn)
    while result.requirements:
        assert is_valid(repaired([*turn.messages, *emit.messages]))
        turn = gone_on(turn, emit, requirements=answered(result, confirmed=confirm))
        result, emit = await drive(agent, turn)
    whole = [*turn.messages, *emit.messages]
    assert is_valid(whole)
    await drive(agent, make_turn(messages=whole[: max(1, cut % (len(whole) + 1))], resumed=True))
    assert all(is_valid(messages) for messages in seen)
    json.dumps([message.encode() for message in whole])


# ---- construction --------------------------------------------------------------------------------------------------------


def test_the_id_is_made_of_the_name() -> None:
    assert Agent(name="My best_Agent!", model=answers()).id == "my-best-agent"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"id": "a", "model": "openai:gpt-5"},
        {"id": "a", "model": "gpt-5"},
        {"id": "a", "model": "demo:"},
        {"id": "a", "num_history_runs": 0},
        {"id": "a", "tools": [Deed().tool, Deed().tool]},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Agent(**({"model": answers()} | settings))


def test_history_is_off_unless_asked_for() -> None:
    assert Agent(id="a", model=answers()).history_runs == 0
    assert Agent(id="a", model=answers(), add_history_to_context=True).history_runs == 3
