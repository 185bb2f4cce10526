"""Stopping ClaudeAgent: the real binary is interrupted, hangs or dies, and no process of its turn is left."""

import asyncio
from pathlib import Path

import pytest

from support.anthropic_server import AnthropicServer, Call, Hang, Say
from support.claude_emitter import MemoryEmitter
from support.claude_turns import (
    SLEEP,
    agent_for,
    failure_of,
    process_with,
    processes,
    run_turn,
    stop,
    turn_of,
    with_bash,
)
from waystation.errors import RunCancelledError

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("clean_claude")]


async def test_interrupt_while_text_streams(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Say(text="word " * 2000, delay_s=0.02))
    turn = turn_of("talk")
    running = asyncio.create_task(run_turn(with_bash(api), turn, emit))
    await emit.until(lambda told: len(told.contents) > 5)

    took_s = await stop(turn, running)

    assert took_s < 2
    assert isinstance(running.exception(), RunCancelledError)
    assert emit.text.startswith("word word")
    assert processes(tmp_path) == []
    await asyncio.wait_for(api.hung_up.wait(), 5)


async def test_interrupt_while_a_tool_runs(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Call(tool="Bash", args={"command": SLEEP}, id="toolu_sleep"))
    turn = turn_of("wait")
    running = asyncio.create_task(run_turn(with_bash(api), turn, emit))
    await process_with(tmp_path, "time.sleep(300)")

    took_s = await stop(turn, running)

    assert took_s < 2
    assert processes(tmp_path) == []


async def test_interrupt_of_a_binary_that_does_not_answer(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Call(tool="Bash", args={"command": f"kill -STOP $PPID; {SLEEP}"}, id="toolu_stop"))
    turn = turn_of("wait")
    running = asyncio.create_task(run_turn(with_bash(api), turn, emit))
    await process_with(tmp_path, "time.sleep(300)")

    took_s = await stop(turn, running)

    assert took_s < 4
    assert isinstance(running.exception(), RunCancelledError)
    assert processes(tmp_path) == []


async def test_interrupt_ends_what_a_tool_has_detached(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    detached = f"nohup setsid sh -c 'trap \"\" TERM; {SLEEP.replace(chr(39), chr(34))}' >/dev/null 2>&1 & {SLEEP}"
    api.then(Call(tool="Bash", args={"command": detached}, id="toolu_detach"))
    turn = turn_of("wait")
    running = asyncio.create_task(run_turn(with_bash(api), turn, emit))
    await process_with(tmp_path, "trap")

    await stop(turn, running)

    assert processes(tmp_path) == []


async def test_turn_that_ends_well_leaves_no_detached_process(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    command = f"nohup setsid {SLEEP} >/dev/null 2>&1 & echo begun"
    api.then(Call(tool="Bash", args={"command": command}, id="toolu_detach"))

    await run_turn(with_bash(api), turn_of("begin it"), emit)

    assert emit.completed[0].tool["result"] == "begun"
    assert emit.text == "done"
    assert processes(tmp_path) == []


async def test_interrupt_before_the_model_answers(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Hang())
    turn = turn_of("hello")
    running = asyncio.create_task(run_turn(agent_for(api), turn, emit))
    await api.asked()

    took_s = await stop(turn, running)

    assert took_s < 2
    assert processes(tmp_path) == []


async def test_interrupt_while_the_binary_starts(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    turn = turn_of("hello")
    running = asyncio.create_task(run_turn(agent_for(api), turn, emit))
    await process_with(tmp_path, "claude")

    took_s = await stop(turn, running)

    assert took_s < 2
    assert isinstance(running.exception(), RunCancelledError)
    assert processes(tmp_path) == []


async def test_cancelled_task_leaves_no_process(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Call(tool="Bash", args={"command": SLEEP}, id="toolu_sleep"))
    running = asyncio.create_task(with_bash(api).run_turn(turn_of("wait"), emit))
    await process_with(tmp_path, "time.sleep(300)")

    running.cancel()
    await asyncio.wait({running}, timeout=5)

    assert running.cancelled()
    assert processes(tmp_path) == []


async def test_task_cancelled_twice_still_ends_its_processes(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Call(tool="Bash", args={"command": SLEEP}, id="toolu_sleep"))
    agent = with_bash(api)
    running = asyncio.create_task(agent.run_turn(turn_of("wait"), emit))
    await process_with(tmp_path, "time.sleep(300)")

    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running}, timeout=1)
    assert running.cancelled()
    await agent.close()

    assert processes(tmp_path) == []


async def test_session_goes_on_after_an_interrupt(api: AnthropicServer, emit: MemoryEmitter) -> None:
    agent = agent_for(api)
    begun = MemoryEmitter()
    await run_turn(agent, turn_of("one"), begun)
    api.then(Say(text="word " * 2000, delay_s=0.02))
    turn = turn_of("two", external_session_id=begun.external_session_id)
    running = asyncio.create_task(run_turn(agent, turn, emit))
    await emit.until(lambda told: len(told.contents) > 5)
    await stop(turn, running)

    after = MemoryEmitter()
    await run_turn(agent, turn_of("three", external_session_id=begun.external_session_id), after)

    assert after.text == "done"
    assert [text for text in api.requests[-1].texts("user") if len(text) < 6] == ["one", "two", "three"]


async def test_session_goes_on_after_an_interrupted_tool(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    agent = with_bash(api)
    begun = MemoryEmitter()
    await run_turn(agent, turn_of("one"), begun)
    api.then(Call(tool="Bash", args={"command": SLEEP}, id="toolu_sleep"))
    turn = turn_of("two", external_session_id=begun.external_session_id)
    running = asyncio.create_task(run_turn(agent, turn, emit))
    await process_with(tmp_path, "time.sleep(300)")
    await stop(turn, running)

    after = MemoryEmitter()
    await run_turn(agent, turn_of("three", external_session_id=begun.external_session_id), after)

    assert after.text == "done"
    assert after.warnings == []
    assert [result["tool_use_id"] for result in api.requests[-1].results()] == ["toolu_sleep"]


async def test_binary_that_dies_is_an_error(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    api.then(Call(tool="Bash", args={"command": f"kill -9 $PPID; {SLEEP}"}, id="toolu_kill"))

    error = await failure_of(with_bash(api), emit)

    assert (error.error_type, error.retryable) == ("sdk_ended_early", True)
    assert processes(tmp_path) == []
