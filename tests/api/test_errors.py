"""One body for every error, with nothing of the inside."""

import asyncio
import re

import pytest

from support.api_server import ApiServer, api_server
from waystation.agents.base import BaseAgent

WORD = re.compile(r"[a-z][a-z_]+\Z")

REFUSALS = [
    ("GET", "/agents/nope", 404, "agent_not_found"),
    ("POST", "/agents/nope/runs", 404, "agent_not_found"),
    ("GET", "/agents/plain/runs/nope", 404, "run_not_found"),
    ("GET", "/agents/plain/runs/nope/events", 404, "run_not_found"),
    ("POST", "/agents/plain/runs/nope/resume", 404, "run_not_found"),
    ("POST", "/agents/plain/runs/nope/cancel", 404, "run_not_found"),
    ("POST", "/agents/plain/runs/nope/continue", 404, "run_not_found"),
    ("GET", "/agents/plain/runs/nope/checkpoints", 404, "run_not_found"),
    ("GET", "/sessions/nope", 404, "session_not_found"),
    ("GET", "/sessions/nope/runs", 404, "session_not_found"),
    ("POST", "/agents/native/sessions/nope/fork", 404, "session_not_found"),
    ("POST", "/agents/native/sessions/nope/compact", 404, "session_not_found"),
    ("GET", "/approvals/nope", 404, "approval_not_found"),
    ("GET", "/no/such/route", 404, "not_found"),
    ("PUT", "/agents/plain/runs", 405, "method_not_allowed"),
    ("GET", "/memories", 503, "feature_disabled"),
    ("GET", "/sessions?page=x", 422, "invalid_input"),
    ("GET", "/sessions?page=1000000000000000000000", 422, "invalid_input"),
    ("GET", "/agents/plain/runs?page=1000000000000000000000", 422, "invalid_input"),
    ("GET", "/agents/plain/runs?limit=0", 422, "invalid_input"),
    ("GET", "/agents/plain/runs?status=WHATEVER", 422, "invalid_input"),
]


async def test_every_refusal_has_the_same_body_and_the_id_of_its_request(api_on_each: ApiServer) -> None:
    for method, path, status, word in REFUSALS:
        body = {"message": "hi"} if method == "POST" and path.endswith("/runs") else {}
        answer = await api_on_each.http.request(method, path, data=body)
        error = answer.json()
        assert (answer.status_code, error["error_type"], error["error_id"]) == (status, word, word), path
        assert error["request_id"] == answer.headers["x-request-id"] and WORD.match(word)
        assert error["detail"] and isinstance(error["detail"], list if status == 422 else str)
    assert await api_on_each.count("runs") == 0 and await api_on_each.count("sessions") == 0


async def test_each_answer_has_a_request_id_of_its_own(api: ApiServer) -> None:
    ids = [(await api.http.get(path)).headers["x-request-id"] for path in ("/", "/health", "/agents", "/nope", "/")]
    assert len(set(ids)) == 5


ODD_IDS = ["%00", "%0A", "%ff", "%ED%A0%80", "..%2F..", "'--", "x" * 3000, "%F0%9F%99%82", "%2e%2e"]
ODD_ID_PATHS = [
    "/agents/{}", "/agents/{}/runs", "/agents/plain/runs/{}", "/agents/plain/runs/{}/events", "/agents/plain/runs/{}/checkpoints",
    "/sessions/{}", "/sessions/{}/runs", "/sessions/s/runs/{}", "/approvals/{}",
]  # fmt: skip


async def test_odd_ids_in_a_path_are_unknown_and_never_a_failure(api_on_each: ApiServer) -> None:
    """B98, B101."""
    for path in [path.format(odd) for odd in ODD_IDS for path in ODD_ID_PATHS]:
        answer = await api_on_each.http.get(path)
        assert answer.status_code == 404 and answer.json()["error_type"].endswith("not_found"), path


ODD_TEXTS = ["%00", "%ED%A0%80", "'--", "%25", "x" * 3000]
ODD_TEXT_PATHS = [
    "/sessions?search={}", "/sessions?session_name={}", "/sessions?component_id={}", "/sessions?user_id={}",
    "/agents/plain/runs?session_id={}", "/agents/plain/runs?user_id={}", "/approvals?run_id={}", "/approvals?agent_id={}",
    "/approvals/count?user_id={}", "/agents/plain/runs/x?session_id={}",
]  # fmt: skip


