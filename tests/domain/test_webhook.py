"""The rules of webhooks: secrets, signatures, waits, and where calls may go."""

import re
from pathlib import Path
from typing import Any

import pytest

from support.receiver import SECRET, Call, verified
from waystation.clock import now
from waystation.domain.webhook import (
    MOST_TRIES,
    Webhook,
    delay_after,
    is_literally_private,
    is_public,
    key_of,
    problem_with_url,
    signed_headers,
)
from waystation.errors import ConfigError

PRIVATE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "ff0e::1", "2001:db8::1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::", "100::1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_of_the_public_internet_is_known(address: str) -> None:
    assert not is_public(address)
    assert is_literally_private(f"http://[{address}]/" if ":" in address else f"http://{address}:8080/x")


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_known(address: str) -> None:
    assert is_public(address)
    assert not is_literally_private(f"http://[{address}]/" if ":" in address else f"http://{address}/")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0"]
)
def test_other_spellings_of_this_machine_are_known(host: str) -> None:
    assert is_literally_private(f"http://{host}/")


@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "10.example.com", "notlocalhost"])
def test_a_name_is_not_judged_before_it_is_looked_up(host: str) -> None:
    assert not is_literally_private(f"https://{host}/")


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "//example.com", "ftp://example.com", "http://", "http://:80", "http://u@example.com", "http://u:p@example.com",
     "http://@example.com", "http://example.com:0", "http://example.com:x", "http://[::1", "http://exämple.com", "http://example.com/#f",
     "http://example.com/\n", "http://example.com\\@evil.com"],
)  # fmt: skip
def test_a_url_that_can_not_be_called_has_a_problem(url: str) -> None:
    assert problem_with_url(url)


def test_a_webhook_has_an_id_of_its_url_and_shows_no_secret() -> None:
    one, other = Webhook(url="https://example.com/a", secret=SECRET), Webhook(url="https://example.com/b", secret=SECRET)
    assert one.id != other.id and one.id == Webhook(url="https://example.com/a", secret=SECRET).id
    assert SECRET not in repr(one)


@pytest.mark.parametrize("secret", ["", "whsec_", "hunter2", SECRET.removeprefix("whsec_"), "whsec_!!!", "whsec_c2hvcnQ=", SECRET + "="])
def test_a_secret_that_is_none_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        key_of(secret)
    assert not secret or secret not in str(refused.value).replace("`whsec_`", "")


@pytest.mark.parametrize("given", [{"url": "ftp://x"}, {"events": ("run.started",)}, {"events": ()}, {"id": "a/b"}])
def test_a_webhook_that_can_not_work_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Webhook"):
        Webhook(**{"url": "https://example.com/", "secret": SECRET, **given})  # type: ignore[arg-type]


def test_a_signature_is_that_of_the_specification_and_is_broken_by_any_change() -> None:
    headers = signed_headers(key_of(SECRET), "msg", int(now()), b'{"a": 1}')
    assert verified(Call("/", headers, b'{"a": 1}'))
    assert not verified(Call("/", headers, b'{"a": 2}'))
    assert not verified(Call("/", headers | {"webhook-id": "other"}, b'{"a": 1}'))
    assert not verified(Call("/", headers | {"webhook-timestamp": str(int(now()) + 1)}, b'{"a": 1}'))


def test_a_delivery_is_tried_for_about_a_day() -> None:
    delays = [delay_after(tries) for tries in range(1, MOST_TRIES)]
    assert delay_after(MOST_TRIES) is None and None not in delays
    assert 18 * 3600 < sum(delay or 0 for delay in delays) < 28 * 3600
    assert all(delay is not None and 4 <= delay <= 1.2 * 6 * 3600 for delay in delays)


def test_waits_are_scattered() -> None:
    assert len({delay_after(5) for _ in range(20)}) > 1


def test_the_verification_in_the_guide_takes_a_signature_and_no_forged_or_old_one() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/webhooks.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "def verify" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    fresh, old = (signed_headers(key_of(SECRET), "msg", int(now()) - age, b"{}") for age in (0, 600))
    assert names["verify"](fresh, b"{}", SECRET)
    assert not names["verify"](fresh, b"{ }", SECRET) and not names["verify"](old, b"{}", SECRET)
