"""The server as a newcomer starts it."""

from pathlib import Path

import httpx

from support.server import running


def test_a_served_agent_streams_a_run_to_its_end(database_url: str, tmp_path: Path) -> None:
    with running(database_url, tmp_path) as server:
        answer = httpx.post(f"{server.base}/agents/plain/runs", data={"message": "hi"}, timeout=10, trust_env=False)
    assert answer.status_code == 200
    assert answer.text.count("event: RunContent\n") == 4
    assert answer.text.rstrip().rsplit("\n\n", 1)[-1].startswith("id: 8\nevent: RunCompleted\n")
