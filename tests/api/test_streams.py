"""Event streams as bytes, and what becomes of runs whose viewers leave, stall or never read."""

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from support.api_agents import Gate, SmallAgent, gated
from support.api_server import ApiServer, api_server
from support.api_wire import ENDS, Wire, frames_of, indices, names, text_of
from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import Call, ScriptedModel
from waystation.agents.turn import Emitter, Turn
from waystation.domain.event import RunContent, ToolCallCompleted, ToolCallStarted
from waystation.domain.message import Message
from waystation.domain.requirement import ToolExecution
from waystation.errors import AgentError, StoreUnavailableError
from waystation.store import looks

RUNS = "/agents/plain/runs"


async def test_the_bytes_of_a_stream_are_those_of_the_contract(api_on_each: ApiServer) -> None:
    """B09, B10, B11."""
    answer = await api_on_each.http.post(RUNS, data={"message": "hi"})
    blocks = answer.content.removeprefix(b": stream\n").split(b"\n\n")
    assert blocks.pop() == b"" and len(blocks) == 9
    assert re.fullmatch(rb'id: 0\nevent: RunStarted\ndata: \{"event":"RunStarted","event_index":0,[^\n]*\}\nretry: 1000', blocks[0])
    for index, block in enumerate(blocks[1:], 1):
        assert re.fullmatch(rb'id: %d\nevent: (\w+)\ndata: \{"event":"\1","event_index":%d,[^\n]*\}' % (index, index), block)
    assert not answer.content.startswith(b"\xef\xbb\xbf") and b"\r" not in answer.content


