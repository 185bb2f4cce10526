"""The queue's views: runs as jobs, the queue's figures, and queueing a run again."""

import httpx
import pytest

from support.api_agents import gated
from support.api_server import ApiServer, api_server
from waystation.domain.access import Principal
from waystation.domain.lifecycle import RunStatus
from waystation.domain.page import PageRequest
from waystation.errors import RunNotFoundError

JOB_FIELDS = {
    "id", "component_type", "component_id", "session_id", "job_type", "user_id", "payload", "status", "attempt", "max_attempts",
    "idempotency_key", "available_at", "locked_by", "locked_at", "error", "created_at", "updated_at", "completed_at",
}  # fmt: skip


async def jobs(api: ApiServer, **params: object) -> dict[str, object]:
    answer = await api.http.get("/queue/jobs", params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ids(page: dict[str, object]) -> list[str]:
    return [job["id"] for job in page["data"]]  # type: ignore[attr-defined]


async def requeue(api: ApiServer, run_id: str) -> httpx.Response:
    return await api.http.post(f"/queue/jobs/{run_id}/requeue")


async def test_a_run_is_a_job_in_the_fields_of_agentos(api_on_each: ApiServer) -> None:
    run = await api_on_each.run("fail", session_id="s", user_id="u")
    job = (await api_on_each.http.get(f"/queue/jobs/{run['run_id']}")).json()
    assert set(job) == JOB_FIELDS
    assert (job["component_type"], job["component_id"], job["session_id"], job["user_id"]) == ("agent", "plain", "s", "u")
    assert (job["status"], job["error"], job["payload"]) == ("failed", run["content"], {"input": "fail", "kwargs": {}})
    assert (job["attempt"], job["locked_by"]) == (1, None) and job["completed_at"] >= job["created_at"]


async def test_a_waiting_job_has_no_attempt_and_a_running_one_its_owner(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        second = await api.enqueue(agent="gated", session_id="s")
        running, queued = [(await api.http.get(f"/queue/jobs/{run_id}")).json() for run_id in (first, second)]
        gate.opened.set()
    assert (running["status"], running["attempt"], running["locked_by"]) == ("running", 1, api.container.lease.worker_id)
    assert (queued["status"], queued["attempt"], queued["locked_by"]) == ("queued", 0, None)


async def test_jobs_are_listed_newest_first_by_status_and_in_pages(api_on_each: ApiServer) -> None:
    words = ("hi", "fail", "confirm", "fail", "hi")
    run_ids = [(await api_on_each.run(word, "native"))["run_id"] for word in words]
    assert ids(await jobs(api_on_each)) == run_ids[::-1]
    assert ids(await jobs(api_on_each, sort_order="asc")) == run_ids
    assert ids(await jobs(api_on_each, status=["failed", "paused"])) == [run_ids[3], run_ids[2], run_ids[1]]
    page = await jobs(api_on_each, status=["completed", "failed"], limit=2, page=2)
    assert ids(page) == [run_ids[1], run_ids[0]]
    assert page["meta"] == {"page": 2, "limit": 2, "total_pages": 2, "total_count": 4, "search_time_ms": 0.0}


@pytest.mark.parametrize(("path", "status"), [("jobs?status=bogus", 422), ("jobs?limit=0", 422), ("jobs/none", 404)])
async def test_what_can_not_be_asked(api: ApiServer, path: str, status: int) -> None:
    assert (await api.http.get(f"/queue/{path}")).status_code == status


# ---- queueing again ------------------------------------------------------------------------------------------------------------


async def test_a_failed_run_is_asked_again_as_a_new_run_and_stays_as_it_was(api_on_each: ApiServer) -> None:
    old = await api_on_each.run("fail", session_id="s", user_id="u", metadata={"a": 1}, max_attempts=2)
    answer = await requeue(api_on_each, old["run_id"])
    assert answer.status_code == 200
    job = answer.json()
    assert (job["id"] != old["run_id"], job["component_id"], job["session_id"], job["user_id"]) == (True, "plain", "s", "u")
    assert (answer.headers["x-run-id"], job["max_attempts"], job["payload"]["input"]) == (job["id"], 2, "fail")
    new = await api_on_each.until(job["id"], "ERROR")
    assert (new["metadata"]["a"], new["metadata"]["requeued_from"]) == (1, old["run_id"])
    assert (await api_on_each.get(old["run_id"])) == old


async def test_the_files_of_a_run_come_along(api_on_each: ApiServer) -> None:
    form = {"message": "fail", "stream": "false"}
    answer = await api_on_each.http.post("/agents/plain/runs", data=form, files={"files": ("a.txt", b"abc", "text/plain")})
    old = answer.json()
    new = await api_on_each.until((await requeue(api_on_each, old["run_id"])).json()["id"], "ERROR")
    found = await api_on_each.sql("SELECT run_id, id, content FROM attachments ORDER BY id")
    assert [(row[0], bytes(row[2])) for row in found] == [(old["run_id"], b"abc"), (new["run_id"], b"abc")]
    assert [file["id"] for file in new["input"]["files"]] == [found[1][1]]


async def test_a_cancelled_run_is_asked_again_and_waits_in_line(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        second = await api.enqueue(agent="gated", session_id="s")
        await api.http.post(f"/agents/gated/runs/{second}/cancel")
        job = (await requeue(api, second)).json()
        assert job["status"] == "queued"
        gate.opened.set()
        assert [(await api.until(id, "COMPLETED", agent="gated"))["run_id"] for id in (first, job["id"])] == [first, job["id"]]
        assert (await api.get(second, "gated"))["status"] == "CANCELLED"


async def test_a_run_that_has_not_ended_or_has_completed_or_goes_on_from_another_is_not_asked_again(api: ApiServer) -> None:
    completed, paused = await api.run(agent="native"), await api.run("confirm", "native")
    running = await api.enqueue("slow 200 20", "native")
    sibling = await api.http.post(f"/agents/native/runs/{completed['run_id']}/continue", json={"input": "fail", "stream": False})
    assert sibling.json()["status"] == "ERROR"
    for run_id in (completed["run_id"], paused["run_id"], running, sibling.json()["run_id"]):
        answer = await requeue(api, run_id)
        assert (answer.status_code, answer.json()["error_type"], answer.json()["run_id"]) == (409, "run_not_requeuable", run_id)
    assert (await requeue(api, "none")).status_code == 404


# ---- figures -------------------------------------------------------------------------------------------------------------------


async def test_who_is_somebody_sees_and_queues_only_what_is_theirs_or_nobodys(api_on_each: ApiServer) -> None:
    api = api_on_each
    owned = {user: (await api.run("fail", user_id=user))["run_id"] for user in ("ann", "bob")}
    nobodys = (await api.run("fail"))["run_id"]
    queue, ann, everyone = api.container.queue, Principal(subject="ann"), [RunStatus.ERROR, RunStatus.COMPLETED]
    page = await queue.list_jobs(everyone, PageRequest(), ann, descending=False)
    assert ([job.run.id for job in page.items], page.total) == ([owned["ann"]], 1)
    for run_id in (owned["ann"], nobodys):
        assert (await queue.get_job(run_id, ann)).run.id == run_id
    for asked in (queue.get_job, queue.requeue):
        with pytest.raises(RunNotFoundError):
            await asked(owned["bob"], ann)
    again = await queue.requeue(owned["ann"], ann)
    assert (await queue.get_job(again.run_id, ann)).run.user_id == "ann"


async def test_the_figures_of_the_queue(api_on_each: ApiServer) -> None:
    for word in ("hi", "fail", "confirm"):
        await api_on_each.run(word, "native")
    stats = (await api_on_each.http.get("/queue/stats")).json()
    assert stats["counts"] == {"queued": 0, "running": 0, "paused": 1, "failed": 1, "cancelled": 0}
    assert (stats["oldest_queued_age_seconds"], stats["queued_by_agent"], stats["unserved"], stats["stuck"]) == (None, {}, 0, 0)
    [worker] = stats["workers"]
    assert (worker["id"], worker["slots"]) == (api_on_each.container.lease.worker_id, 32)
    assert sorted(worker["agents"]) == ["ext", "native", "plain"]
    assert worker["dead"] is False and worker["renewal_age_seconds"] < 5


async def test_runs_of_an_agent_that_nobody_executes_are_unserved_and_not_stuck(sqlite_url: str) -> None:
    async with api_server(sqlite_url, worker=False) as api:
        for agent in ("plain", "plain", "ext"):
            await api.enqueue(agent=agent)
        stats = (await api.http.get("/queue/stats")).json()
    assert (stats["queued_by_agent"], stats["unserved"], stats["stuck"]) == ({"plain": 2, "ext": 1}, 3, 0)
    assert (stats["slots"], stats["workers"][0]["slots"]) == ({"limit": 0, "used": 0}, 0)
    assert stats["oldest_queued_age_seconds"] >= 0
