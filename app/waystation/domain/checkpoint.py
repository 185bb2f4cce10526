"""Message boundaries a run may be continued from."""

import re
from dataclasses import dataclass
from typing import Literal

from waystation.domain.message import Message, safe_cut
from waystation.errors import InvalidCheckpointError, InvalidInputError

PREVIEW_CHARS = 120

_INDEX = re.compile(r"-?[0-9]{1,11}")

ContinueFrom = Literal["end", "last_user"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A boundary after `message_index` messages. `reason`: `end` for the last one, `checkpoint` for one within the run."""

    message_index: int
    reason: Literal["end", "checkpoint"]
    message: Message
    is_latest: bool


def checkpoints(messages: list[Message]) -> list[Checkpoint]:
    """The boundaries at which the model was, or will be, asked to go on: after each batch of tool results, and the end."""
    ends = [
        count
        for count in range(1, len(messages))
        if messages[count - 1].role == "tool" and messages[count].role != "tool"
    ]  # fmt: skip
    if messages:
        ends.append(len(messages))
    return [
        Checkpoint(
            message_index=count,
            reason="end" if count == len(messages) else "checkpoint",
            message=messages[count - 1],
            is_latest=count == len(messages),
        )
        for count in ends
    ]


def parse_continue_from(text: str | int) -> ContinueFrom:
    """`end`, `last_user` or a message index; anything else is malformed."""
    if isinstance(text, int):
        return text
    if text in ("end", "last_user"):
        return text  # type: ignore[return-value]
    if _INDEX.fullmatch(text):
        return int(text)
    raise InvalidInputError("continue_from", "expected 'end', 'last_user' or a message index")


def cut(messages: list[Message], point: ContinueFrom) -> int:
    """How many messages a continuation takes over: never past `point`, and never between a call and its results."""
    if point == "end":
        return safe_cut(messages, len(messages))
    if point == "last_user":
        users = [count for count, message in enumerate(messages, 1) if message.role == "user"]
        if not users:
            raise InvalidCheckpointError("The run has no user message to go on from.")
        return users[-1]
    if not 0 <= point <= len(messages):
        raise InvalidCheckpointError(f"The run has {len(messages)} messages; there is none at index {point}.")
    return safe_cut(messages, point)