async def test_a_stream_whose_store_goes_away_is_cut_with_one_line_in_the_log(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = await api.run("hi", "plain")

    def out_of_reach(*_: Any) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(looks, "look", out_of_reach)
    with pytest.raises(httpx.RemoteProtocolError):
        await api.http.get(f"{RUNS}/{run['run_id']}/events")
    said = [(record.name, record.getMessage()) for record in caplog.records if record.levelno >= logging.WARNING]
    # `waystation serve` leaves out what uvicorn says of any stream that is cut.
    assert [line for name, line in said if name != "uvicorn.error"] == ["stream cut error_type=unavailable"]
    assert "Exception in ASGI application" not in caplog.text


async def test_every_event_names_its_run_session_and_agent(api: ApiServer) -> None:
    answer = await api.http.post("/agents/native/runs", data={"message": "tool", "session_id": "s"})
    for frame in frames_of(answer.content):
        assert (frame.data["run_id"], frame.data["session_id"], frame.data["agent_id"], frame.data["agent_name"]) == (
            answer.headers["x-run-id"], "s", "native", "Native",
        )  # fmt: skip
        assert frame.data["created_at"] > 0 and "data" not in frame.data


def by_lines(raw: str) -> list[tuple[str, str]]:
    """A parser that reads line by line and takes any end of line, as EventSource does."""
    found, fields = [], {}
    for line in re.split(r"\r\n|\n|\r", raw):
        if not line:
            if "data" in fields:
                found.append((fields.get("id", ""), fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
    return found


def by_blocks(raw: str) -> list[tuple[str, str]]:
    """A parser that splits on two newlines and looks for the fields by expression."""
    blocks = [block for block in raw.split("\n\n") if "data: " in block]
    found = [(re.search(r"^id: (.*)$", b, re.M), re.search(r"^data: (.*)$", b, re.M)) for b in blocks]
    return [(one.group(1) if one else "", data.group(1) if data else "") for one, data in found]


FORGED = "x\revent: RunCompleted\rid: 999999\rdata: {}\n\nid: 7\n\nevent: y\u2028\u2029\x85\x0b\x0c end"


def speaking(*texts: str) -> SmallAgent:
    async def turn(turn: Turn, emit: Emitter) -> None:
        tool = ToolExecution(tool_call_id="c", tool_name=texts[0], tool_args={"a": texts[0]})
        emit(ToolCallStarted(tool=tool.model_dump(mode="json")))
        emit(ToolCallCompleted(content=texts[0], tool=tool.model_copy(update={"result": texts[0]}).model_dump(mode="json")))
        for text in texts:
            emit(RunContent(content=text))
        if turn.run.input.message == "fail":
            raise AgentError(texts[0])

    return SmallAgent(turn)


@pytest.mark.parametrize("message", ["hi", "fail"])
async def test_no_text_can_forge_an_event(sqlite_url: str, message: str) -> None:
    """B08, B09: three kinds of parsers see the same events."""
    async with api_server(sqlite_url, [speaking(FORGED)]) as api:
        answer = await api.http.post("/agents/small/runs", data={"message": message})
    frames = frames_of(answer.content)
    assert indices(frames) == [0, 1, 2, 3, 4] and text_of(frames) == FORGED
    assert by_lines(answer.text) == by_blocks(answer.text) and [one for one, _ in by_lines(answer.text)] == list("01234")
    assert not re.search("[\u2028\u2029\x85]", answer.text)


async def test_the_headers_of_a_stream_keep_proxies_from_holding_it(api: ApiServer) -> None:
    """B20, B21: on runs, resumes and events alike."""
    run = await api.http.post(RUNS, data={"message": "hi"}, headers={"accept-encoding": "gzip, br"})
    place = run.headers["location"]
    for answer in (run, await api.http.post(f"{place}/resume"), await api.http.get(f"{place}/events")):
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers and "content-length" not in answer.headers


async def test_headers_and_a_comment_come_before_the_first_thought(sqlite_url: str) -> None:
    """B20: nothing waits for the model, and each event comes when it is made."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        wire = await (await Wire(api.port).open()).submit("gated", message="hi")
        assert (await wire.head())[0] == 200
        assert (await wire.chunk()).startswith(b":")
        assert b"before" in await wire.until(b"before ")
        assert not gate.passed
        gate.opened.set()
        assert b"RunCompleted" in await wire.until(b"event: RunCompleted")
        await wire.close()


async def test_a_silent_stream_sends_pings_that_are_no_events(sqlite_url: str) -> None:
    """B11, B21: a comment line without an id, and without an empty line behind it."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent], ping_s=0.1) as api:
        wire = await (await Wire(api.port).open()).submit("gated", message="hi")
        await wire.head()
        await wire.until(b"before ")
        assert [await wire.chunk() for _ in range(3)] == [b": ping\n"] * 3
        gate.opened.set()
        rest = await wire.until(b"event: RunCompleted")
        assert names(frames_of(rest)) == ["RunContent", "RunCompleted"] and await wire.chunk() in (b"", b": ping\n")
        await wire.close()


async def test_stream_events_false_leaves_content_and_the_end(api: ApiServer) -> None:
    answer = await api.http.post("/agents/native/runs", data={"message": "tool", "stream_events": "false"})
    frames = frames_of(answer.content)
    assert set(names(frames)) == {"RunContent", "RunCompleted"} and text_of(frames) == "Hello from the stub."
    assert b"retry:" not in answer.content, "retry belongs to the block of the first event of the run"
    whole = frames_of((await api.http.post(f"{answer.headers['location']}/resume")).content)
    assert frames == [frame for frame in whole if frame.name in ("RunContent", "RunCompleted")], "the cursor is that of the log"


async def test_each_of_many_quick_runs_ends_with_one_event_and_the_end_of_the_stream(api_on_each: ApiServer) -> None:
    """B04."""

    async def one(agent: str, word: str) -> None:
        async with asyncio.timeout(15):
            frames = frames_of((await api_on_each.http.post(f"/agents/{agent}/runs", data={"message": word})).content)
        ends = [frame.name for frame in frames if frame.name in ENDS]
        assert len(ends) == 1 and frames[-1].name == ends[0] and indices(frames) == list(range(len(frames)))

    words = [("plain", "hi"), ("native", "tool"), ("ext", "hi"), ("plain", "fail"), ("native", "confirm")]
    await asyncio.gather(*(one(agent, word) for agent, word in words * 12))


async def test_thousands_of_events_without_a_pause_have_one_gapless_order(api: ApiServer) -> None:
    """B10, B24: also for a viewer that comes late."""
    answer = await api.http.post(RUNS, data={"message": "chunks 5000"})
    frames = frames_of(answer.content)
    assert indices(frames) == list(range(len(frames))) and names(frames).count("RunContent") == 5000
    assert text_of(frames) == frames[-1].data["content"]
    assert frames_of((await api.http.get(f"{answer.headers['location']}/events")).content) == frames


async def test_an_event_is_delivered_only_after_it_is_stored(api: ApiServer) -> None:
    async with api.http.stream("POST", RUNS, data={"message": "slow 5 10"}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                seen = int(line[4:])
                stored = await api.sql("SELECT max(last_index) FROM run_events")
                assert stored[0][0] >= seen


# ---- viewers that leave ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
async def test_a_run_goes_on_when_its_viewer_leaves(sqlite_url: str, background: bool) -> None:
    """B02: the connection is only a viewer."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        wire = await (await Wire(api.port).open()).submit("gated", message="hi", background=background)
        run_id = (await wire.head())[1]["x-run-id"]
        await wire.until(b"before ")
        wire.reset()
        await quiet(api)
        gate.opened.set()
        run = await api.until(run_id, "COMPLETED", agent="gated")
        assert run["content"] == "before after"
        assert [event["event_index"] for event in await api.events(run_id, "gated")] == [0, 1, 2, 3]


async def quiet(api: ApiServer) -> None:
    """Until no stream is open any more."""
    async with asyncio.timeout(5):
        while api.app.state.pings.open_streams:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
async def test_on_disconnect_cancel_stops_the_run_when_its_client_leaves(sqlite_url: str, stream: bool) -> None:
    """B01: once, and what was said is kept."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        wire = await Wire(api.port).open()
        await wire.submit("gated", message="hi", stream=stream, on_disconnect="cancel", session_id="s")
        await gate.reached.wait()
        await asyncio.sleep(0.05)
        wire.reset()
        run_id = (await api.http.get("/agents/gated/runs", params={"session_id": "s"})).json()[0]["run_id"]
        run = await api.until(run_id, "CANCELLED", agent="gated")
        log = [event["event"] for event in await api.events(run_id, "gated")]
        assert run["content"] == "before " and log == ["RunStarted", "RunContent", "RunCancelled"] and not gate.passed


@pytest.mark.parametrize("stream", [True, False])
async def test_without_it_a_run_whose_client_leaves_completes(sqlite_url: str, stream: bool) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        wire = await (await Wire(api.port).open()).submit("gated", message="hi", stream=stream, session_id="s")
        await gate.reached.wait()
        wire.reset()
        await asyncio.sleep(0.05)
        gate.opened.set()
        run_id = (await api.http.get("/agents/gated/runs", params={"session_id": "s"})).json()[0]["run_id"]
        assert (await api.until(run_id, "COMPLETED", agent="gated"))["content"] == "before after"


async def test_a_second_viewer_that_leaves_cancels_nothing(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        own = await (await Wire(api.port).open()).submit("gated", message="hi", on_disconnect="cancel")
        run_id = (await own.head())[1]["x-run-id"]
        other = await (await Wire(api.port).open()).send(f"/agents/gated/runs/{run_id}/resume", Content_Type="")
        await other.head()
        await other.until(b"before ")
        other.reset()
        await asyncio.sleep(0.05)
        gate.opened.set()
        assert b"event: RunCompleted" in await own.until(b"event: RunCompleted")
        await own.close()


async def test_many_clients_that_leave_in_the_middle_leak_nothing(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """B01, B18: half of them leave before they have read a byte."""
    before = {task.get_name() for task in asyncio.all_tasks()}

    async def leave(number: int) -> None:
        wire = await (await Wire(api.port).open()).submit(message="slow 3 10", on_disconnect=("cancel", "continue")[number % 2])
        if number % 4 < 2:
            await wire.head()
            await wire.until(b"event: RunContent")
        wire.reset()

    for _ in range(5):
        await asyncio.gather(*(leave(number) for number in range(12)))
    await settled(api)
    honest = frames_of((await api.http.post(RUNS, data={"message": "hi"})).content)
    assert honest[-1].name == "RunCompleted"
    await settled(api)
    assert api.container.hub.stats() == {"channels": 0, "users": 0}
    assert {task.get_name() for task in asyncio.all_tasks() if "run " in task.get_name() or "stream" in task.get_name()} <= before
    statuses = await api.sql("SELECT status, count(*) FROM runs GROUP BY status")
    assert {row[0] for row in statuses} <= {"COMPLETED", "CANCELLED"}
    assert "Traceback" not in caplog.text and not [r for r in caplog.records if r.levelname == "ERROR"]


async def settled(api: ApiServer) -> None:
    """Until nothing runs and nobody watches."""
    async with asyncio.timeout(10):
        while api.container.slots.used or api.app.state.pings.open_streams or api.container.hub.stats()["users"]:
            await asyncio.sleep(0.01)


async def test_a_tool_finishes_once_although_its_viewer_left(sqlite_url: str) -> None:
    """B03: its result is in the history, and the next turn works."""
    gate = Gate()

    async def slow_tool() -> str:
        """Takes a while."""
        await gate.wait()
        return "done"

    def script(messages: list[Message]) -> list[Any]:
        return [Call("slow_tool")] if messages[-1].content == "go" else ["answered"]

    agent = Agent(id="native", model=ScriptedModel(script), tools=[slow_tool], add_history_to_context=True)
    async with api_server(sqlite_url, [agent]) as api:
        wire = await (await Wire(api.port).open()).submit("native", message="go", session_id="s")
        run_id = (await wire.head())[1]["x-run-id"]
        await gate.reached.wait()
        wire.reset()
        await quiet(api)
        gate.opened.set()
        run = await api.until(run_id, "COMPLETED", agent="native")
        again = await api.run("hi", "native", session_id="s")
        assert gate.passed == 1 and [m["content"] for m in run["messages"] if m["role"] == "tool"] == ["done"]
        assert again["status"] == "COMPLETED"


async def test_a_viewer_that_never_reads_costs_nothing_and_loses_nothing(sqlite_url: str) -> None:
    """B23: a viewer is a cursor (the hub's window is tested in tests/runs); the run and its other viewers go on."""
    size = 6_000_000

    async def turn(turn: Turn, emit: Emitter) -> None:
        for _ in range(size // 10_000):
            emit(RunContent(content="x" * 10_000))
            await emit.room()

    gate = Gate()

    async def waiting(turn_: Turn, emit: Emitter) -> None:
        await gate.wait()
        await turn(turn_, emit)

    async with api_server(sqlite_url, [SmallAgent(waiting)]) as api:
        run_id = await api.enqueue(agent="small")
        stalled = [await Wire(api.port).open(receive_buffer=4096) for _ in range(5)]
        for wire in stalled:
            await wire.send(f"/agents/small/runs/{run_id}/events", method="GET", Content_Type="")
            await wire.head()
            wire.writer.transport.pause_reading()
        gate.opened.set()
        await api.until(run_id, "COMPLETED", agent="small")
        late = frames_of((await api.http.get(f"/agents/small/runs/{run_id}/events")).content)
        assert len(text_of(late)) == size
        stalled[0].writer.transport.resume_reading()
        got = await stalled[0].until(b"event: RunCompleted")
        assert len(text_of(frames_of(got))) == size
        for wire in stalled:
            wire.reset()


# ---- streams that die, and shutdown --------------------------------------------------------------------------------------------


async def test_a_stream_is_cut_and_not_ended_when_the_server_goes_away(sqlite_url: str) -> None:
    """B19: with a hint before; also one that is opened while the server goes away."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue(agent="gated")
        await gate.reached.wait()
        wires = [await Wire(api.port).open() for _ in range(3)]
        for wire in wires[:2]:
            await wire.send(f"/agents/gated/runs/{run_id}/events", method="GET", Content_Type="")
            await wire.head()
            await wire.until(b"before ")
        api.container.begin_drain()
        api.app.state.pings.close_all()
        await wires[2].send(f"/agents/gated/runs/{run_id}/resume", Content_Type="")
        assert (await wires[2].head())[0] == 200, "EventSource gives up for good on anything but 200"
        async with asyncio.timeout(2):
            for wire in wires:
                assert b"the server is shutting down" in await wire.rest_of_a_cut()
        refused = await api.http.post("/agents/gated/runs", data={"message": "hi"})
        assert (refused.status_code, refused.json()["error_type"]) == (503, "unavailable") and refused.headers["retry-after"]
        gate.opened.set()


async def test_a_waiting_client_is_told_503_with_the_place_of_its_run_when_the_server_goes_away(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent], drain_s=0.1) as api:
        waiting = asyncio.create_task(api.http.post("/agents/gated/runs", json={"message": "hi", "stream": False}))
        await gate.reached.wait()
        api.container.begin_drain()
        answer = await waiting
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert (await api.http.get(answer.headers["location"])).json()["status"] == "PENDING"


async def test_a_run_that_is_deleted_under_its_viewer_cuts_nobody_off_in_silence(sqlite_url: str) -> None:
    agent, _gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        wire = await (await Wire(api.port).open()).submit("gated", message="hi", session_id="s")
        await wire.head()
        await wire.until(b"before ")
        assert (await api.http.delete("/sessions/s", params={"force": "true"})).status_code == 204
        assert b"event: RunCancelled" in await wire.until(b"event: RunCancelled")
        await wire.close()


async def test_a_users_own_middleware_does_not_tie_runs_to_connections(sqlite_url: str) -> None:
    """B26."""
    agent, gate = gated()

    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    def prepare(app: FastAPI) -> None:
        app.add_middleware(BaseHTTPMiddleware, dispatch=passing)

    async with api_server(sqlite_url, [agent], prepare=prepare) as api:
        wire = await (await Wire(api.port).open()).submit("gated", message="hi")
        run_id = (await wire.head())[1]["x-run-id"]
        await wire.until(b"before ")
        wire.reset()
        await asyncio.sleep(0.05)
        gate.opened.set()
        assert (await api.until(run_id, "COMPLETED", agent="gated"))["content"] == "before after"
        again = await api.http.post("/agents/gated/runs", data={"message": "hi"})
        assert names(frames_of(again.content))[-1] == "RunCompleted"


async def test_idle_streams_hold_no_connection_of_the_database(postgres_url: str) -> None:
    """B75: more viewers than the pools have connections, and everything else answers."""
    agent, gate = gated()
    async with api_server(postgres_url, [agent]) as api:
        run_id = await api.enqueue(agent="gated")
        wires = [await Wire(api.port).open() for _ in range(40)]
        for wire in wires:
            await wire.send(f"/agents/gated/runs/{run_id}/events", method="GET", Content_Type="")
            await wire.until(b"before ") if (await wire.head())[0] == 200 else None
        async with asyncio.timeout(2):
            assert (await api.http.get("/sessions")).status_code == 200
        gate.opened.set()
        for wire in wires:
            assert b"event: RunCompleted" in await wire.until(b"event: RunCompleted")
            await wire.close()
