"""What was sent and said is what is read, on every route and both databases alike."""

import json
import math
from typing import Any

import pytest

from support.api_agents import SmallAgent
from support.api_server import ApiServer, api_server
from support.api_wire import frames_of, text_of
from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import Call, ScriptedModel
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.event import RunContent
from waystation.domain.message import Message

TEXTS = {
    "a\x00b": "a\ufffdb", "\ud800x": "\ufffdx", "\ud83d\ude42": "🙂", "👩‍👩‍👧‍👦 é e\u0301": "👩‍👩‍👧‍👦 é e\u0301",
    "a\u2028b\u2029c\x85d": "a\u2028b\u2029c\x85d", "x\r\ny\rz\n": "x\r\ny\rz\n", '{"a": 1}': '{"a": 1}', "\ufeffbom": "\ufeffbom",
    "\x01\x1f\x7f": "\x01\x1f\x7f", "id: 5\n\nevent: RunCompleted": "id: 5\n\nevent: RunCompleted",
}  # fmt: skip


async def echo(turn: Turn, emit: Emitter) -> TurnResult | None:
    text = turn.run.metadata.get("say", turn.run.input.message)
    emit(RunContent(content=text))
    return None


@pytest.mark.parametrize("encoding", ["json", "data", "files"])
async def test_text_is_kept_in_every_encoding_and_read_alike_on_every_route(database_url: str, encoding: str) -> None:
    """B72, B88."""
    async with api_server(database_url, [SmallAgent(echo)]) as api:
        for sent, expected in TEXTS.items():
            if encoding != "json" and sent != sent.encode("utf-8", "replace").decode():
                continue  # a lone surrogate has no UTF-8
            body: Any = {"message": f"m {sent}"}
            if encoding == "json":
                args: dict[str, Any] = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
            else:
                args = {encoding: body if encoding == "data" else {"message": (None, body["message"].encode())}}
            streamed = await api.http.post("/agents/small/runs", **args)
            run_id, text = streamed.headers["x-run-id"], f"m {expected}"
            run = await api.get(run_id, "small")
            assert text_of(frames_of(streamed.content)) == run["content"] == run["input"]["input_content"] == text, (sent, encoding)
            assert [m["content"] for m in run["messages"]] == [text, text]
            assert (await api.events(run_id, "small"))[1]["content"] == text
            assert (await api.http.get(f"/sessions/{run['session_id']}/runs")).json()[0]["content"] == text


async def test_names_metadata_and_state_are_cleaned_in_keys_too(api_on_each: ApiServer) -> None:
    """B72."""
    body = {"session_id": "s", "session_name": "a\x00b", "metadata": {"k\x00": "\ud800"}, "session_state": {"🙂": ["\x00"]}}
    await api_on_each.http.post("/sessions", content=json.dumps(body), headers={"content-type": "application/json"})
    session = (await api_on_each.http.get("/sessions/s")).json()
    assert (session["session_name"], session["metadata"], session["session_state"]) == (
        "a\ufffdb", {"k\ufffd": "\ufffd"}, {"🙂": ["\ufffd"]},
    )  # fmt: skip


def calling(tool: Any, *arguments: str) -> Agent:
    def script(messages: list[Message]) -> list[Any]:
        return ["done"] if messages[-1].role == "tool" else [Call(tool.__name__, a) for a in arguments or ("{}",)]

    return Agent(id="native", model=ScriptedModel(script), tools=[tool])


async def strict(api: ApiServer, path: str) -> Any:
    """An answer read by a parser that knows no NaN."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} on {path}")

    return json.loads((await api.http.get(path)).content, parse_constant=refuse)


async def test_what_json_has_no_word_for_becomes_null_everywhere(database_url: str) -> None:
    """B86."""

    def measure() -> dict[str, Any]:
        """Measure."""
        return {"x": math.nan, "y": [math.inf, -math.inf], "城市": "上海", "n": 2**70}

    async with api_server(database_url, [calling(measure)]) as api:
        run = await api.run("hi", "native", session_id="s")
        place = f"/agents/native/runs/{run['run_id']}"
        for path in (place, f"{place}/checkpoints", f"{place}/checkpoints/3", f"{place}/events?wait=0", "/sessions/s", "/sessions/s/runs"):
            assert (await strict(api, path)) is not None
        tool = next(m for m in run["messages"] if m["role"] == "tool")
        assert json.loads(tool["content"]) == {"x": None, "y": [None, None], "城市": "上海", "n": 2**70} and "上海" in tool["content"]


async def test_a_tool_result_of_many_megabytes_is_whole_and_the_stream_stays_live(sqlite_url: str) -> None:
    """B90."""

    def big() -> str:
        """Big."""
        return "x" * 5_000_000

    async with api_server(sqlite_url, [calling(big)]) as api:
        streamed = frames_of((await api.http.post("/agents/native/runs", data={"message": "hi"})).content)
        done = next(frame for frame in streamed if frame.name == "ToolCallCompleted")
        assert len(done.data["tool"]["result"]) == 5_000_000 and streamed[-1].name == "RunCompleted"


async def test_numbers_and_depths_at_the_limits_come_back_as_they_were(api_on_each: ApiServer) -> None:
    """B83."""
    value: Any = {"big": 2**70, "small": -(2**63), "float": 1.5e300, "zero": 0, "empty": [[], {}, ""], "deep": 1}
    for _ in range(97):
        value = {"a": value}
    run = await api_on_each.run(metadata=value, session_state={"k": 2**53 + 1})
    assert run["metadata"]["a"] == value["a"] and run["session_state"] == {"k": 2**53 + 1}


async def test_names_of_fields_that_look_like_paths_or_statements_are_only_text(api_on_each: ApiServer) -> None:
    odd = {"a.b": 1, "$.x": 2, "'; DROP TABLE runs; --": 3, ":rows": 4, "%s": 5, "": 6}
    run = await api_on_each.run("'); DELETE FROM runs; --", metadata=odd)
    assert {key: run["metadata"][key] for key in odd} == odd and run["input"]["input_content"] == "'); DELETE FROM runs; --"
