"""Sessions: made, listed, changed while runs go on, forked, and deleted without a rest."""

import asyncio
from typing import Any

from support.api_agents import gated
from support.api_server import ApiServer, api_server

TABLES = ["sessions", "runs", "run_events", "run_messages", "attachments", "approvals"]


async def make(api: ApiServer, **fields: Any) -> dict[str, Any]:
    answer = await api.http.post("/sessions", json=fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def ids(api: ApiServer, **query: Any) -> list[str]:
    return [item["session_id"] for item in (await api.http.get("/sessions", params=query)).json()["data"]]


async def test_a_session_is_made_before_its_first_run_and_takes_its_agent_from_it(api_on_each: ApiServer) -> None:
    api = api_on_each
    made = await make(api, session_id="s", session_name="Name", session_state={"a": 1}, metadata={"m": [1]}, user_id="u")
    assert (made["session_name"], made["session_state"], made["metadata"], made["agent_id"]) == ("Name", {"a": 1}, {"m": [1]}, None)
    run = await api.run(session_id="s", user_id="u")
    after = (await api.http.get("/sessions/s")).json()
    assert (run["user_id"], after["agent_id"], after["session_name"]) == ("u", "plain", "Name")
    assert [m["role"] for m in after["chat_history"]] == ["user", "assistant"] and after["total_tokens"] == 18
    assert (await api.http.post("/sessions", json={"session_id": "s"})).json()["error_type"] == "session_exists"


async def test_a_new_session_of_many_at_once_is_made_once(api_on_each: ApiServer) -> None:
    """B51."""
    answers = await asyncio.gather(*(api_on_each.http.post("/sessions", json={"session_id": "s"}) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19


async def test_sessions_are_listed_filtered_searched_and_paged(api_on_each: ApiServer) -> None:
    api = api_on_each
    for number, (name, user) in enumerate([("Alpha", "u"), ("beta 100%", "u"), ("gamma_x", "v")]):
        await make(api, session_id=f"s{number}", session_name=name, user_id=user, agent_id="plain" if number else "native")
    assert await ids(api) == ["s2", "s1", "s0"] and await ids(api, sort_order="asc") == ["s0", "s1", "s2"]
    assert await ids(api, user_id="u") == ["s1", "s0"] and await ids(api, component_id="native") == ["s0"]
    assert await ids(api, search="ALPHA") == ["s0"] and await ids(api, search="%") == ["s1"] and await ids(api, search="a_x") == ["s2"]
    assert await ids(api, page=2, limit=2) == ["s0"] and await ids(api, type="team") == []
    meta = (await api.http.get("/sessions", params={"limit": 2})).json()["meta"]
    assert (meta["total_count"], meta["total_pages"]) == (3, 2)


async def test_only_what_is_named_is_changed_also_while_a_run_goes_on(sqlite_url: str) -> None:
    """B45."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        await make(api, session_id="s", metadata={"a": 1}, session_state={"k": 1})
        run_id = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        changes = [{"session_name": "New"}, {"metadata": {"b": 2}}, {"summary": {"summary": "x"}}]
        await asyncio.gather(*(api.http.patch("/sessions/s", json=change) for change in changes))
        gate.opened.set()
        await api.until(run_id, "COMPLETED", agent="gated")
        after = (await api.http.get("/sessions/s")).json()
        assert (after["session_name"], after["session_state"], after["session_summary"]) == ("New", {"k": 1}, {"summary": "x"})
        assert after["metadata"] == {"b": 2, "sdk": "small-sdk"} and len(after["chat_history"]) == 2


async def test_a_session_is_renamed(api: ApiServer) -> None:
    await make(api, session_id="s")
    assert (await api.http.post("/sessions/s/rename", json={"session_name": "é"})).json()["session_name"] == "é"
    assert (await api.http.post("/sessions/s/rename", json={})).status_code == 422


async def test_deleting_a_session_leaves_nothing_of_it_in_any_table(api_on_each: ApiServer) -> None:
    api = api_on_each
    await api.run("approve", "native", session_id="s")
    files = {"files": ("a.txt", b"x", "text/plain")}
    await api.http.post("/agents/native/runs", data={"message": "hi", "session_id": "s"}, files=files)
    assert [bool(await api.count(table)) for table in TABLES] == [True] * 6
    assert (await api.http.delete("/sessions/s")).status_code == 204
    assert [await api.count(table) for table in TABLES] == [0] * 6
    assert (await api.http.delete("/sessions/s")).status_code == 204


async def test_a_deleted_id_can_be_used_again_without_the_old_history(api: ApiServer) -> None:
    """B53."""
    old = await api.run("old", session_id="s")
    await api.http.delete("/sessions/s")
    await api.run("new", "native", session_id="s")
    history = (await api.http.get("/sessions/s")).json()["chat_history"]
    assert [m["content"] for m in history if m["role"] == "user"] == ["new"]
    assert (await api.http.get(f"/agents/plain/runs/{old['run_id']}")).status_code == 404


async def test_a_session_with_a_turn_in_flight_is_deleted_only_by_force(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        await api.enqueue(agent="gated", session_id="s")
        refused = await api.http.delete("/sessions/s")
        assert (refused.status_code, refused.json()["error_type"], refused.json()["run_id"]) == (409, "session_busy", first)
        assert (await api.http.delete("/sessions/s", params={"force": "true"})).status_code == 204
        assert [await api.count(table) for table in TABLES] == [0] * 6 and gate.passed == 0


async def test_many_sessions_are_deleted_at_once(api: ApiServer) -> None:
    for number in range(3):
        await make(api, session_id=f"s{number}")
    body = {"session_ids": ["s0", "s2", "unknown", "a/b"], "session_types": ["agent"] * 4}
    answer = await api.http.request("DELETE", "/sessions", json=body)
    assert answer.status_code == 204 and await ids(api) == ["s1"]


OTHERS = [
    ("GET", "/sessions/s", {}, 404), ("PATCH", "/sessions/s", {"session_name": "x"}, 404), ("DELETE", "/sessions/s", {}, 204),
    ("POST", "/sessions/s/rename", {"session_name": "x"}, 404), ("GET", "/sessions/s/runs", {}, 404),
    ("POST", "/agents/native/sessions/s/fork", {}, 404),
]  # fmt: skip


async def test_another_users_session_is_not_found(api: ApiServer) -> None:
    """B93: by the label that a request carries."""
    await api.run("hi", "native", session_id="s", user_id="a")
    for method, path, body, code in OTHERS:
        answer = await api.http.request(method, path, params={"user_id": "b"}, json=body)
        assert answer.status_code == code, (method, path)
    assert (await api.http.get("/sessions/s", params={"user_id": "a"})).json()["session_name"] == "hi"
    assert await api.count("sessions") == 1


async def test_the_runs_of_a_session_come_in_pages(api: ApiServer) -> None:
    made = [(await api.run(session_id="s"))["run_id"] for _ in range(3)]
    for page, expected in ((1, made[:2]), (2, made[2:]), (3, [])):
        listed = (await api.http.get("/sessions/s/runs", params={"page": page, "limit": 2})).json()
        assert [run["run_id"] for run in listed] == expected
    assert (await api.http.get("/sessions/s/runs", params={"limit": 201})).status_code == 422
    assert (await api.http.get(f"/sessions/s/runs/{made[0]}")).json()["run_id"] == made[0]


async def test_a_fork_has_the_history_and_goes_its_own_way(api_on_each: ApiServer) -> None:
    api = api_on_each
    await api.run("one", "native", session_id="s")
    before = (await api.http.get("/sessions/s")).json()
    fork = (await api.http.post("/agents/native/sessions/s/fork")).json()
    assert fork["forked_from_session_id"] == "s"
    await api.run("two", "native", session_id=fork["session_id"])
    copy = (await api.http.get(f"/sessions/{fork['session_id']}")).json()
    assert [m["content"] for m in copy["chat_history"] if m["role"] == "user"] == ["one", "two"]
    assert (await api.http.get("/sessions/s")).json() == before


async def test_what_an_agent_can_not_do_with_a_session_is_501(api: ApiServer) -> None:
    await api.run(agent="ext", session_id="e")
    await api.run(agent="native", session_id="n")
    for path in ("/agents/ext/sessions/e/fork", "/agents/ext/sessions/e/compact", "/agents/native/sessions/n/compact"):
        answer = await api.http.post(path)
        assert (answer.status_code, answer.json()["error_type"]) == (501, "not_supported")


async def test_each_message_is_in_the_history_once(api: ApiServer) -> None:
    """B59: also after a continuation that took messages over."""
    run = await api.run("tool", "native", session_id="s")
    await api.http.post(f"/agents/native/runs/{run['run_id']}/continue", json={"input": "more", "stream": False})
    history = (await api.http.get("/sessions/s")).json()["chat_history"]
    assert len({m["id"] for m in history}) == len(history) == 6


async def test_tokens_of_all_runs_are_added_up(api_on_each: ApiServer) -> None:
    """B123."""
    words = ["tool", "hi", "fail", "flaky", "hi"]
    runs = await asyncio.gather(*(api_on_each.run(word, "native", session_id="s", on_busy="enqueue") for word in words))
    session = (await api_on_each.http.get("/sessions/s")).json()
    assert session["total_tokens"] == sum((run.get("metrics") or {}).get("total_tokens", 0) for run in runs) == 18 * 5
