"""Files: taken or refused before the run, kept under ids of our own, given to the agent whole."""

import json
from typing import Any, ClassVar

import httpx

from support.api_agents import SmallAgent
from support.api_server import ApiServer, api_server
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.media import MediaKind

NAMES = ["../../x", "..\\..\\x", "/etc/x", "C:\\x", "CON", ".", "..", "x" * 300, "-rf", "%2e%2e%2f", "a\u202eb", "é 上海.txt"]


class Reader(SmallAgent):
    media: ClassVar[frozenset[MediaKind]] = frozenset({MediaKind.FILE, MediaKind.IMAGE})


async def reads(turn: Turn, emit: Emitter) -> TurnResult:
    return TurnResult(content=json.dumps([[a.name, a.mime_type, len(a.content), a.metadata] for a in turn.attachments]))


async def upload(api: ApiServer, *files: tuple[str, bytes, str], agent: str = "native", **fields: str) -> httpx.Response:
    parts = [("files", file) for file in files]
    return await api.http.post(f"/agents/{agent}/runs", data={"message": "hi", "stream": "false", **fields}, files=parts)


async def test_files_reach_the_agent_whole_with_their_metadata(database_url: str) -> None:
    async with api_server(database_url, [Reader(reads)]) as api:
        big = bytes(range(256)) * 8_000
        files = [("a.txt", b"one", "text/plain"), ("b.png", big, "image/png"), ("c.json", b"{}", "application/octet-stream")]
        answer = await upload(api, *files, agent="small", files_metadata='[{"n": 1}, {}]')
        got = json.loads(answer.json()["content"])
        assert got[:2] == [["a.txt", "text/plain", 3, {"n": 1}], ["b.png", "image/png", len(big), None]]
        assert got[2:] == [["c.json", "application/json", 2, None]]


async def test_file_names_are_only_for_show(api_on_each: ApiServer) -> None:
    """B101: stored under an id; twice the same name is two files."""
    files = [(name, b"x", "text/plain") for name in [*NAMES, "same.txt", "same.txt", "SAME.txt"]]
    answer = await upload(api_on_each, *files)
    assert answer.status_code == 200, answer.text
    shown = [file["filename"] for file in answer.json()["input"]["files"]]
    assert len(shown) == len(files) == len({file["id"] for file in answer.json()["input"]["files"]})
    assert all("/" not in name and "\\" not in name and name.isprintable() and 0 < len(name) <= 255 for name in shown)


async def test_media_that_an_agent_can_not_take_is_refused_before_the_run(api: ApiServer) -> None:
    """B107."""
    for agent, kind in [("ext", "audio/mpeg"), ("ext", "video/mp4"), ("ext", "text/plain"), ("native", "font/woff")]:
        answer = await upload(api, ("a.bin", b"x", kind), agent=agent)
        assert (answer.status_code, answer.json()["error_type"]) == (400, "unsupported_media")
        assert [await api.count(table) for table in ("runs", "attachments", "sessions")] == [0, 0, 0]


async def test_media_by_url_are_refused_alike_and_never_fetched(api: ApiServer) -> None:
    """B104, B107."""
    media: list[tuple[str, Any]] = [("images", [{"url": "http://169.254.169.254/"}]), ("audio", [{"content": "eA=="}])]
    for name, value in media:
        answer = await api.http.post("/agents/ext/runs", json={"message": "hi", name: value})
        assert (answer.status_code, answer.json()["error_type"]) == (400, "unsupported_media")
    taken = await api.run("hi", "native", images=[{"url": "http://169.254.169.254/"}])
    assert taken["status"] == "COMPLETED" and taken["input"]["images"] == [{"url": "http://169.254.169.254/"}]


async def test_a_file_under_another_field_is_named(api: ApiServer) -> None:
    answer = await api.http.post("/agents/native/runs", data={"message": "hi"}, files={"images": ("a.png", b"x", "image/png")})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", "images"]


async def test_more_files_than_allowed_are_refused(api: ApiServer) -> None:
    answer = await upload(api, *[("a.txt", b"x", "text/plain")] * 101)
    assert answer.status_code == 422 and "100" in answer.text and await api.count("runs") == 0


MALFORMED = [
    (b"garbage", "boundary=b"), (b"", "boundary=b"), (b"--b\r\nfoo", "boundary=b"), (b"--b\r\n\r\nhi\r\n--b--\r\n", "boundary=b"),
    (b"--b\r\nContent-Disposition: form-data\r\n\r\nhi\r\n--b--\r\n", "boundary=b"), (b"--b--\r\n", "charset=utf-8"),
]  # fmt: skip


async def test_a_malformed_multipart_body_is_422(api: ApiServer) -> None:
    for body, parameter in MALFORMED:
        answer = await api.http.post("/agents/native/runs", content=body, headers={"content-type": f"multipart/form-data; {parameter}"})
        assert answer.status_code == 422 and answer.json()["error_type"] == "invalid_input"


async def test_a_multipart_body_that_breaks_off_within_a_file_is_422(api: ApiServer) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="message"\r\n\r\nhi\r\n--b\r\nContent-Disposition: form-data; name="files"; '
    body = head + b'filename="a.txt"\r\nContent-Type: text/plain\r\n\r\nhalf of it'
    answer = await api.http.post("/agents/native/runs", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 422
