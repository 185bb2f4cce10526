"""Idempotency-Key: one key, one run, in any mode."""

import asyncio
from typing import Any

import httpx
import pytest

from support.api_agents import gated
from support.api_server import ApiServer, api_server
from support.api_wire import frames_of

RUNS = "/agents/plain/runs"


async def keyed(api: ApiServer, key: str = "k", path: str = RUNS, **fields: Any) -> httpx.Response:
    body = {"message": "hi", "stream": False, **fields}
    return await api.http.post(path, json=body, headers={"Idempotency-Key": key})


async def test_the_same_key_answers_the_first_run_in_every_mode(api_on_each: ApiServer) -> None:
    """B48, B66."""
    api = api_on_each
    first = await keyed(api, session_id="s")
    run_id = first.json()["run_id"]
    again = await keyed(api, session_id="s")
    queued = await keyed(api, session_id="s", background=True)
    streamed = await keyed(api, session_id="s", stream=True, stream_events=False, on_disconnect="cancel")
    assert again.json() == first.json() and (queued.status_code, queued.json()["run_id"]) == (202, run_id)
    assert streamed.headers["x-run-id"] == run_id and frames_of(streamed.content)[-1].name == "RunCompleted"
    assert await api.count("runs") == 1


async def test_many_at_once_make_one_run(api_on_each: ApiServer) -> None:
    """B48."""
    answers = await asyncio.gather(*(keyed(api_on_each) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert await api_on_each.count("runs") == 1 and await api_on_each.count("sessions") == 1


@pytest.mark.parametrize("changed", [{"message": "other"}, {"session_id": "t"}, {"metadata": {"a": 1}}, {"max_attempts": 2}])
async def test_another_body_under_the_key_is_a_conflict(api: ApiServer, changed: dict[str, Any]) -> None:
    """B66."""
    first = await keyed(api, session_id="s")
    answer = await keyed(api, **{"session_id": "s", **changed})
    assert (answer.status_code, answer.json()["error_type"]) == (409, "idempotency_conflict")
    assert answer.json()["run_id"] == first.json()["run_id"] and await api.count("runs") == 1


async def test_the_key_is_looked_up_before_busy(sqlite_url: str) -> None:
    """B48: a client that asks again is given its own run, not told that it is in its own way."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        path = "/agents/gated/runs"
        first = asyncio.create_task(keyed(api, path=path, session_id="s"))
        await gate.reached.wait()
        again = asyncio.create_task(keyed(api, path=path, session_id="s"))
        other = await keyed(api, "other", path, session_id="s")
        assert other.json()["error_type"] == "session_busy"
        gate.opened.set()
        assert (await first).json()["run_id"] == (await again).json()["run_id"]


async def test_a_key_belongs_to_its_user_and_its_agent(api: ApiServer) -> None:
    """B66."""
    answers = [await keyed(api), await keyed(api, user_id="a"), await keyed(api, user_id="b"), await keyed(api, path="/agents/ext/runs")]
    assert len({answer.json()["run_id"] for answer in answers}) == 4


async def test_a_key_outlives_its_session(api: ApiServer) -> None:
    await keyed(api, session_id="s")
    assert (await api.http.delete("/sessions/s")).status_code == 204
    answer = await keyed(api, session_id="s")
    assert (answer.status_code, answer.json()["error_type"]) == (409, "run_deleted")
    assert await api.count("runs") == 0 and await api.count("sessions") == 0


async def test_other_keys_are_422_and_nothing_is_stored(api: ApiServer) -> None:
    """B66."""
    for key in ["x", "x" * 512, "!~{}\"',:;"]:
        assert (await keyed(api, key)).status_code == 200


async def test_keys_of_visible_ascii_are_taken(api: ApiServer) -> None:
    for key in ["", "x" * 513, "a b", "a\tb", "é"]:
        answer = await api.http.post(RUNS, json={"message": "hi"}, headers={"Idempotency-Key": key.encode("latin-1")})
        assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][-1] == "Idempotency-Key"
        assert await api.count("runs") == 0


async def test_a_refused_request_uses_no_key(api: ApiServer) -> None:
    assert (await keyed(api, message=" ")).status_code == 422
    assert (await keyed(api)).status_code == 200


async def test_the_files_of_a_request_are_part_of_it(api: ApiServer) -> None:
    async def upload(content: bytes) -> httpx.Response:
        files = {"files": ("a.txt", content, "text/plain")}
        return await api.http.post("/agents/native/runs", data={"message": "hi"}, files=files, headers={"Idempotency-Key": "k"})

    first, again, other = await upload(b"1"), await upload(b"1"), await upload(b"2")
    assert first.headers["x-run-id"] == again.headers["x-run-id"] and other.status_code == 409
