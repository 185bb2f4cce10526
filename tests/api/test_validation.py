"""Bad input: 422 that names the field, before anything is stored; and limits that are the same for every encoding."""

import json
from typing import Any

import httpx
import pytest

from support.api_server import ApiServer, api_server
from support.api_wire import Wire

RUNS = "/agents/native/runs"
BAD = [
    ("message", ""), ("message", " \n\t"), ("stream", "maybe"), ("background", "2"), ("on_busy", "wait"), ("on_disconnect", "stop"),
    ("session_id", "a/b"), ("session_id", "a b"), ("session_id", "a\x00b"), ("session_id", "a\nb"), ("session_id", "x" * 256),
    ("user_id", "a/b"), ("user_id", "<a>"), ("images", "{"), ("images", "[]]"), ("images", '"str"'), ("images", '[{"url": 1}]'),
    ("images", "[1]"), ("audio", "{}"), ("videos", "{nope"), ("input_files", "[[]]"), ("files_metadata", "{"),
    ("output_schema", '{"type": "array"}'), ("output_schema", "{}"), ("output_schema", "true"), ("output_schema", "{nope"),
    ("output_schema", '{"type": "object", "properties": []}'), ("session_state", "[]"), ("session_state", "{"),
    ("metadata", "1"), ("metadata", '{"a": NaN}'), ("metadata", '{"a": 1e999}'), ("dependencies", "["), ("knowledge_filters", "{"),
    ("max_attempts", "0"), ("max_attempts", "11"), ("max_attempts", "x"), ("timeout_s", "0"), ("timeout_s", "86401"),
    ("timeout_s", "nan"), ("available_at", "x"), ("available_at", "nan"), ("available_at", "inf"), ("available_at", "99999999999"),
    ("run_id", "x"), ("status", "COMPLETED"), ("nonsense", "1"), ("metadata[a]", "1"),
]  # fmt: skip


async def test_bad_fields_are_422_in_a_form_and_a_multipart_form_and_nothing_is_stored(api_on_each: ApiServer) -> None:
    """B91, B99."""
    for name, value in BAD:
        fields = {"message": "hi", name: value}
        for body in ({"data": fields}, {"files": {key: (None, text) for key, text in fields.items()}}):
            answer = await api_on_each.http.post(RUNS, **body)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["error_type"]) == (422, "invalid_input"), (name, value)
            assert answer.json()["detail"][0]["loc"][:2] == ["body", name], (name, value, answer.text)
    assert await api_on_each.count("runs") == 0 and await api_on_each.count("sessions") == 0


JSON_BAD: list[tuple[str, Any]] = [
    ("message", 1), ("message", None), ("message", ["hi"]), ("stream", "maybe"), ("stream", []), ("session_id", 5),
    ("session_id", "a\x00b"), ("session_id", "a\ud800b"), ("user_id", "a\x00b"), ("images", {}), ("images", [{"url": 1}]),
    ("output_schema", {"type": "array"}), ("output_schema", True), ("session_state", []), ("metadata", "x"), ("max_attempts", 1.5),
    ("timeout_s", -1), ("files", "x"), ("max_attempts", True), ("timeout_s", True), ("available_at", True), ("version", True),
]  # fmt: skip


