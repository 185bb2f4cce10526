"""What the model is given to read: the system message, and the messages of a request.

The text of uploaded files is put before the model in the run they came with; the recorded message stays as it was sent.
"""

from collections.abc import Sequence

from waystation.agents.turn import Turn
from waystation.clock import now
from waystation.domain.media import Attachment
from waystation.domain.message import Message, repaired

MOST_FILE_CHARS = 200_000
TEXT_TYPES = frozenset({
    "application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript",
})  # fmt: skip


def system_text(description: str | None, instructions: str | None) -> str | None:
    """The text of the system message, None for none."""
    return "\n\n".join(part for part in (description, instructions) if part and part.strip()) or None


def request_messages(system: str | None, turn: Turn, own: Sequence[Message]) -> list[Message]:
    """The messages of a request: the system message, the session's history, the turn's own messages. Always valid."""
    head = [m for m in own[:1] if m.role == "system"]
    rest = list(own[len(head) :])
    if not head and system is not None:
        head = [Message(id="system", role="system", content=system, created_at=int(now()))]
    if turn.attachments:
        rest = _with_files(rest, turn.attachments)
    return repaired([*head, *turn.history, *rest])


def _with_files(messages: list[Message], files: Sequence[Attachment]) -> list[Message]:
    """The messages with the files behind the text of the user message that they came with: the run's first own one, or the first that
    a sibling has taken over."""
    asked = [place for place, message in enumerate(messages) if message.role == "user"]
    own = [place for place in asked if not messages[place].from_history]
    for place in (own or asked)[:1]:
        text = "\n\n".join([messages[place].content or "", *map(_file_text, files)])
        return [*messages[:place], messages[place].model_copy(update={"content": text}), *messages[place + 1 :]]
    return messages


def _file_text(file: Attachment) -> str:
    label = f'<file name="{file.name}" type="{file.mime_type}" bytes="{file.size_bytes}">'
    if not (file.mime_type.startswith("text/") or file.mime_type in TEXT_TYPES):
        return f"{label}(not readable as text)</file>"
    text = file.content.decode("utf-8", "replace")
    if len(text) > MOST_FILE_CHARS:
        text = f"{text[:MOST_FILE_CHARS]}\n(cut after {MOST_FILE_CHARS:,} of {len(text):,} characters)"
    return f"{label}\n{text}\n</file>"
