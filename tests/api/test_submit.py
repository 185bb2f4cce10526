"""Submitting runs: three encodings, four modes, and what every answer carries."""

import json
from typing import Any

import pytest

from support.api_agents import gated
from support.api_server import ApiServer, api_server
from support.api_wire import frames_of, indices, names, text_of

ALIKE = {"status", "content", "content_type", "model", "model_provider", "session_state", "input"}


def shape(run: dict[str, Any]) -> dict[str, Any]:
    """What does not differ between two runs of the same request."""
    tools = [(t["tool_name"], t["tool_args"], t["result"], t["tool_call_error"]) for t in run.get("tools") or []]
    tokens = {k: v for k, v in (run.get("metrics") or {}).items() if k.endswith("_tokens")}
    messages = [(m["role"], m.get("content")) for m in run["messages"]]
    return {key: run.get(key) for key in ALIKE} | {"tools": tools, "tokens": tokens, "messages": messages}


@pytest.mark.parametrize("encoding", ["data", "json", "files"])
async def test_a_form_a_multipart_form_and_json_mean_the_same(api: ApiServer, encoding: str) -> None:
    fields: dict[str, Any] = {"message": "hi é\n🙂", "stream": False, "session_id": "s", "metadata": {"a": [1]}}
    if encoding != "json":
        fields = {key: json.dumps(value) if isinstance(value, dict | bool) else value for key, value in fields.items()}
    if encoding == "files":
        fields = {key: (None, value) for key, value in fields.items()}
    answer = await api.http.post("/agents/plain/runs", **{encoding: fields})
    assert answer.status_code == 200
    run = answer.json()
    assert (run["session_id"], run["input"], run["metadata"]["a"]) == ("s", {"input_content": "hi é\n🙂"}, [1])


