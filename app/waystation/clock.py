"""Time and identifiers. Times are seconds since the epoch (UTC) as floats; text forms are made at the edge only."""

import os
import time
from datetime import UTC, datetime


def now() -> float:
    """The wall clock in seconds since the epoch, UTC."""
    return time.time()


def new_id() -> str:
    """A UUID of version 7 (RFC 9562): ordered by the millisecond in which it was made, so that indexes grow at one end."""
    ms = time.time_ns() // 1_000_000
    rest = bytearray(os.urandom(10))
    rest[0] = (rest[0] & 0x0F) | 0x70
    rest[2] = (rest[2] & 0x3F) | 0x80
    text = f"{ms:012x}{rest.hex()}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def iso(at: float | None) -> str | None:
    """ISO 8601 in UTC with whole seconds and Z; None stays None."""
    if at is None:
        return None
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
