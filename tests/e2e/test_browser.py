"""A run watched by the EventSource of a real browser, from a page of another origin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.browser import Page, browser, opened
from support.server import Server, running

NAMES = ("RunStarted", "ModelRequestStarted", "RunContent", "RunContentCompleted", "ModelRequestCompleted", "CustomEvent", "RunCompleted")
HTML = """<!doctype html><title>a viewer</title><script>
const asked = new URLSearchParams(location.search);
const seen = [], notes = [];
const tell = (kind) => fetch("/report", {method: "POST", body: JSON.stringify({kind, seen, notes})});
const source = new EventSource(asked.get("events"));
for (const name of asked.get("names").split(","))
  source.addEventListener(name, (event) => {
    seen.push([event.type, event.lastEventId, event.data]);
    if (seen.length == 4) tell("watching");
  });
source.onopen = () => notes.push("open");
source.onerror = () => {
  notes.push(source.readyState == EventSource.CLOSED ? "closed" : "lost");
  if (source.readyState == EventSource.CLOSED) tell("closed");
};
</script>"""


@pytest.fixture
def page() -> Iterator[Page]:
    found = Page(HTML)
    yield found
    found.close()


def stored(server: Server, run_id: str) -> list[tuple[str, str, str]]:
    """Name, id and data of all events of a run, as another client is given them."""
    answer = httpx.get(
        f"{server.base}/agents/native/runs/{run_id}/events", timeout=20, trust_env=False, headers={"accept": "text/event-stream"}
    )
    fields = [
        dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line and line[0] != ":") for frame in answer.text.split("\n\n")
    ]
    return [(frame["event"], frame["id"], frame["data"]) for frame in fields if "data" in frame]


def test_an_event_source_goes_on_after_a_crash_of_the_server_and_closes_at_the_end_of_the_run(
    database_url: str, page: Page, tmp_path: Path
) -> None:
    executable = browser()
    with running(database_url, tmp_path, cors_origins=f'["{page.origin}"]') as server:
        asked = {"message": "slow 30 100", "stream": "false", "background": "true"}
        run_id = httpx.post(f"{server.base}/agents/native/runs", data=asked, timeout=20, trust_env=False).json()["run_id"]
        url = httpx.URL(page.origin, params={"events": f"{server.base}/agents/native/runs/{run_id}/events", "names": ",".join(NAMES)})
        with opened(executable, str(url), tmp_path):
            assert page.report()["kind"] == "watching"
            server.kill()
            server.start()
            report: Any = page.report()
        assert report["kind"] == "closed"
        seen = [tuple(event) for event in report["seen"]]
        assert seen == stored(server, run_id)
    assert [int(index) for _, index, _ in seen] == list(range(len(seen)))
    assert [name for name, _, _ in seen][-1] == "RunCompleted"
    # Opened, lost by the crash, opened again; the end of the stream, and then the answer that there is no more.
    assert (report["notes"][0], report["notes"][-2:], report["notes"].count("open")) == ("open", ["lost", "closed"], 2)
