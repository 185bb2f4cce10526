"""Webhooks over HTTP, on both databases: who is told what, signed; the list of deliveries and the replay; what is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from benchmarks.stub_agents import script

from support.api_agents import gated
from support.api_server import ApiServer, api_server
from support.receiver import OTHER_SECRET, SECRET, Receiver, receiver, status, verified
from support.store_ops import rows_of_session
from waystation import Agent, ScriptedModel, Webhook
from waystation.agents.registry import AgentRegistry
from waystation.db.engine import open_database
from waystation.errors import ConfigError
from waystation.worker.webhooks import WebhookDeliveries

ON: dict[str, Any] = {"webhook_secret": SECRET, "webhook_allow_private": True}


@pytest.fixture
async def hook() -> AsyncIterator[Receiver]:
    async with receiver() as found:
        yield found


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ApiServer]:
    async with api_server(database_url, **ON) as server:
        yield server


async def deliveries(api: ApiServer, run_id: str, agent: str = "plain") -> list[dict[str, Any]]:
    answer = await api.http.get(f"/agents/{agent}/runs/{run_id}/webhooks")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def settled(api: ApiServer, run_id: str, agent: str = "plain", count: int = 1) -> list[dict[str, Any]]:
    """The deliveries of a run, once so many are delivered or failed and none is pending."""
    async with asyncio.timeout(15):
        while True:
            found = await deliveries(api, run_id, agent)
            if len(found) == count and all(item["status"] != "pending" for item in found):
                return found
            await asyncio.sleep(0.01)


# ---- who is told what --------------------------------------------------------------------------------------------------------


async def test_the_end_of_a_run_is_told_signed_and_small(api: ApiServer, hook: Receiver) -> None:
    run = await api.run("hi", session_id="s", user_id="u", webhooks=[{"url": hook.url}])
    [call] = await hook.until(1)
    assert verified(call) and not verified(call, OTHER_SECRET)
    data = call.payload.pop("data")
    assert (call.path, call.headers["content-type"], call.payload["type"], call.payload["version"]) == (
        "/hook", "application/json", "run.completed", 1,
    )  # fmt: skip
    assert {name: data[name] for name in ("run_id", "session_id", "agent_id", "user_id", "status")} == {
        "run_id": run["run_id"], "session_id": "s", "agent_id": "plain", "user_id": "u", "status": "COMPLETED",
    }  # fmt: skip
    assert (await api.http.get(data["url"])).json()["content"] == run["content"]
    assert run["content"] not in call.body.decode() and "error" not in data
    [told] = await settled(api, run["run_id"])
    assert (told["id"], told["status"], told["attempts"], told["last_status_code"], told["event"], told["source"], told["endpoint"]) == (
        call.id, "delivered", 1, 204, "run.completed", "run", "0",
    )  # fmt: skip
    assert told["url"] == f"http://127.0.0.1:{hook.port}" and "next_attempt_at" not in told and "last_error" not in told


async def test_a_failure_is_told_with_its_error(api: ApiServer, hook: Receiver) -> None:
    run = await api.run("fail", webhooks=[{"url": hook.url}])
    [call] = await hook.until(1)
    error = call.payload["data"]["error"]
    assert (call.payload["type"], call.payload["data"]["status"]) == ("run.error", "ERROR")
    assert (error["message"], error["type"]) == (run["content"], run["error"]["type"])


async def test_a_pause_and_the_end_after_it_are_told_each(api: ApiServer, hook: Receiver) -> None:
    run = await api.run("confirm", "native", webhooks=[{"url": hook.url}])
    [pause] = await hook.until(1)
    tool = {"tool_call_id": run["tools"][0]["tool_call_id"], "confirmed": True}
    await api.http.post(f"/agents/native/runs/{run['run_id']}/continue", json={"tools": [tool], "stream": False})
    end = (await hook.until(2))[1]
    assert (pause.payload["type"], pause.payload["data"]["requirements"]) == ("run.paused", 1)
    assert "finished_at" not in pause.payload["data"]
    assert (end.payload["type"], end.payload["data"]["status"], end.id == pause.id) == ("run.completed", "COMPLETED", False)
    assert [item["event"] for item in await settled(api, run["run_id"], "native", 2)] == ["run.paused", "run.completed"]


async def test_the_cancel_of_a_run_that_waits_is_told(database_url: str, hook: Receiver) -> None:
    agent, gate = gated()
    async with api_server(database_url, [agent], **ON) as api:
        await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        waits = await api.enqueue(agent="gated", session_id="s", webhooks=[{"url": hook.url}])
        answer = await api.http.post(f"/agents/gated/runs/{waits}/cancel")
        [call] = await hook.until(1)
        gate.opened.set()
    assert answer.json()["status"] == "CANCELLED"
    assert (call.payload["type"], call.payload["data"]["run_id"]) == ("run.cancelled", waits)


async def test_the_cancel_of_a_running_and_of_a_paused_run_is_told(api: ApiServer, hook: Receiver) -> None:
    running = await api.enqueue("slow 1000 20", webhooks=[{"url": hook.url}])
    paused = (await api.run("confirm", "native", webhooks=[{"url": hook.url, "events": ["run.cancelled"]}]))["run_id"]
    await api.until(running, "RUNNING")
    for run_id, agent in ((running, "plain"), (paused, "native")):
        await api.http.post(f"/agents/{agent}/runs/{run_id}/cancel", params={"wait": 10})
    calls = await hook.until(2)
    assert {(call.payload["type"], call.payload["data"]["run_id"]) for call in calls} == {
        ("run.cancelled", running),
        ("run.cancelled", paused),
    }


async def test_an_attempt_that_is_made_again_is_not_told(api: ApiServer, hook: Receiver) -> None:
    run = await api.run("flaky", "ext", webhooks=[{"url": hook.url}])
    assert [item["event"] for item in await settled(api, run["run_id"], "ext")] == ["run.completed"]
    assert len(hook.calls) == 1


async def test_only_the_events_that_were_asked_for_are_told(api: ApiServer, hook: Receiver) -> None:
    quiet = await api.run("hi", webhooks=[{"url": hook.url, "events": ["run.error", "run.paused"]}])
    told = await api.run("fail", webhooks=[{"url": hook.url, "events": ["run.error", "run.paused"]}])
    [call] = await hook.until(1)
    assert call.payload["data"]["run_id"] == told["run_id"] and await deliveries(api, quiet["run_id"]) == []


async def test_webhooks_of_an_agent_and_of_a_run_are_told_each_with_its_secret(database_url: str, hook: Receiver) -> None:
    ours = Webhook(url=hook.url + "/agent?token=t", secret=OTHER_SECRET, id="ours")
    agent = Agent(id="plain", model=ScriptedModel(script, id="m", provider="P"), webhooks=[ours])
    async with api_server(database_url, [agent], **ON) as api:
        run = await api.run("hi", webhooks=[{"url": hook.url + "/run"}])
        calls = {call.path: call for call in await hook.until(2)}
        found = await settled(api, run["run_id"], count=2)
        again = await api.http.post(f"/agents/plain/runs/{run['run_id']}/continue", json={"input": "more", "stream": False})
        sibling = (await hook.until(3))[2]
    assert verified(calls["/hook/agent?token=t"], OTHER_SECRET) and verified(calls["/hook/run"], SECRET)
    assert {(item["source"], item["endpoint"], item.get("url")) for item in found} == {
        ("agent", "ours", None), ("run", "0", f"http://127.0.0.1:{hook.port}"),
    }  # fmt: skip
    assert (sibling.path, sibling.payload["data"]["run_id"]) == ("/hook/agent?token=t", again.json()["run_id"])


async def test_a_run_that_is_queued_again_keeps_its_own_webhooks(api: ApiServer, hook: Receiver) -> None:
    run = await api.run("fail", webhooks=[{"url": hook.url}])
    job = (await api.http.post(f"/queue/jobs/{run['run_id']}/requeue")).json()
    calls = await hook.until(2)
    assert {call.payload["data"]["run_id"] for call in calls} == {run["run_id"], job["id"]}


async def test_a_run_without_webhooks_has_no_deliveries(api: ApiServer) -> None:
    run = await api.run("hi")
    assert await deliveries(api, run["run_id"]) == [] and await api.count("webhook_deliveries") == 0


# ---- list, read, replay ------------------------------------------------------------------------------------------------------


async def test_a_delivery_is_replayed_under_its_id_with_the_same_body(api: ApiServer, hook: Receiver) -> None:
    hook.replies = [status(410)]
    run = await api.run("hi", webhooks=[{"url": hook.url}])
    [failed] = await settled(api, run["run_id"])
    path = f"/agents/plain/runs/{run['run_id']}/webhooks/{failed['id']}"
    answer = await api.http.post(f"{path}/replay")
    first, second = await hook.until(2)
    [delivered] = await settled(api, run["run_id"])
    assert (failed["status"], failed["last_error"], failed["last_status_code"]) == ("failed", "http_410", 410)
    assert (answer.status_code, answer.json()["id"], answer.json()["status"]) == (202, failed["id"], "pending")
    assert (first.id, first.body) == (second.id, second.body) and verified(second)
    assert (delivered["status"], delivered["attempts"], "last_error" in delivered) == ("delivered", 2, False)
    assert (await api.http.get(path)).json() == delivered
    await api.http.post(f"{path}/replay")  # a delivered one too
    assert (await hook.until(3))[2].id == first.id


async def test_what_is_not_there_is_404_by_name(api: ApiServer, hook: Receiver) -> None:
    one, other = [await api.run("hi", webhooks=[{"url": hook.url}]) for _ in range(2)]
    [delivery] = await settled(api, one["run_id"])
    base = f"/agents/plain/runs/{other['run_id']}/webhooks"
    wanted = {
        f"{base}/{delivery['id']}": "delivery_not_found",
        f"{base}/none": "delivery_not_found",
        f"{base}/%00": "delivery_not_found",
        "/agents/plain/runs/none/webhooks": "run_not_found",
        f"/agents/native/runs/{one['run_id']}/webhooks": "run_not_found",
        f"/agents/none/runs/{one['run_id']}/webhooks": "agent_not_found",
    }
    for path, error_type in wanted.items():
        answer = await api.http.get(path)
        assert (answer.status_code, answer.json()["error_type"]) == (404, error_type), path
    answer = await api.http.post(f"{base}/{delivery['id']}/replay")
    assert (answer.status_code, answer.json()["error_type"]) == (404, "delivery_not_found")


async def test_deliveries_come_in_pages_oldest_first(api: ApiServer, hook: Receiver) -> None:
    run = await api.run("hi", webhooks=[{"url": f"{hook.url}/{n}"} for n in range(3)])
    await settled(api, run["run_id"], count=3)
    answer = await api.http.get(f"/agents/plain/runs/{run['run_id']}/webhooks", params={"limit": 2, "page": 2})
    assert (len(answer.json()["data"]), answer.json()["meta"]["total_count"]) == (1, 3)


async def test_deleting_a_session_deletes_its_deliveries(api: ApiServer, hook: Receiver) -> None:
    hook.default = status(500)
    await api.run("hi", session_id="s", webhooks=[{"url": hook.url}])
    assert (await rows_of_session(api.container.database, "s"))["webhook_deliveries"] == 1
    await api.http.delete("/sessions/s")
    assert await rows_of_session(api.container.database, "s") == {}


async def test_no_answer_and_no_log_line_shows_a_secret_or_the_path_of_a_url(
    api: ApiServer, hook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hook.replies = [status(410)]
    run = await api.run("hi", session_id="s", webhooks=[{"url": hook.url + "/t0ken"}])
    await settled(api, run["run_id"])
    own = f"/agents/plain/runs/{run['run_id']}"
    paths = (own, f"{own}/webhooks", "/sessions/s/runs", "/agents", "/config", "/queue/jobs")
    shown = "".join([(await api.http.get(path)).text for path in paths]) + caplog.text
    assert "webhook not taken" in shown
    assert "t0ken" not in shown and SECRET not in shown and SECRET.removeprefix("whsec_") not in shown
    assert SECRET not in repr(api.container.settings) and SECRET not in repr(Webhook(url=hook.url, secret=SECRET))


# ---- what is refused ---------------------------------------------------------------------------------------------------------


async def test_a_run_with_webhooks_is_refused_where_nothing_can_sign_them(sqlite_url: str) -> None:
    async with api_server(sqlite_url) as api:
        answer = await api.http.post("/agents/plain/runs", json={"message": "hi", "webhooks": [{"url": "https://example.com/"}]})
        assert (answer.status_code, answer.json()["error_type"]) == (400, "webhooks_off")
        assert await api.count("runs") == 0


@pytest.mark.parametrize(
    "webhooks",
    [
        [{"url": "http://127.0.0.1/"}], [{"url": "http://localhost:80/"}], [{"url": "http://[::1]/"}], [{"url": "http://169.254.169.254/"}],
        [{"url": "http://[::ffff:10.0.0.1]/"}], [{"url": "http://2130706433/"}], [{"url": "http://user:pw@example.com/"}],
        [{"url": "ftp://example.com/"}], [{"url": "http:///path"}], [{"url": "/relative"}], [{"url": "http://example.com/#part"}],
        [{"url": "http://exa mple.com/"}], [{"url": "http://example.com:99999/"}], [{"url": "http://example.com/" + "a" * 3000}], [{}],
        [{"url": "https://example.com/", "events": []}], [{"url": "https://example.com/", "events": ["run.started"]}],
        [{"url": "https://example.com/", "secret": "whsec_x"}], [{"url": "https://example.com/"}] * 11, {"url": "https://example.com/"},
    ],
)  # fmt: skip
async def test_webhooks_that_would_never_be_called_are_refused_before_the_run(sqlite_url: str, webhooks: Any) -> None:
    async with api_server(sqlite_url, webhook_secret=SECRET) as api:
        answer = await api.http.post("/agents/plain/runs", json={"message": "hi", "webhooks": webhooks})
        assert answer.status_code == 422 and "webhooks" in str(answer.json()["detail"])
        assert await api.count("runs") == 0


async def test_a_form_takes_webhooks_as_json_and_they_belong_to_the_request_of_a_key(api: ApiServer, hook: Receiver) -> None:
    form = {"message": "hi", "stream": "false", "webhooks": f'[{{"url": "{hook.url}"}}]'}
    answers = [await api.http.post("/agents/plain/runs", data=form, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    other = await api.http.post("/agents/plain/runs", data=form | {"webhooks": ""}, headers={"Idempotency-Key": "k"})
    await settled(api, answers[0].json()["run_id"])
    assert answers[0].json()["run_id"] == answers[1].json()["run_id"] and len(hook.calls) == 1
    assert (other.status_code, other.json()["error_type"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    ("url", "secret", "words"), [("http://10.0.0.1/", SECRET, "private address"), ("https://example.com/", "whsec_short", "24 to 64")]
)
async def test_a_process_that_could_not_deliver_is_not_built(url: str, secret: str, words: str) -> None:
    agent = Agent(id="a", model="demo:offline", webhooks=[Webhook(url=url, secret=SECRET)])
    database = open_database("sqlite://")
    with pytest.raises(ConfigError, match=words):
        WebhookDeliveries(database=database, registry=AgentRegistry([agent]), secret=secret, allow_private=False, poll_s=1.0)
    await database.close()


def test_an_agent_takes_no_two_webhooks_of_one_id() -> None:
    twice = [Webhook(url="https://example.com/", secret=SECRET)] * 2
    with pytest.raises(ConfigError, match="same id"):
        Agent(id="a", model="demo:offline", webhooks=twice)