async def test_odd_texts_in_a_query_are_never_a_failure(api_on_each: ApiServer) -> None:
    for path in [path.format(odd) for odd in ODD_TEXTS for path in ODD_TEXT_PATHS]:
        answer = await api_on_each.http.get(path)
        assert answer.status_code in (200, 404, 422), (path, answer.text)


async def test_a_bug_is_500_with_its_request_id_and_nothing_of_the_inside(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """B98."""

    @api.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("postgresql://user:secret@host/db")

    answer = await api.http.get("/broken")
    body = answer.json()
    assert (answer.status_code, body["error_type"]) == (500, "internal_error")
    assert body["request_id"] == answer.headers["x-request-id"] and body["request_id"] in caplog.text
    assert not re.search("secret|Traceback|RuntimeError|waystation/|\\.py", answer.text)


async def test_a_store_that_can_not_be_reached_is_503_and_says_when_to_come_again(sqlite_url: str) -> None:
    """B57, B98: nothing of the statement is shown."""
    async with api_server(sqlite_url) as api:
        await api.sql("ALTER TABLE runs RENAME TO gone")
        for answer in (
            await api.http.post("/agents/plain/runs", data={"message": "hi"}),
            await api.http.get("/agents/plain/runs/x"),
        ):
            assert (answer.status_code, answer.json()["error_type"]) == (503, "unavailable")
            assert answer.headers["retry-after"] and not re.search("sqlite|SELECT|INSERT|no such table", answer.text)
        await api.sql("ALTER TABLE gone RENAME TO runs")
        assert (await api.run())["status"] == "COMPLETED"


async def test_a_server_that_shuts_down_takes_no_runs_and_says_so(api: ApiServer) -> None:
    api.container.begin_drain()
    for fields in ({"stream": "false"}, {}, {"background": "true"}):
        answer = await api.http.post("/agents/plain/runs", data={"message": "hi", **fields})
        assert (answer.status_code, answer.json()["error_type"], bool(answer.headers["retry-after"])) == (503, "unavailable", True)
    assert (await api.http.get("/health")).status_code == 503 and await api.count("runs") == 0


async def test_other_content_types_are_415(api: ApiServer) -> None:
    for kind in ("text/plain", "application/xml", "application/octet-stream"):
        answer = await api.http.post("/agents/plain/runs", content=b"message=hi", headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error_type"]) == (415, "unsupported_content_type")


async def test_descriptions_of_agents_are_never_a_failure(sqlite_url: str) -> None:
    """B109: also without agents."""
    none: list[BaseAgent] = []
    async with api_server(sqlite_url, none) as api:
        for path in ("/", "/health", "/info", "/config", "/agents", "/teams", "/workflows", "/queue/stats", "/sessions"):
            assert (await api.http.get(path)).status_code == 200
    async with api_server(sqlite_url) as api:
        agents, config = (await api.http.get("/agents")).json(), (await api.http.get("/config")).json()
        assert [agent["id"] for agent in agents] == ["native", "plain", "ext"] == [agent["id"] for agent in config["agents"]]


async def test_an_error_is_exposed_to_browsers_like_any_answer(api: ApiServer) -> None:
    origin = {"origin": "http://localhost:3000"}
    answer = await api.http.post("/agents/nope/runs", data={"message": "hi"}, headers=origin)
    assert answer.headers["access-control-allow-origin"] == origin["origin"]
    assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
    refused = await api.http.options(
        "/agents/plain/runs", headers={"origin": "http://evil.example", "access-control-request-method": "POST"}
    )
    assert "access-control-allow-origin" not in refused.headers


async def test_refusals_do_not_cost_slots(api: ApiServer) -> None:
    """B18."""
    await api.run(session_id="s", user_id="a")
    bodies = [{"message": "hi", "session_id": "s", "user_id": "b"}, {"message": "hi", "debug_mode": True}, {"message": " "}]
    await asyncio.gather(*(api.http.post("/agents/plain/runs", json=bodies[n % 3]) for n in range(60)))
    assert api.container.slots.used == 0
