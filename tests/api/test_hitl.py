"""Runs that wait for somebody: confirmation, input, an external result, an admin's approval."""

from typing import Any

import httpx

from support.api_server import ApiServer


async def pause(api: ApiServer, word: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The path of a paused run, the run and its call that waits."""
    run = await api.run(word, "native", session_id="s")
    assert run["status"] == "PAUSED", run
    return f"/agents/native/runs/{run['run_id']}", run, run["requirements"][0]["tool_execution"]


async def go_on(api: ApiServer, path: str, *tools: dict[str, Any], **fields: Any) -> httpx.Response:
    return await api.http.post(f"{path}/continue", json={"tools": list(tools), "stream": False, **fields})


def results(run: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(m["content"], m.get("tool_call_error")) for m in run["messages"] if m["role"] == "tool"]


async def test_a_confirmed_call_runs_and_a_declined_one_does_not(api_on_each: ApiServer) -> None:
    path, run, call = await pause(api_on_each, "confirm")
    done = (await go_on(api_on_each, path, call | {"confirmed": True})).json()
    assert (done["run_id"], done["status"], results(done)) == (run["run_id"], "COMPLETED", [("deleted notes.txt", False)])
    path, _, call = await pause(api_on_each, "confirm")
    declined = (await go_on(api_on_each, path, call | {"confirmed": False, "confirmation_note": "too risky"})).json()
    assert declined["status"] == "COMPLETED" and results(declined)[0][1] is True and "too risky" in results(declined)[0][0]


async def test_the_indices_of_a_run_go_on_after_its_pause(api: ApiServer) -> None:
    path, run, call = await pause(api, "confirm")
    before = await api.events(run["run_id"], "native")
    await go_on(api, path, call | {"confirmed": True})
    after = await api.events(run["run_id"], "native")
    assert after[: len(before)] == before and after[len(before)]["event"] == "RunContinued"
    assert [event["event_index"] for event in after] == list(range(len(after)))


async def test_missing_input_is_filled_in_by_the_client(api: ApiServer) -> None:
    path, _, call = await pause(api, "userinput")
    fields = [field | ({"value": "ann@x"} if field["name"] == "to" else {}) for field in call["user_input_schema"]]
    done = (await go_on(api, path, call | {"user_input_schema": fields})).json()
    assert results(done) == [("sent hello to ann@x", False)]


async def test_an_external_call_is_answered_by_the_client_and_never_run_here(api: ApiServer) -> None:
    path, _, call = await pause(api, "external")
    assert results((await go_on(api, path, call | {"result": "a.txt"})).json()) == [("a.txt", False)]


async def test_open_requirements_are_named_and_nothing_goes_on(api: ApiServer) -> None:
    path, run, call = await pause(api, "confirm")
    for tools in ([], [call], [call | {"confirmed": "yes"}], [call | {"result": "x"}]):
        answer = await go_on(api, path, *tools)
        assert (answer.status_code, answer.json()["error_type"]) == (409, "requirements_open")
        assert [r["tool_call_id"] for r in answer.json()["requirements"]] == [call["tool_call_id"]]
    assert (await api.get(run["run_id"], "native"))["status"] == "PAUSED"


async def test_only_the_runs_own_calls_can_be_answered_and_never_be_changed(api: ApiServer) -> None:
    path, _, call = await pause(api, "confirm")
    foreign = await go_on(api, path, {"tool_call_id": "other", "confirmed": True})
    assert (foreign.status_code, foreign.json()["error_type"]) == (409, "unknown_requirement")
    forged = call | {"confirmed": True, "tool_name": "run_shell", "tool_args": {"path": "/etc/passwd"}}
    assert results((await go_on(api, path, forged)).json()) == [("deleted notes.txt", False)]


async def test_a_confirmation_never_stands_in_for_an_admin(api_on_each: ApiServer) -> None:
    api = api_on_each
    path, run, call = await pause(api, "approve")
    assert (await go_on(api, path, call | {"confirmed": True})).json()["error_type"] == "requirements_open"
    waiting = (await api.http.get("/approvals", params={"status": "pending", "run_id": run["run_id"]})).json()["data"]
    assert (await api.http.get("/approvals/count")).json() == {"count": 1}
    decided = await api.http.post(f"/approvals/{waiting[0]['id']}/resolve", json={"status": "approved", "resolved_by": "admin"})
    assert decided.json()["status"] == "approved"
    again = await api.http.post(f"/approvals/{waiting[0]['id']}/resolve", json={"status": "rejected"})
    assert (again.status_code, again.json()["error_type"]) == (409, "approval_resolved")
    assert results((await go_on(api, path)).json()) == [("wired 5", False)]


async def test_a_rejected_call_is_not_run(api: ApiServer) -> None:
    path, _, _ = await pause(api, "approve")
    waiting = (await api.http.get("/approvals")).json()["data"]
    await api.http.post(f"/approvals/{waiting[0]['id']}/resolve", json={"status": "rejected"})
    done = (await go_on(api, path)).json()
    assert done["status"] == "COMPLETED" and results(done)[0][1] is True and "wired" not in results(done)[0][0]


async def test_two_continuations_at_once_run_a_call_once(api: ApiServer) -> None:
    import asyncio

    path, run, call = await pause(api, "confirm")
    answers = await asyncio.gather(*(go_on(api, path, call | {"confirmed": True}) for _ in range(5)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes[0] == 200 and set(codes) <= {200, 409}
    log = [event["event"] for event in await api.events(run["run_id"], "native")]
    assert log.count("ToolCallCompleted") == 1 and log.count("RunContinued") == 1


async def test_malformed_answers_are_422(api: ApiServer) -> None:
    for tools in ["{", "[1]", '"x"', "[[]]", "{}"]:
        path, run, _ = await pause(api, "confirm")
        answer = await api.http.post(f"{path}/continue", data={"tools": tools})
        assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][:2] == ["body", "tools"]
        assert (await api.get(run["run_id"], "native"))["status"] == "PAUSED"


async def test_another_users_requirement_can_not_be_answered(api: ApiServer) -> None:
    """B96."""
    run = await api.run("confirm", "native", user_id="a")
    call = run["requirements"][0]["tool_execution"] | {"confirmed": True}
    answer = await go_on(api, f"/agents/native/runs/{run['run_id']}", call, user_id="b")
    assert (answer.status_code, answer.json()["error_type"]) == (404, "run_not_found")
