"""Going on from an index: resume with its notices, events for EventSource, the long poll, and logs that are not kept."""

import asyncio
from typing import Any

import pytest

from support.api_agents import gated
from support.api_server import ApiServer, api_server
from support.api_wire import Wire, frames_of, indices, names, text_of
from waystation.api import control

HUGE = "99999999999999999999"


async def test_resume_replays_a_finished_run_behind_a_notice(api_on_each: ApiServer) -> None:
    api, run = api_on_each, await api_on_each.run()
    frames = frames_of((await api.http.post(f"/agents/plain/runs/{run['run_id']}/resume", data={"last_event_index": "5"})).content)
    notice = frames[0]
    assert (notice.index, notice.name, notice.data["status"]) == (None, "replay", "COMPLETED")
    told = {name: notice.data[name] for name in ("total_events", "total_buffered", "last_event_index_requested")}
    assert told == {"total_events": 3, "total_buffered": 9, "last_event_index_requested": 5}
    assert indices(frames) == [6, 7, 8] and frames[-1].name == "RunCompleted"


async def test_resume_of_a_running_run_catches_up_and_then_is_live(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue(agent="gated")
        await gate.reached.wait()
        await asyncio.sleep(0.1)
        behind, at_edge = [await Wire(api.port).open() for _ in range(2)]
        path = f"/agents/gated/runs/{run_id}/resume"
        await behind.send(path, b"last_event_index=-1", Content_Type="application/x-www-form-urlencoded")
        await at_edge.send(path, b"last_event_index=1", Content_Type="application/x-www-form-urlencoded")
        await behind.head(), await at_edge.head()
        got = [await wire.until(b"event: subscribed") for wire in (behind, at_edge)]
        gate.opened.set()
        seen = [frames_of(got[0] + await behind.until(b"event: RunCompleted"))]
        seen.append(frames_of(got[1] + await at_edge.until(b"event: RunCompleted")))
        assert names(seen[0])[:4] == ["catch_up", "RunStarted", "RunContent", "subscribed"]
        assert seen[0][0].data["missed_events"] == 2 and indices(seen[0]) == [0, 1, 2, 3]
        assert names(seen[1])[0] == "subscribed" and indices(seen[1]) == [2, 3]


async def test_resume_of_a_queued_run_says_so_and_waits(sqlite_url: str) -> None:
    """B71: the true status, also for runs that nobody streams."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        waiting = await api.enqueue(agent="gated", session_id="s")
        wires = []
        for run_id, status in ((first, b'"running"'), (waiting, b'"pending"')):
            wire = await (await Wire(api.port).open()).send(f"/agents/gated/runs/{run_id}/resume", Content_Type="")
            await wire.head()
            assert status in await wire.until(b"event: catch_up" if run_id == first else b"event: subscribed")
            wires.append(wire)
        gate.opened.set()
        assert b"event: RunCompleted" in await wires[1].until(b"event: RunCompleted")
        for wire in wires:
            await wire.close()


async def test_a_run_whose_log_goes_on_is_resumed_at_every_index(api: ApiServer) -> None:
    """B12, B14, B24: any integer cursor gives exactly what comes behind it."""
    run = await api.run("tool", "native")
    path = f"/agents/native/runs/{run['run_id']}"
    whole = frames_of((await api.http.post(f"{path}/resume")).content)[1:]
    for index in range(-1, len(whole) - 1):
        assert frames_of((await api.http.get(f"{path}/events", params={"after": index})).content) == whole[index + 1 :]
        assert frames_of((await api.http.post(f"{path}/resume", data={"last_event_index": index})).content)[1:] == whole[index + 1 :]


async def test_last_event_id_works_on_both_routes_in_any_case(api: ApiServer) -> None:
    """B16."""
    for header in ["Last-Event-ID", "last-event-id", "LAST-EVENT-ID"]:
        path = f"/agents/plain/runs/{(await api.run())['run_id']}"
        for answer in (
            await api.http.get(f"{path}/events", headers={header: "6"}),
            await api.http.post(f"{path}/resume", headers={header: "6"}),
        ):
            assert indices(frames_of(answer.content)) == [7, 8]


async def test_a_malformed_last_event_id_is_ignored(api: ApiServer) -> None:
    """B16: a browser would send it again for ever."""
    for junk in ["abc", "-1", "1e3", "", "1.5", "0x3", "٣"]:
        path = f"/agents/plain/runs/{(await api.run())['run_id']}"
        answer = await api.http.get(f"{path}/events", headers={"last-event-id": junk.encode()})
        assert indices(frames_of(answer.content)) == list(range(9))


async def test_an_explicit_index_wins_over_the_header(api: ApiServer) -> None:
    """B16."""
    path = f"/agents/plain/runs/{(await api.run())['run_id']}"
    header = {"last-event-id": "7"}
    assert indices(frames_of((await api.http.get(f"{path}/events", params={"after": 4}, headers=header)).content)) == [5, 6, 7, 8]
    resumed = await api.http.post(f"{path}/resume", data={"last_event_index": "4"}, headers=header)
    assert indices(frames_of(resumed.content)) == [5, 6, 7, 8]
    nothing_explicit = await api.http.post(f"{path}/resume", data={"last_event_index": ""}, headers=header)
    assert indices(frames_of(nothing_explicit.content)) == [8]


async def test_a_malformed_explicit_index_is_422(api: ApiServer) -> None:
    """B16."""
    for junk in ["abc", "1e3", "1.5", "[]"]:
        path = f"/agents/plain/runs/{(await api.run())['run_id']}"
        for answer in (
            await api.http.get(f"{path}/events", params={"after": junk}),
            await api.http.post(f"{path}/resume", data={"last_event_index": junk}),
            await api.http.post(f"{path}/resume", json={"last_event_index": junk}),
        ):
            assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][-1] in ("after", "last_event_index")


async def test_a_cursor_at_or_beyond_the_end_ends_at_once(api: ApiServer) -> None:
    """B16: 204 stops EventSource; resume tells the true status and nothing more."""
    path = f"/agents/plain/runs/{(await api.run())['run_id']}"
    for after in ("8", "9", "100000", HUGE):
        answer = await api.http.get(f"{path}/events", params={"after": after})
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["location"] == path
        frames = frames_of((await api.http.post(f"{path}/resume", data={"last_event_index": after})).content)
        assert names(frames) == ["replay"] and frames[0].data["status"] == "COMPLETED"
    assert (await api.http.get(f"{path}/events", headers={"last-event-id": "8"})).status_code == 204


async def test_a_cursor_beyond_the_end_of_a_running_run_ends_with_it(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue(agent="gated")
        await gate.reached.wait()
        gate.opened.set()
        async with asyncio.timeout(5):
            answer = await api.http.get(f"/agents/gated/runs/{run_id}/events", params={"after": 500})
        assert indices(frames_of(answer.content or b"")) == []


async def test_filters_name_events_and_leave_the_cursor_alone(api: ApiServer) -> None:
    run = await api.run("tool", "native")
    path = f"/agents/native/runs/{run['run_id']}/events"
    whole = frames_of((await api.http.get(path)).content)
    tools = frames_of((await api.http.get(path, params={"events": "ToolCall*, RunCompleted"})).content)
    assert tools == [f for f in whole if f.name in ("ToolCallStarted", "ToolCallCompleted", "RunCompleted")]
    assert frames_of((await api.http.get(path, params={"events": "Nothing"})).content) == []
    polled = (await api.http.get(path, params={"events": "RunStarted", "wait": 0})).json()
    assert [e["event"] for e in polled["events"]] == ["RunStarted"] and polled["next"] == whole[-1].index


# ---- the long poll -------------------------------------------------------------------------------------------------------------


async def test_a_long_poll_gives_what_is_there_and_where_to_go_on(api_on_each: ApiServer) -> None:
    api, run = api_on_each, await api_on_each.run()
    path = f"/agents/plain/runs/{run['run_id']}/events"
    for answer in (
        await api.http.get(path, params={"wait": 0, "after": 3}),
        await api.http.get(path, params={"after": 3}, headers={"accept": "application/json"}),
        await api.http.get(path, params={"wait": 10, "after": 3}),
    ):
        assert set(answer.json()) == {"events", "status", "next"}
        assert [e["event_index"] for e in answer.json()["events"]] == [4, 5, 6, 7, 8]
        assert (answer.json()["status"], answer.json()["next"]) == ("COMPLETED", 8)


async def test_a_client_that_takes_both_gets_the_stream(api: ApiServer) -> None:
    path = f"/agents/plain/runs/{(await api.run())['run_id']}/events"
    answer = await api.http.get(path, headers={"accept": "application/json, text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_long_poll_at_the_edge_waits_for_news_or_for_its_time(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue(agent="gated")
        await gate.reached.wait()
        path = f"/agents/gated/runs/{run_id}/events"
        first = (await api.http.get(path, params={"wait": 5})).json()
        edge = first["next"] if len(first["events"]) == 2 else (await api.http.get(path, params={"wait": 5, "after": 0})).json()["next"]
        empty = (await api.http.get(path, params={"wait": 0.1, "after": edge})).json()
        assert empty == {"events": [], "status": "RUNNING", "next": 1}
        news = asyncio.create_task(api.http.get(path, params={"wait": 30, "after": edge}))
        await asyncio.sleep(0.05)
        gate.opened.set()
        async with asyncio.timeout(2):
            assert (await news).json()["events"][0]["event_index"] == 2


async def test_a_loop_of_long_polls_sees_the_whole_log_once(api: ApiServer) -> None:
    run_id = await api.enqueue("slow 10 5")
    seen: list[dict[str, Any]] = []
    after, status = -1, "PENDING"
    async with asyncio.timeout(10):
        while status in ("PENDING", "RUNNING"):
            params = {"wait": 5, "after": after}
            answer = (await api.http.get(f"/agents/plain/runs/{run_id}/events", params=params)).json()
            seen, after, status = seen + answer["events"], answer["next"], answer["status"]
    assert [event["event_index"] for event in seen] == list(range(len(seen))) and seen[-1]["event"] == "RunCompleted"


async def test_a_long_poll_tells_of_an_end_only_with_the_last_event(api_on_each: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "POLL_BYTES", 1)  # one segment an answer, of a run that has long ended
    path, told = f"/agents/plain/runs/{(await api_on_each.run('slow 6 30'))['run_id']}/events", []
    after = -1
    while not told or told[-1][1] == "RUNNING":
        answer = (await api_on_each.http.get(path, params={"wait": 0, "after": after})).json()
        after = answer["next"]
        told.append((answer["events"][-1]["event"], answer["status"]))
    assert len(told) > 2 and told[-1] == ("RunCompleted", "COMPLETED")
    assert "RunCompleted" not in [event for event, _ in told[:-1]]


async def test_the_wait_of_a_long_poll_has_limits(api: ApiServer) -> None:
    for wait in ["-1", "60.1", "nan", "inf", "x"]:
        path = f"/agents/plain/runs/{(await api.run())['run_id']}/events"
        answer = await api.http.get(path, params={"wait": wait})
        assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["query", "wait"]


# ---- pauses --------------------------------------------------------------------------------------------------------------------


async def test_the_stream_of_a_paused_run_ends_and_a_new_one_waits_for_the_continuation(api: ApiServer) -> None:
    first = await api.http.post("/agents/native/runs", data={"message": "confirm"})
    paused = frames_of(first.content)
    path, run_id = first.headers["location"], first.headers["x-run-id"]
    assert paused[-1].name == "RunPaused"
    again = asyncio.create_task(api.http.get(f"{path}/events", headers={"last-event-id": str(paused[-1].index)}))
    await asyncio.sleep(0.1)
    assert not again.done()
    tools = [tool | {"confirmed": True} for tool in paused[-1].data["tools"]]
    answer = await api.http.post(f"{path}/continue", json={"tools": tools, "stream": False})
    frames = frames_of((await again).content)
    assert answer.json()["run_id"] == run_id and answer.json()["status"] == "COMPLETED"
    assert frames[0].name == "RunContinued" and frames[0].index == paused[-1].index + 1 and frames[-1].name == "RunCompleted"


async def test_replaying_a_paused_run_ends_at_its_pause(api: ApiServer) -> None:
    first = await api.http.post("/agents/native/runs", data={"message": "confirm"})
    async with asyncio.timeout(5):
        replayed = frames_of((await api.http.post(f"{first.headers['location']}/resume")).content)
        watched = frames_of((await api.http.get(f"{first.headers['location']}/events")).content)
    assert replayed[0].data["status"] == "PAUSED" and replayed[1:] == watched == frames_of(first.content)


async def test_a_run_that_was_paused_and_went_on_replays_as_one_log(api: ApiServer) -> None:
    first = await api.http.post("/agents/native/runs", data={"message": "confirm"})
    tools = [tool | {"confirmed": True} for tool in frames_of(first.content)[-1].data["tools"]]
    second = await api.http.post(f"{first.headers['location']}/continue", json={"tools": tools})
    whole = frames_of((await api.http.get(f"{first.headers['location']}/events")).content)
    assert whole == frames_of(first.content) + frames_of(second.content)
    assert indices(whole) == list(range(len(whole)))


# ---- logs that are not kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "end"), [("hi", "RunCompleted"), ("fail", "RunError"), ("confirm", "RunPaused")])
async def test_a_log_that_is_not_kept_tells_its_gap_and_its_end(api_on_each: ApiServer, word: str, end: str) -> None:
    api = api_on_each
    first = await api.http.post("/agents/native/runs", data={"message": word})
    last = frames_of(first.content)[-1]
    await api.sql("DELETE FROM run_events")
    for answer in (
        await api.http.get(f"{first.headers['location']}/events"),
        await api.http.post(f"{first.headers['location']}/resume"),
    ):
        gap, made = [frame for frame in frames_of(answer.content) if frame.name != "replay"]
        assert (gap.index, gap.name, gap.data["from"], gap.data["to"]) == (None, "gap", 0, last.index - 1)
        assert (made.index, made.name, made.data["content"]) == (last.index, end, last.data["content"])


async def test_a_cancelled_run_whose_log_is_not_kept_still_says_so(api: ApiServer) -> None:
    run_id = await api.enqueue("slow 100 20")
    await api.until(run_id, "RUNNING")
    await api.http.post(f"/agents/plain/runs/{run_id}/cancel", params={"wait": 5})
    await api.sql("DELETE FROM run_events")
    frames = frames_of((await api.http.get(f"/agents/plain/runs/{run_id}/events")).content)
    assert names(frames) == ["gap", "RunCancelled"]


async def test_a_long_poll_over_a_gap_goes_on_behind_it(api: ApiServer) -> None:
    run = await api.run()
    await api.sql("DELETE FROM run_events")
    polled = (await api.http.get(f"/agents/plain/runs/{run['run_id']}/events", params={"wait": 0})).json()
    assert [e["event"] for e in polled["events"]] == ["RunCompleted"] and polled["next"] == 8


async def test_the_copied_runs_of_a_forked_session_tell_a_gap_and_their_end(api_on_each: ApiServer) -> None:
    api = api_on_each
    run = await api.run("tool", "native", session_id="s")
    fork = (await api.http.post("/agents/native/sessions/s/fork")).json()["session_id"]
    copy = (await api.http.get(f"/sessions/{fork}/runs")).json()[0]
    frames = frames_of((await api.http.get(f"/agents/native/runs/{copy['run_id']}/events")).content)
    assert copy["run_id"] != run["run_id"] and names(frames) == ["gap", "RunCompleted"]
    assert frames[-1].data["content"] == run["content"] and frames[-1].data["run_id"] == copy["run_id"]


async def test_unknown_runs_are_404_on_every_route(api: ApiServer) -> None:
    run = await api.run()
    path = "/agents/native/runs"  # the run is another agent's
    answers = [await api.http.get(f"{path}/{name}/events") for name in (run["run_id"], "nope", "x" * 300, "%00", "é")]
    answers += [await api.http.post(f"{path}/{name}/resume") for name in (run["run_id"], "nope")]
    assert {(answer.status_code, answer.json()["error_type"]) for answer in answers} == {(404, "run_not_found")}
    assert (await api.http.get(f"/agents/nope/runs/{run['run_id']}/events")).status_code == 404


async def test_a_session_that_is_not_the_runs_own_is_404_on_resume_and_continue(api: ApiServer) -> None:
    """B95: every id of a request is checked."""
    path = f"/agents/native/runs/{(await api.run(agent='native', session_id='mine'))['run_id']}"
    for route in ("resume", "continue"):
        answer = await api.http.post(f"{path}/{route}", data={"session_id": "theirs"})
        assert (answer.status_code, answer.json()["error_type"]) == (404, "run_not_found")
    assert (await api.http.post(f"{path}/resume", data={"session_id": "mine"})).status_code == 200
    assert await api.count("runs") == 1


async def test_three_cut_connections_of_one_viewer_make_one_whole_log(api: ApiServer) -> None:
    """B11, B15."""
    run_id = await api.enqueue("slow 20 10")
    seen: list[int] = []
    for _ in range(3):
        wire = await Wire(api.port).open()
        last = str(seen[-1]) if seen else ""
        await wire.send(f"/agents/plain/runs/{run_id}/events", method="GET", Content_Type="", Last_Event_ID=last)
        await wire.head()
        got = await wire.until(b"event: RunContent")
        seen += indices(frames_of(got))
        wire.reset()
    rest = frames_of((await api.http.get(f"/agents/plain/runs/{run_id}/events", params={"after": seen[-1]})).content)
    seen += indices(rest)
    assert seen == list(range(len(seen))) and rest[-1].name == "RunCompleted" and text_of(rest)
