"""One signed call of a webhook: only to public addresses unless that is allowed, without redirects, within a time.

The name is looked up here, and the connection goes to an address that was found good: what a second look-up would say does not matter.
The Host header and the name that TLS checks stay those of the URL. Connections are not kept: one to an address was checked for one name.
"""

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from waystation.clock import now
from waystation.domain.webhook import is_public, signed_headers

CALL_S = 15.0
CONNECT_S = 5.0
MOST_ADDRESSES = 3


class AddressRefusedError(Exception):
    """The name of an endpoint leads to no public address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call came to. `error` is a stable word, None if the endpoint took it; `retry_after_s` is what it asked for."""

    status_code: int | None = None
    error: str | None = None
    retry_after_s: float | None = None

    @property
    def is_gone(self) -> bool:
        """The endpoint wants no more of it."""
        return self.status_code == httpx.codes.GONE


class Caller:
    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(limits=limits)

    async def close(self) -> None:
        await self._transport.aclose()

    async def call(self, url: str, key: bytes, delivery_id: str, body: bytes) -> Answer:
        """One attempt. Nothing of the answer is read but its status and Retry-After."""
        headers = {"content-type": "application/json", "user-agent": "waystation"}
        headers |= signed_headers(key, delivery_id, int(now()), body)
        try:
            async with asyncio.timeout(CALL_S):
                return await self._send(httpx.URL(url), headers, body)
        except AddressRefusedError:
            return Answer(error="address_refused")
        except (TimeoutError, httpx.TimeoutException):
            return Answer(error="timeout")
        except (socket.gaierror, UnicodeError):
            return Answer(error="name_not_found")
        except ssl.SSLError:
            return Answer(error="tls_failed")
        except (httpx.TransportError, httpx.InvalidURL, OSError) as exc:
            return Answer(error="tls_failed" if _is_about_tls(exc) else "connection_failed")

    async def _send(self, url: httpx.URL, headers: dict[str, str], body: bytes) -> Answer:
        *others, last = (await self._addresses(url))[:MOST_ADDRESSES]
        for address in others:
            try:
                return await self._send_to(address, url, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue  # nothing was sent yet
        return await self._send_to(last, url, headers, body)

    async def _send_to(self, address: str, url: httpx.URL, headers: dict[str, str], body: bytes) -> Answer:
        timeout = httpx.Timeout(CALL_S, connect=CONNECT_S).as_dict()
        host = url.netloc.decode("ascii")
        request = httpx.Request(
            "POST", url.copy_with(host=address), headers=headers | {"host": host}, content=body,
            extensions={"timeout": timeout, "sni_hostname": url.raw_host.decode("ascii")},
        )  # fmt: skip
        response = await self._transport.handle_async_request(request)
        try:
            status = response.status_code
            if response.is_success:
                return Answer(status_code=status)
            error = "redirect" if response.is_redirect else f"http_{status}"
            return Answer(status_code=status, error=error, retry_after_s=_seconds(response.headers.get("retry-after")))
        finally:
            await response.aclose()

    async def _addresses(self, url: httpx.URL) -> list[str]:
        """The addresses that may be called, in the resolver's order; at least one."""
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(url.raw_host.decode("ascii"), port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        allowed = [address for address in addresses if self._allow_private or is_public(address)]
        if not allowed:
            raise AddressRefusedError
        return allowed


def _is_about_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _seconds(text: str | None) -> float | None:
    """The seconds of a Retry-After, which may be a date. None for anything else."""
    if text is None:
        return None
    if text.isascii() and text.strip().isdigit():
        return float(text[:12])
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None
