"""Text as it may be stored: identifiers, and what both databases can hold.

NUL and lone surrogates become U+FFFD (PostgreSQL refuses both in text, and JSON with a lone surrogate can't be sent as UTF-8);
everything else is kept as it came. NaN and the infinities become None: JSON has no word for them.
"""

import math
import re
from typing import Any

REPLACEMENT = "\ufffd"
MAX_ID_CHARS = 255
MAX_LEVELS = 200  # pydantic encodes no more than 255

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ASCII_ID = re.compile(r"[A-Za-z0-9._\-:@~+=,]*\Z")


def clean(text: str) -> str:
    """The text with each NUL and lone surrogate replaced by U+FFFD. A surrogate pair is joined into its character."""
    if text.isascii():
        return text if "\x00" not in text else text.replace("\x00", REPLACEMENT)
    if _UNSTORABLE.search(text) is None:
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\x00", REPLACEMENT)


def clean_json(value: Any, levels: int = MAX_LEVELS) -> Any:
    """A JSON value with every text in it cleaned (keys too) and NaN and infinities as None. Bytes become text, and what is nested
    deeper than `levels` (or holds itself) U+FFFD."""
    match value:
        case str():
            return clean(value)
        case bytes():
            return clean(value.decode("utf-8", "replace"))
        case dict() | list() | tuple() if not levels:
            return REPLACEMENT
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {clean(str(key)): clean_json(item, levels - 1) for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item, levels - 1) for item in value]
        case _:
            return value


def depth_of(value: Any) -> int:
    """How deep lists and objects are nested: 0 for a scalar."""
    deepest, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        deepest += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return deepest


def is_identifier(text: str) -> bool:
    """Whether the text may name a session or a user: 1–255 of the allowed ASCII characters or printable non-ASCII."""
    if not 0 < len(text) <= MAX_ID_CHARS:
        return False
    return all(_ASCII_ID.match(c) if c.isascii() else c.isprintable() for c in text)


def is_storable(text: str) -> bool:
    """Whether a text from a path or query may be asked of the store at all."""
    return _UNSTORABLE.search(text) is None
