"""The delivery of webhooks: again and again to an endpoint that fails, by several processes, over deaths; where it does not go."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.stub_agents import stub_agents

from support.api_container import NOBODY, Process, process
from support.receiver import OK, OTHER_SECRET, SECRET, Receiver, receiver, status, verified
from support.server import Server
from waystation import Agent, Webhook
from waystation.domain.access import Principal
from waystation.domain.page import PageRequest
from waystation.domain.webhook import Delivery, Endpoint, key_of
from waystation.errors import RunNotFoundError
from waystation.store import retention, webhooks
from waystation.store.webhooks import LEASE_S, Reach
from waystation.worker.calls import Answer, Caller
from waystation.worker.webhooks import MOST_OF_TARGET

ON: dict[str, Any] = {"webhook_secret": SECRET, "webhook_allow_private": True}
ALL = Reach(agents=["native", "plain", "ext"], signs_runs=True)


@pytest.fixture
async def hook() -> AsyncIterator[Receiver]:
    async with receiver() as found:
        yield found


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Process]:
    async with process(database_url, stub_agents(), **ON) as found:
        yield found


async def told(server: Process, *urls: str, message: str = "hi") -> str:
    """A run that has ended, and told it to these."""
    endpoints = tuple(Endpoint(source="run", id=str(n), url=url) for n, url in enumerate(urls))
    return (await server.ended(message, "plain", webhooks=endpoints)).id


async def deliveries(server: Process, run_id: str) -> list[Delivery]:
    page = await server.container.deliveries.list_of_run("plain", run_id, NOBODY, PageRequest(page=1, limit=100))
    return page.items


async def after(server: Process, run_id: str, attempts: int) -> Delivery:
    """The only delivery of a run, once the result of so many attempts is recorded."""
    async with asyncio.timeout(15):
        while True:
            [found] = await deliveries(server, run_id)
            recorded = found.last_status_code is not None or found.last_error is not None
            if found.attempts == attempts and recorded and (found.next_attempt_at or 0) < time.time() + 7 * 3600:
                leased = found.last_attempt_at is not None and found.next_attempt_at == found.last_attempt_at + LEASE_S
                if not leased:
                    return found
            await asyncio.sleep(0.01)


async def due_now(server: Process, run_id: str) -> None:
    await server.sql("UPDATE webhook_deliveries SET next_attempt_at = 1 WHERE run_id = :id", id=run_id)
    server.container.webhooks.wake()


# ---- again -------------------------------------------------------------------------------------------------------------------


async def test_an_endpoint_that_fails_is_called_again_with_the_same_id_and_body_and_a_new_signature(
    server: Process, hook: Receiver
) -> None:
    hook.replies = [status(500)]
    run_id = await told(server, hook.url)
    failed = await after(server, run_id, 1)
    await due_now(server, run_id)
    delivered = await after(server, run_id, 2)
    first, second = hook.calls
    assert (failed.status, failed.last_error, failed.last_status_code) == ("pending", "http_500", 500)
    assert failed.next_attempt_at is not None and 3 < failed.next_attempt_at - failed.last_attempt_at < 8  # type: ignore[operator]
    assert (first.id, first.body) == (second.id, second.body) and verified(first) and verified(second)
    assert (delivered.status, delivered.last_error, delivered.next_attempt_at) == ("delivered", None, None)


async def test_it_is_given_up_after_the_last_attempt_and_a_replay_begins_anew(server: Process, hook: Receiver) -> None:
    hook.default = status(503)
    run_id = await told(server, hook.url)
    await after(server, run_id, 1)
    await server.sql("UPDATE webhook_deliveries SET tries = 11")
    await due_now(server, run_id)
    given_up = await after(server, run_id, 2)
    await server.container.deliveries.replay("plain", run_id, given_up.id, NOBODY)
    again = await after(server, run_id, 3)
    assert (given_up.status, given_up.next_attempt_at) == ("failed", None)
    assert (again.status, again.tries) == ("pending", 1)


async def test_an_endpoint_that_is_gone_is_not_called_again(server: Process, hook: Receiver) -> None:
    hook.replies = [status(410)]
    run_id = await told(server, hook.url)
    found = await after(server, run_id, 1)
    assert (found.status, found.last_error) == ("failed", "http_410")


@pytest.mark.parametrize(("asked", "least", "most"), [("600", 590, 610), ("1", 3, 8), ("9999999", 21_500, 21_700), ("soon", 3, 8)])
async def test_a_retry_after_makes_the_wait_longer_within_bounds(
    server: Process, hook: Receiver, asked: str, least: float, most: float
) -> None:
    hook.replies = [status(429, f"retry-after: {asked}")]
    found = await after(server, await told(server, hook.url), 1)
    assert found.next_attempt_at is not None and least < found.next_attempt_at - time.time() < most


async def test_a_redirect_is_not_followed(server: Process, hook: Receiver) -> None:
    hook.replies = [status(302, f"location: http://127.0.0.1:{hook.port}/elsewhere")]
    found = await after(server, await told(server, hook.url), 1)
    assert (found.status, found.last_error, found.last_status_code) == ("pending", "redirect", 302)
    assert [call.path for call in hook.calls] == ["/hook"]


async def test_a_connection_that_breaks_and_one_that_is_refused_count_as_failures(server: Process, hook: Receiver) -> None:
    async def reset(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    hook.replies = [reset]
    broken = await after(server, await told(server, hook.url), 1)
    refused = await after(server, await told(server, "http://127.0.0.1:1/"), 1)
    assert {broken.last_error, refused.last_error} == {"connection_failed"}
    assert (broken.status, refused.status, refused.last_status_code) == ("pending", "pending", None)


async def test_a_failure_is_told_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def speak_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(status(400))
        writer.close()

    async def find_nothing(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror

    plain = await asyncio.start_server(speak_plainly, "127.0.0.1", 0)
    caller = Caller(allow_private=True)
    port = plain.sockets[0].getsockname()[1]
    assert await caller.call(f"https://127.0.0.1:{port}/", key_of(SECRET), "d", b"{}") == Answer(error="tls_failed")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", find_nothing, raising=False)
    assert await caller.call("https://nothing.example.com/", key_of(SECRET), "d", b"{}") == Answer(error="name_not_found")
    await caller.close()
    plain.close()


async def test_of_an_endless_answer_nothing_but_the_status_is_read(server: Process, hook: Receiver) -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    hook.replies = [endless]
    found = await after(server, await told(server, hook.url), 1)
    assert (found.status, found.last_status_code) == ("delivered", 200) and sent < 50_000_000


async def test_an_endpoint_that_does_not_answer_fails_in_time_and_holds_up_no_other(
    server: Process, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver() as slow:

        async def silent(writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60)

        slow.default = silent
        waits = [await told(server, slow.url) for _ in range(MOST_OF_TARGET + 3)]
        await slow.until(MOST_OF_TARGET)
        quick = await after(server, await told(server, hook.url), 1)
        assert quick.status == "delivered"
        assert len(slow.calls) == slow.most_open == MOST_OF_TARGET
        untouched = [d for run_id in waits for d in await deliveries(server, run_id) if d.attempts == 0]
        assert len(untouched) == 3 and {d.status for d in untouched} == {"pending"}
        monkeypatch.setattr("waystation.worker.webhooks.CLOSE_S", 0.0)  # the end of the process need not wait for them
        monkeypatch.setattr("waystation.worker.calls.CALL_S", 0.2)
        caller = Caller(allow_private=True)
        answer = await caller.call(slow.url, key_of(SECRET), "d", b"{}")
        await caller.close()
        assert answer == Answer(error="timeout")
        await server.container.webhooks.close()


# ---- whose it is -------------------------------------------------------------------------------------------------------------


async def test_two_processes_that_claim_at_once_share_what_is_due(database_url: str) -> None:
    async with process(database_url, stub_agents()) as one, process(database_url, stub_agents()) as two:  # neither can sign
        for n in range(10):
            await told(one, f"https://h{n}.example.com/")
        at = time.time() + 1
        claims = [p.container.database.write(webhooks.claim, ALL, 6, 4, at) for p in (one, two)]
        claimed = [d.id for found in await asyncio.gather(*claims) for d in found]
        assert len(claimed) == len(set(claimed)) >= 6
        claimed += [d.id for d in await one.container.database.write(webhooks.claim, ALL, 10, 4, at)]
        assert len(claimed) == len(set(claimed)) == 10
        assert await one.container.database.write(webhooks.claim, ALL, 10, 4, at) == []
        assert len(await two.container.database.write(webhooks.claim, ALL, 10, 4, at + LEASE_S)) == 10


async def test_two_processes_on_one_store_call_once_for_each_delivery(database_url: str, hook: Receiver) -> None:
    async with process(database_url, stub_agents(), **ON) as one, process(database_url, stub_agents(), **ON) as two:
        run_ids = []
        for _ in range(12):
            run_ids.append(await told(one, hook.url))
            two.container.webhooks.wake()
        for run_id in run_ids:
            assert (await after(two, run_id, 1)).status == "delivered"
    assert len(hook.calls) == len({call.id for call in hook.calls}) == 12


async def test_deliveries_go_with_their_run_and_are_seen_by_its_owner_only(server: Process, hook: Receiver) -> None:
    endpoint = Endpoint(source="run", id="0", url=hook.url)
    first = await server.ended("hi", "plain", session_id="s", user_id="u", webhooks=(endpoint,))
    await server.ended("hi", "plain", session_id="s", user_id="u")
    found = await after(server, first.id, 1)
    service, request = server.container.deliveries, PageRequest(page=1, limit=10)
    assert (await service.list_of_run("plain", first.id, Principal(subject="u"), request)).total == 1
    for refused in (
        service.list_of_run("plain", first.id, Principal(subject="other"), request),
        service.get("plain", first.id, found.id, Principal(subject="other")),
        service.replay("plain", first.id, found.id, Principal(subject="other")),
    ):
        with pytest.raises(RunNotFoundError):
            await refused
    await server.container.database.write(retention.remove_runs, time.time() + 1, retention.START, 10)
    assert await server.sql("SELECT id FROM webhook_deliveries") == []


async def test_a_claim_takes_few_of_one_target_and_none_of_a_busy_one_or_out_of_reach(database_url: str) -> None:
    async with process(database_url, stub_agents()) as server:
        for _ in range(3):
            await told(server, "https://one.example.com/", "https://two.example.com/")
        read, write, at = server.container.database.read, server.container.database.write, time.time() + 1
        assert await read(webhooks.next_due_at, Reach(agents=["plain"], signs_runs=False)) is None
        assert await write(webhooks.claim, Reach(agents=["plain"], signs_runs=False), 9, 9, at) == []
        both = Reach(agents=[], signs_runs=True, busy=["https://one.example.com", "https://two.example.com"])
        assert await read(webhooks.next_due_at, both) is None
        found = await write(webhooks.claim, Reach(agents=[], signs_runs=True, busy=both.busy[:1]), 9, 2, at)  # type: ignore[index]
        assert [d.url for d in found] == ["https://two.example.com/"] * 2


async def test_a_late_answer_does_not_undo_a_replay(server: Process, hook: Receiver) -> None:
    opened = asyncio.Event()

    async def late(writer: asyncio.StreamWriter) -> None:
        await opened.wait()
        writer.write(OK)

    hook.replies = [late]
    run_id = await told(server, hook.url)
    await hook.until(1)
    [under_way] = await deliveries(server, run_id)
    await server.container.deliveries.replay("plain", run_id, under_way.id, NOBODY)
    await hook.until(2)
    opened.set()
    found = await after(server, run_id, 2)
    assert (found.status, hook.calls[0].id == hook.calls[1].id) == ("delivered", True)


async def test_an_endpoint_of_an_agent_is_found_by_its_id_after_its_url_and_secret_have_changed(database_url: str, hook: Receiver) -> None:
    def agent(url: str, secret: str, id: str = "h") -> Agent:
        return Agent(id="plain", model="demo:offline", webhooks=[Webhook(url=url, secret=secret, id=id)])

    async with process(database_url, [agent("http://127.0.0.1:1/", SECRET)], **ON) as before:
        run_id = (await before.ended("hi", "plain")).id
        await after(before, run_id, 1)
    async with process(database_url, [agent(hook.url, OTHER_SECRET, "another")], **ON) as without:
        await due_now(without, run_id)
        missing = await after(without, run_id, 2)
    async with process(database_url, [agent(hook.url, OTHER_SECRET)], **ON) as now:
        await due_now(now, run_id)
        found = await after(now, run_id, 3)
    assert (missing.status, missing.last_error) == ("pending", "endpoint_unknown")
    assert found.status == "delivered" and verified(hook.calls[0], OTHER_SECRET)


async def test_a_process_that_was_killed_between_the_call_and_its_record_leaves_it_to_the_next_under_the_same_id(
    database_url: str, tmp_path: Path, hook: Receiver
) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    hook.replies = [silent]
    first = Server(database_url, tmp_path, poll_s=0.1, **ON)
    await asyncio.to_thread(first.start)
    try:
        async with first.client() as client:
            body = {"message": "hi", "stream": False, "webhooks": [{"url": hook.url}]}
            run_id = (await client.post("/agents/plain/runs", json=body)).json()["run_id"]
        await hook.until(1)
    finally:
        await asyncio.to_thread(first.kill)
    async with process(database_url, stub_agents(), **ON) as second:
        [left] = await deliveries(second, run_id)
        assert (left.status, left.attempts, left.next_attempt_at) == ("pending", 1, left.last_attempt_at + LEASE_S)  # type: ignore[operator]
        await due_now(second, run_id)  # instead of the wait for the end of the lease
        found = await after(second, run_id, 2)
    assert found.status == "delivered"
    assert [call.id for call in hook.calls] == [found.id] * 2 and hook.calls[0].body == hook.calls[1].body


async def test_a_run_whose_process_died_is_told_by_the_one_that_ends_it(database_url: str, tmp_path: Path, hook: Receiver) -> None:
    first = Server(database_url, tmp_path, poll_s=0.1, **ON)
    await asyncio.to_thread(first.start)
    try:
        async with first.client() as client:
            body = {"message": "slow 1000 50", "stream": False, "background": True, "max_attempts": 1, "webhooks": [{"url": hook.url}]}
            run_id = (await client.post("/agents/ext/runs", json=body)).json()["run_id"]
            async with asyncio.timeout(10):
                while len((await client.get(f"/agents/ext/runs/{run_id}/events", params={"wait": 0})).json()["events"]) < 2:
                    await asyncio.sleep(0.02)
    finally:
        await asyncio.to_thread(first.kill)
    async with process(database_url, stub_agents(), **ON):
        [call] = await hook.until(1)
    assert (call.payload["type"], call.payload["data"]["error"]["type"]) == ("run.error", "worker_lost")


# ---- where it does not go ----------------------------------------------------------------------------------------------------


async def test_a_name_that_leads_to_a_private_address_is_not_called(database_url: str, hook: Receiver) -> None:
    url = hook.url.replace("127.0.0.1", "localhost")
    async with process(database_url, stub_agents(), webhook_secret=SECRET) as server:
        found = await after(server, await told(server, url), 1)
    assert (found.status, found.last_error, hook.calls) == ("pending", "address_refused", [])


class Names:
    """A resolver that gives an address at the first look-up of a name, and another one at each further one."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked: list[str] = []

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        address = self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]
        return [(2, 1, 6, "", (address, port))]


async def test_the_connection_goes_to_the_address_that_was_checked_under_the_name_of_the_url(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names("127.0.0.1", "203.0.113.1")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names.getaddrinfo, raising=False)
    caller = Caller(allow_private=True)
    answer = await caller.call(f"http://hooks.example.com:{hook.port}/a?b=c", key_of(SECRET), "d", b"{}")
    await caller.close()
    [call] = hook.calls
    assert answer == Answer(status_code=204)
    assert (call.headers["host"], call.path) == (f"hooks.example.com:{hook.port}", "/a?b=c")
    assert "hooks.example.com" in names.asked


async def test_the_name_that_tls_is_told_is_that_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx.Request] = []

    async def handle(self: object, request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", Names("2606:4700::1111").getaddrinfo, raising=False)
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    caller = Caller(allow_private=False)
    assert await caller.call("https://hooks.example.com/", key_of(SECRET), "d", b"{}") == Answer(status_code=200)
    assert (str(seen[0].url), seen[0].headers["host"]) == ("https://[2606:4700::1111]/", "hooks.example.com")
    assert seen[0].extensions["sni_hostname"] == "hooks.example.com"
