"""Files and media that come with a run."""

import mimetypes
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from waystation.domain.text import clean


class MediaKind(StrEnum):
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


DOCUMENT_TYPES = frozenset({
    "application/pdf", "application/json", "application/xml", "application/yaml", "application/x-yaml", "application/rtf",
    "application/msword", "application/vnd.ms-excel", "application/vnd.ms-powerpoint", "application/javascript",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
})  # fmt: skip

MAX_NAME_CHARS = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """An uploaded file of a run. `name` is only for show: the store and the workspace use `id`."""

    id: str
    name: str
    mime_type: str
    kind: MediaKind
    content: bytes
    metadata: dict[str, Any] | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def described(self) -> dict[str, Any]:
        """What is shown of it: no content."""
        body: dict[str, Any] = {"id": self.id, "filename": self.name, "mime_type": self.mime_type, "size": self.size_bytes}
        return body | ({"metadata": self.metadata} if self.metadata else {})


def kind_of(mime_type: str) -> MediaKind | None:
    """The kind of media of a content type, or None for one that no agent is given."""
    family = mime_type.split("/", 1)[0]
    if family in ("image", "audio", "video"):
        return MediaKind(family)
    if family == "text" or mime_type in DOCUMENT_TYPES:
        return MediaKind.FILE
    return None


def type_of(mime_type: str | None, name: str) -> str:
    """The content type without parameters; guessed from the name where the client gave none."""
    given = (mime_type or "").split(";", 1)[0].strip().lower()
    if given and given != "application/octet-stream":
        return given
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def shown_name(name: str | None) -> str:
    """The name to show: its last path component, cleaned and cut."""
    last = clean(name or "").replace("\\", "/").rsplit("/", 1)[-1]
    printable = "".join(c if c.isprintable() else "\ufffd" for c in last)
    return printable[:MAX_NAME_CHARS] or "file"
