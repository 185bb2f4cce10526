"""Continuing finished runs: always a sibling, never a rewrite."""

from typing import Any

import httpx
import pytest

from support.api_server import ApiServer


async def go_on(api: ApiServer, run: dict[str, Any], **fields: Any) -> httpx.Response:
    return await api.http.post(f"/agents/native/runs/{run['run_id']}/continue", json={"stream": False, **fields})


async def test_a_continuation_is_a_sibling_and_its_source_stays_as_it_was(api_on_each: ApiServer) -> None:
    """B127."""
    run = await api_on_each.run("tool", "native", session_id="s")
    answer = await go_on(api_on_each, run, input="more")
    sibling = answer.json()
    assert sibling["run_id"] != run["run_id"] and answer.headers["x-run-id"] == sibling["run_id"]
    assert (sibling["forked_from_run_id"], sibling["forked_from_message_index"]) == (run["run_id"], len(run["messages"]))
    assert [m["content"] for m in sibling["messages"] if m["role"] == "user"] == ["tool", "more"]
    assert await api_on_each.get(run["run_id"], "native") == run


async def test_a_run_is_continued_from_each_of_its_messages(api: ApiServer) -> None:
    """B127: never between a call and its result."""
    run = await api.run("tool", "native")
    for index in range(len(run["messages"]) + 1):
        sibling = (await go_on(api, run, continue_from=index, input="more")).json()
        assert sibling["status"] == "COMPLETED" and sibling["forked_from_message_index"] <= index
        kept = [m["id"] for m in sibling["messages"] if m["from_history"]]
        assert kept == [m["id"] for m in run["messages"]][: sibling["forked_from_message_index"]]
    assert await api.get(run["run_id"], "native") == run


@pytest.mark.parametrize(("point", "code"), [("-1", 400), ("99", 400), ("x", 422), ("1.5", 422), ("1e3", 422), ("last", 422)])
async def test_a_point_that_is_not_there_is_refused(api: ApiServer, point: str, code: int) -> None:
    run = await api.run("hi", "native")
    answer = await go_on(api, run, continue_from=point, input="more")
    assert answer.status_code == code and await api.count("runs") == 1
    assert answer.json()["error_type"] == ("invalid_checkpoint" if code == 400 else "invalid_input")


async def test_regenerating_changes_nothing_of_the_source_but_its_status(api: ApiServer) -> None:
    run = await api.run("hi", "native", session_id="s")
    again = (await go_on(api, run, regenerate=True)).json()
    source = await api.get(run["run_id"], "native")
    assert (again["status"], source["status"], source["replaced_by_run_id"]) == ("COMPLETED", "REGENERATED", again["run_id"])
    assert {k: v for k, v in source.items() if k not in ("status", "replaced_by_run_id")} == {k: v for k, v in run.items() if k != "status"}
    kept = (await go_on(api, again, regenerate=True, replace_original=False)).json()
    assert kept["status"] == "COMPLETED" and (await api.get(again["run_id"], "native"))["status"] == "COMPLETED"


async def test_what_can_not_be_continued_is_refused_before_anything_is_stored(api: ApiServer) -> None:
    ext = await api.run("hi", "ext")
    refused = await api.http.post(f"/agents/ext/runs/{ext['run_id']}/continue", json={"input": "x"})
    assert (refused.status_code, refused.json()["error_type"]) == (501, "not_supported")
    run = await api.run("hi", "native")
    for fields in ({}, {"input": " "}, {"tools": "{"}, {"nonsense": 1}):
        assert (await go_on(api, run, **fields)).status_code == 422
    running = await api.enqueue("slow 200 20", "native")
    await api.until(running, "RUNNING", agent="native")
    answer = await go_on(api, {"run_id": running}, input="x")
    assert (answer.status_code, answer.json()["error_type"]) == (409, "run_in_flight")
    await api.http.post(f"/agents/native/runs/{running}/cancel", params={"wait": 5})
    answer = await go_on(api, {"run_id": running}, input="x")
    assert (answer.status_code, answer.json()["error_type"]) == (409, "run_not_continuable")


async def test_a_failed_run_is_continued_and_what_it_said_stays(api: ApiServer) -> None:
    run = await api.run("fail", "native")
    sibling = (await go_on(api, run, input="hi")).json()
    assert sibling["status"] == "COMPLETED" and (await api.get(run["run_id"], "native"))["status"] == "ERROR"


async def test_checkpoints_tell_where_a_run_may_be_continued(api: ApiServer) -> None:
    run = await api.run("tool", "native")
    path = f"/agents/native/runs/{run['run_id']}/checkpoints"
    points = (await api.http.get(path)).json()["checkpoints"]
    assert [p["message_index"] for p in points] == [len(run["messages"]) - 1, len(run["messages"])] and points[-1]["is_latest"]
    snapshot = (await api.http.get(f"{path}/{points[0]['message_index']}")).json()
    assert snapshot["snapshot"]["messages"] == run["messages"][:-1]
    for index, code in (("99", 400), ("-1", 400), ("x", 422)):
        assert (await api.http.get(f"{path}/{index}")).status_code == code


async def test_a_continuation_in_a_busy_session_is_409(api: ApiServer) -> None:
    run = await api.run("hi", "native", session_id="s")
    other = await api.enqueue("slow 200 20", "native", session_id="s")
    await api.until(other, "RUNNING", agent="native")
    assert (await go_on(api, run, input="x")).json()["error_type"] == "session_busy"
    await api.http.post(f"/agents/native/runs/{other}/cancel", params={"wait": 5})