async def test_a_form_with_unescaped_utf_8_is_read_as_utf_8(api: ApiServer) -> None:
    answer = await api.http.post(
        "/agents/plain/runs",
        content="message=hi é 上海&stream=false".encode(),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.json()["input"]["input_content"] == "hi é 上海"


@pytest.mark.parametrize("agent", ["native", "ext"])
async def test_the_four_ways_to_submit_store_the_same_run(api_on_each: ApiServer, agent: str) -> None:
    """B27, B28."""
    api, path = api_on_each, f"/agents/{agent}/runs"
    waited = await api.run("tool", agent)
    streamed = await api.http.post(path, data={"message": "tool"})
    queued = await api.enqueue("tool", agent)
    followed = await api.http.post(path, data={"message": "tool", "background": "true"})
    runs = [waited, await api.get(streamed.headers["x-run-id"], agent), await api.until(queued, "COMPLETED", agent=agent)]
    runs.append(await api.get(followed.headers["x-run-id"], agent))
    assert [shape(run) for run in runs] == [shape(waited)] * 4
    logs = [names(frames_of(streamed.content)), names(frames_of(followed.content))]
    logs += [[event["event"] for event in await api.events(run["run_id"], agent)] for run in runs]
    assert all(log == logs[0] for log in logs)


@pytest.mark.parametrize(("agent", "background"), [("native", "true"), ("native", "false"), ("ext", "true")])
async def test_run_continue_and_resume_stream_in_one_wire_format(api: ApiServer, agent: str, background: str) -> None:
    """B27: whatever the agent yields, every route frames it alike."""
    path = f"/agents/{agent}/runs"
    run = await api.http.post(path, data={"message": "chunks 3", "background": background})
    run_path = run.headers["location"]
    resumed = await api.http.post(f"{run_path}/resume")
    watched = await api.http.get(f"{run_path}/events")
    frames = frames_of(run.content)
    assert indices(frames) == list(range(len(frames))) and names(frames)[-1] == "RunCompleted"
    assert frames_of(resumed.content)[1:] == frames == frames_of(watched.content)
    if agent == "native":
        again = await api.http.post(f"{run_path}/continue", data={"input": "hi", "background": background})
        assert names(frames_of(again.content))[-1] == "RunCompleted"


async def test_a_background_run_is_accepted_with_its_place_and_can_be_read_at_once(api_on_each: ApiServer) -> None:
    api = api_on_each
    answer = await api.http.post("/agents/plain/runs", json={"message": "slow 3 20", "background": True, "stream": False})
    body = answer.json()
    assert (answer.status_code, body["status"]) == (202, "PENDING")
    assert answer.headers["location"] == f"/agents/plain/runs/{body['run_id']}"
    assert (answer.headers["x-run-id"], answer.headers["x-session-id"]) == (body["run_id"], body["session_id"])
    found = await api.http.get(answer.headers["location"])
    assert found.status_code == 200 and found.json()["status"] in ("PENDING", "RUNNING")
    assert (await api.until(body["run_id"], "COMPLETED"))["content"] == "s0 s1 s2 "


async def test_a_foreground_answer_says_where_its_run_is(api: ApiServer) -> None:
    for stream in [True, False]:
        answer = await api.http.post("/agents/plain/runs", json={"message": "hi", "stream": stream, "session_id": "s"})
        run_id = answer.headers["x-run-id"]
        assert answer.headers["location"] == f"/agents/plain/runs/{run_id}"
        assert answer.headers["x-session-id"] == "s"
        assert (await api.get(run_id))["status"] == "COMPLETED"


async def test_the_headers_of_a_run_are_exposed_to_browsers(api: ApiServer) -> None:
    answer = await api.http.post("/agents/plain/runs", data={"message": "hi"}, headers={"origin": "http://localhost:3000"})
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert {"location", "x-run-id", "x-session-id"} <= exposed


async def test_a_session_id_beyond_ascii_is_escaped_in_the_headers(api: ApiServer) -> None:
    answer = await api.http.post("/agents/plain/runs", data={"message": "hi", "session_id": "città-上海"})
    assert answer.headers["x-session-id"] == "citt%C3%A0-%E4%B8%8A%E6%B5%B7"
    assert (await api.http.get(f"/sessions/{answer.headers['x-session-id']}")).json()["session_id"] == "città-上海"


async def test_composed_and_decomposed_ids_are_two_sessions(api: ApiServer) -> None:
    """B89: ids are compared as they were sent."""
    for session in ("é", "e\u0301"):
        await api.run(session_id=session)
    assert (await api.http.get("/sessions")).json()["meta"]["total_count"] == 2


async def test_a_failed_run_is_200_with_its_error_in_every_mode(api: ApiServer) -> None:
    for agent in ["native", "ext"]:
        answer = await api.run("fail", agent, max_attempts=1)
        assert answer["status"] == "ERROR"
        assert answer["content"] == answer["error"]["message"] and set(answer["error"]) == {"type", "message", "retryable"}
        streamed = frames_of((await api.http.post(f"/agents/{agent}/runs", data={"message": "fail", "max_attempts": "1"})).content)
        assert text_of(streamed) == "partial "
        last = streamed[-1]
        assert (last.name, last.data["content"], last.data["error_type"]) == ("RunError", answer["content"], answer["error"]["type"])


async def test_a_message_is_handed_on_verbatim(api: ApiServer) -> None:
    for message in ["-x", "--help", "@file", "/compact", "!ls", "- [ ] do it", " hi ", "🙂"]:
        run = await api.run(message)
        assert run["input"]["input_content"] == message
        assert [m["content"] for m in run["messages"] if m["role"] == "user"] == [message]


async def test_a_client_cannot_choose_the_id_of_its_run(api: ApiServer) -> None:
    """B91."""
    first = await api.run()
    answer = await api.http.post("/agents/plain/runs", data={"message": "hi", "run_id": first["run_id"]})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", "run_id"]
    assert await api.get(first["run_id"]) == first and await api.count("runs") == 1


async def test_an_empty_session_id_means_a_new_session(api: ApiServer) -> None:
    first, second = [await api.run(session_id="", user_id="") for _ in range(2)]
    assert first["session_id"] != second["session_id"]


async def test_a_run_is_read_while_it_goes_on(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        running = await api.until(run_id, "RUNNING", agent="gated")
        listed = (await api.http.get("/agents/gated/runs", params={"session_id": "s", "status": "RUNNING"})).json()
        gate.opened.set()
        assert "content" not in running and [run["run_id"] for run in listed] == [run_id]
        assert (await api.until(run_id, "COMPLETED", agent="gated"))["content"] == "before after"


async def test_runs_are_listed_oldest_first_in_pages_and_by_status(api: ApiServer) -> None:
    ids = [(await api.run(word, session_id="s"))["run_id"] for word in ("hi", "fail", "hi")]
    path = "/agents/plain/runs"

    async def listed(**query: Any) -> list[str]:
        return [run["run_id"] for run in (await api.http.get(path, params=query)).json()]

    assert await listed() == await listed(session_id="s") == ids
    assert await listed(order="desc") == ids[::-1]
    assert [await listed(page=page, limit=2) for page in (1, 2, 3)] == [ids[:2], ids[2:], []]
    assert await listed(status="ERROR") == [ids[1]]
    assert await listed(session_id="other") == []


async def test_a_run_that_is_not_due_waits(api: ApiServer) -> None:
    from waystation.clock import now

    run_id = await api.enqueue(available_at=now() + 0.3)
    due = (await api.sql("SELECT available_at FROM runs"))[0][0]
    run = await api.until(run_id, "COMPLETED")
    started = (await api.sql("SELECT started_at FROM runs"))[0][0]
    assert run["content"] == "Hello from the stub." and started >= due


async def test_the_model_and_the_attempts_are_recorded_on_each_run(api: ApiServer) -> None:
    run = await api.run("flaky", "ext")
    assert (run["model"], run["model_provider"]) == ("stub-ext-1", "StubExt")
    assert (run["metadata"]["attempts"], run["metadata"]["sdk"]) == (2, "stub-sdk")
    assert [warning["type"] for warning in run["metadata"]["warnings"]] == ["retry"]
    started = (await api.events(run["run_id"], "ext"))[0]
    assert (started["model"], started["model_provider"]) == ("stub-ext-1", "StubExt")


async def test_a_retry_voids_what_was_said_and_the_indices_go_on(api: ApiServer) -> None:
    """B115: same run, told as an event, the answer whole."""
    frames = frames_of((await api.http.post("/agents/ext/runs", data={"message": "flaky"})).content)
    assert indices(frames) == list(range(len(frames)))
    warning = next(frame for frame in frames if frame.name == "CustomEvent").data["warning"]
    assert {k: warning[k] for k in ("type", "attempt", "attempts")} == {"type": "retry", "attempt": 1, "attempts": 2}
    kept = [f for f in frames if f.index < warning["discard_from"] or f.index > frames[names(frames).index("CustomEvent")].index]
    assert text_of(kept) == frames[-1].data["content"] == "ext ans wer"