async def test_bad_fields_are_422_in_json_and_nothing_is_stored(api_on_each: ApiServer) -> None:
    """B99; B72: a lone surrogate or NUL in an id is refused, whatever the encoding."""
    for name, value in JSON_BAD:
        answer = await api_on_each.http.post(
            RUNS, content=json.dumps({"message": "hi", name: value}), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422, (name, value)
        assert answer.json()["detail"][0]["loc"][:2] == ["body", name], (name, value, answer.text)
    assert await api_on_each.count("runs") == 0


@pytest.mark.parametrize(("route", "name"), [("continue", "continue_from"), ("resume", "last_event_index")])
@pytest.mark.parametrize("flag", [True, False])
async def test_a_flag_is_not_taken_for_an_index(api: ApiServer, route: str, name: str, flag: bool) -> None:
    run = (await api.http.post(RUNS, data={"message": "hi", "stream": "false"})).json()
    answer = await api.http.post(f"{RUNS}/{run['run_id']}/{route}", json={name: flag})
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", name])
    assert await api.count("runs") == 1


async def test_bodies_that_are_no_object_are_422(api: ApiServer) -> None:
    """B86."""
    for body in [b"", b"{", b"[]", b'"x"', b"null", b'{"message": NaN}', b"\xff\xfe\x00", b"[" * 100_000, b'{"a":' * 5000]:
        answer = await api.http.post(RUNS, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][0] == "body"


async def test_fields_that_no_agent_heeds_yet_are_501(api: ApiServer) -> None:
    for name in ["dependencies", "knowledge_filters", "version", "factory_input", "debug_mode"]:
        values = {"version": "2", "factory_input": "x", "debug_mode": "true"}
        answer = await api.http.post(RUNS, data={"message": "hi", name: values.get(name, '{"a": 1}')})
        assert (answer.status_code, answer.json()["error_type"]) == (501, "not_supported")
        assert name in answer.json()["detail"] and await api.count("runs") == 0


async def test_empty_values_of_optional_fields_count_as_none(api: ApiServer) -> None:
    names = ["session_id", "user_id", "images", "audio", "videos", "input_files", "output_schema", "session_state", "metadata"]
    names += ["dependencies", "knowledge_filters", "max_attempts", "available_at", "version", "add_history_to_context"]
    answer = await api.http.post(RUNS, data={"message": "hi", "stream": "false", **dict.fromkeys(names, "")})
    assert answer.status_code == 200, answer.text


# ---- limits ----------------------------------------------------------------------------------------------------------------------


async def in_each_encoding(api: ApiServer, fields: dict[str, Any]) -> list[httpx.Response]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return [
        await api.http.post(RUNS, data=texts),
        await api.http.post(RUNS, files={name: (None, text) for name, text in texts.items()}),
        await api.http.post(RUNS, json=fields),
    ]


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return dict(value)


async def test_the_limits_on_a_message_and_a_body_are_the_same_for_every_encoding(sqlite_url: str) -> None:
    """B105."""
    async with api_server(sqlite_url, max_message_bytes=2_000, max_body_bytes=9_000) as api:
        for length, code in ((2_000, 200), (2_001, 413), (9_000, 413)):
            answers = await in_each_encoding(api, {"message": "é" * (length // 2) + "x" * (length % 2), "stream": False})
            assert [answer.status_code for answer in answers] == [code] * 3
            for answer in answers if code == 413 else ():
                assert answer.json()["error_type"] == "payload_too_large" and "000 bytes" in answer.json()["detail"]
        assert await api.count("runs") == 3


async def test_a_long_message_passes_in_every_encoding(api: ApiServer) -> None:
    """B105: 1.1 MB as a form as well."""
    for answer in await in_each_encoding(api, {"message": "x" * 1_100_000, "stream": False}):
        assert len(answer.json()["input"]["input_content"]) == 1_100_000


async def test_a_body_without_a_length_is_cut_off_at_the_limit(sqlite_url: str) -> None:
    async with api_server(sqlite_url, max_body_bytes=5_000) as api:

        async def chunks() -> Any:
            for _ in range(100):
                yield b"x" * 1_000

        for kind in ("application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=b"):
            answer = await api.http.post(RUNS, content=chunks(), headers={"content-type": kind})
            assert answer.status_code in (413, 422) and await api.count("runs") == 0
            assert answer.status_code == 413 or "multipart" in kind


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(sqlite_url: str) -> None:
    async with api_server(sqlite_url, max_body_bytes=5_000) as api:
        wire = await Wire(api.port).open()
        await wire.send(RUNS, b'{"message"', Content_Length="100000000")
        status, headers = await wire.head()
        assert (status, json.loads(await wire.body(headers))["error_type"]) == (413, "payload_too_large")
        await wire.close()


@pytest.mark.parametrize("limit", [5, 100])
async def test_json_may_be_nested_equally_deep_in_every_encoding(sqlite_url: str, limit: int) -> None:
    async with api_server(sqlite_url, max_json_depth=limit) as api:
        for depth, code in ((limit, 200), (limit + 1, 422)):
            answers = await in_each_encoding(api, {"message": "hi", "stream": False, "metadata": nested(depth)})
            assert [answer.status_code for answer in answers] == [code] * 3
            assert all(str(limit) in answer.text for answer in answers if code == 422)


async def test_a_form_may_have_a_thousand_fields(api: ApiServer) -> None:
    """B105."""
    pairs = [("message", "hi"), *((f"f{n}", "1") for n in range(1_000))]
    form = await api.http.post(
        RUNS, content="&".join(f"{k}={v}" for k, v in pairs), headers={"content-type": "application/x-www-form-urlencoded"}
    )
    multipart = await api.http.post(RUNS, files=[(name, (None, value)) for name, value in pairs])
    for answer in (form, multipart):
        assert answer.status_code == 422 and "1000 fields" in answer.text.replace("fields is 1000", "1000 fields")


async def test_an_integer_of_thousands_of_digits_is_refused_in_our_own_words(api: ApiServer) -> None:
    answer = await api.http.post(RUNS, data={"message": "hi", "metadata": '{"n": %s}' % ("1" * 5_000)})
    assert answer.status_code == 422 and "sys." not in answer.text


async def test_a_client_that_leaves_before_its_body_is_complete_leaves_nothing(api: ApiServer) -> None:
    wire = await Wire(api.port).open()
    await wire.send(RUNS, b'{"message": "hi"', Content_Length="5000")
    wire.reset()
    assert (await api.run())["status"] == "COMPLETED"
    assert await api.count("runs") == 1
