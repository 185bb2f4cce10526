"""Webhooks: where the ends and pauses of runs are told, what is sent, how it is signed, and when it is sent again. Pure: no I/O.

Bodies, headers and secrets have the form of the Standard Webhooks specification, so its libraries verify them.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import random
import socket
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from waystation.domain.text import is_identifier
from waystation.errors import ConfigError

EventName = Literal["run.completed", "run.error", "run.cancelled", "run.paused"]
EVENTS: tuple[EventName, ...] = get_args(EventName)
MOST_URL_CHARS = 2_048
MOST_TRIES = 12
FIRST_DELAY_S = 5.0
MOST_DELAY_S = 6 * 3600.0
_SECRET_BYTES = range(24, 65)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Source = Literal["agent", "run"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class DeliveryStatus(StrEnum):
    """`pending`: to be sent, now or again; `failed`: given up, until it is replayed."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where the ends and pauses of an agent's runs are told.

    `secret` is `whsec_` and the base64 of 24 to 64 bytes. `events` are among run.completed, run.error, run.cancelled and run.paused.
    `id` names the endpoint among those of its agent (default: made of the URL): deliveries under way find the URL and the secret by it,
    so either may change if the id is given.

    Raises ConfigError for a value that can't work.
    """

    url: str
    secret: str = field(repr=False)
    events: tuple[str, ...] = EVENTS
    id: str = ""

    def __post_init__(self) -> None:
        if problem := problem_with_url(self.url):
            raise ConfigError(f"Webhook url: {problem}.")
        if unknown := [name for name in self.events if name not in EVENTS]:
            raise ConfigError(f"Webhook event {unknown[0]!r}: use {', '.join(EVENTS)}.")
        if not self.events:
            raise ConfigError("Webhook events: name at least one.")
        key_of(self.secret)
        object.__setattr__(self, "events", tuple(self.events))
        object.__setattr__(self, "id", self.id or hashlib.sha256(self.url.encode()).hexdigest()[:12])
        if not is_identifier(self.id):
            raise ConfigError(f"Webhook id {self.id!r}: use 1 to 255 letters, digits or . _ - : @ ~ + = ,")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A webhook as it is kept on a run. Of an agent's only the id is: the rest is in code. Of a run's own, `id` is its place in the
    request and `url` where it goes."""

    source: Source
    id: str
    events: tuple[str, ...] = EVENTS
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """What is to be told to one endpoint. `payload` is the body, the same at each attempt."""

    id: str
    endpoint: Endpoint
    event: str
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One row of `webhook_deliveries`. `epoch` counts claims and replays; `tries` are the attempts since the last replay."""

    id: str
    run_id: str
    session_id: str
    agent_id: str
    source: Source
    endpoint: str
    url: str | None
    target: str
    event: str
    payload: str
    status: DeliveryStatus
    epoch: int
    attempts: int
    tries: int
    next_attempt_at: float | None
    last_attempt_at: float | None
    last_status_code: int | None
    last_error: str | None
    delivered_at: float | None
    created_at: float


def target_of(agent_id: str, endpoint: Endpoint) -> str:
    """What shares one bound of attempts at a time: the endpoint of an agent, or the host of a run's own."""
    return f"{agent_id}/{endpoint.id}" if endpoint.url is None else origin_of(endpoint.url)


def origin_of(url: str) -> str:
    """Scheme, host and port: what may be shown of a URL, whose path and query often hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


# ---- signing -----------------------------------------------------------------------------------------------------------------
def key_of(secret: str) -> bytes:
    """The key in a secret. Raises ConfigError, which does not show it."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith("whsec_") or len(key) not in _SECRET_BYTES:
        raise ConfigError("A webhook secret is `whsec_` and the base64 of 24 to 64 random bytes.")
    return key


def signed_headers(key: bytes, delivery_id: str, at: int, body: bytes) -> dict[str, str]:
    """The three headers of one attempt. `at` is in whole seconds since the epoch."""
    signature = hmac.new(key, b"%b.%d.%b" % (delivery_id.encode(), at, body), hashlib.sha256).digest()
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


# ---- trying again ------------------------------------------------------------------------------------------------------------
def delay_after(tries: int, asked_s: float | None = None) -> float | None:
    """Seconds until the next attempt after this many, None when it is given up: twelve in about a day. The endpoint may have asked for a
    longer wait (Retry-After), at most MOST_DELAY_S."""
    if tries >= MOST_TRIES:
        return None
    planned: float = min(FIRST_DELAY_S * 3.0 ** (tries - 1), MOST_DELAY_S) * random.uniform(0.8, 1.2)
    return max(planned, min(asked_s or 0.0, MOST_DELAY_S))


# ---- where it may go ---------------------------------------------------------------------------------------------------------
def problem_with_url(url: str) -> str | None:
    """Why a URL can't be that of a webhook, without showing it; None if it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if len(url) > MOST_URL_CHARS or not url.isascii() or any(c <= " " or c in "\\\x7f" for c in url):
        return f"use at most {MOST_URL_CHARS} visible ASCII characters"
    if parts.scheme not in ("http", "https"):
        return "use http or https"
    if not parts.hostname or port == 0:
        return "has no host, or a port that can't be"
    if "@" in parts.netloc:
        return "must not hold a user or password"
    return "must not have a fragment" if "#" in url else None


def is_literally_private(url: str) -> bool:
    """Whether a URL names an address that is not public, or this machine. Any other name is looked up only when it is called."""
    parts: SplitResult = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not is_public(host)
    except ValueError:
        pass
    try:
        return not is_public(socket.inet_ntoa(socket.inet_aton(host)))  # 127.1, 0x7f000001 and the like
    except OSError:
        return False


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet. An IPv6 address that stands for an IPv4 address is judged by that. Raises
    ValueError if it is none."""
    found: Address = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local:
            return False
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast and not found.is_reserved
