"""Reading the logs of runs, and their messages and files."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from waystation.db.tables import Int, attachments, run_events, run_messages
from waystation.domain.event import Segment
from waystation.domain.media import Attachment, MediaKind
from waystation.domain.message import Message
from waystation.store.rows import loads, messages_from_payload

PAGE_BYTES = 1024 * 1024
PAGE_SEGMENTS = 200

READ = (
    sa.select(run_events.c.first_index, run_events.c.last_index, run_events.c.payload)
    .where(run_events.c.run_id == sa.bindparam("run"), run_events.c.last_index > sa.bindparam("after", type_=Int))
    .order_by(run_events.c.first_index)
    .limit(PAGE_SEGMENTS)
)
MESSAGES = (
    sa.select(run_messages.c.run_id, run_messages.c.payload)
    .where(run_messages.c.run_id.in_(sa.bindparam("runs", expanding=True)))
    .order_by(run_messages.c.run_id, run_messages.c.first_index)
)


def read(conn: sa.Connection, run_id: str, after: int) -> list[Segment]:
    """The next events behind an index, about PAGE_BYTES of them; empty at the end of what is stored."""
    segments: list[Segment] = []
    size = 0
    for row in conn.execute(READ, {"run": run_id, "after": after}):
        segment = Segment.stored(row.first_index, row.last_index, row.payload).after(after)
        segments.append(segment)
        size += len(segment.lines)
        if size > PAGE_BYTES:
            break
    return segments


def read_all(conn: sa.Connection, run_id: str) -> list[Segment]:
    """The whole log of a run."""
    segments: list[Segment] = []
    while page := read(conn, run_id, segments[-1].last_index if segments else -1):
        segments += page
    return segments


def messages_of(conn: sa.Connection, run_ids: Sequence[str]) -> dict[str, list[Message]]:
    """The messages of each run, in order; a run without messages is left out."""
    found: dict[str, list[Message]] = {}
    if run_ids:
        for row in conn.execute(MESSAGES, {"runs": list(run_ids)}):
            found.setdefault(row.run_id, []).extend(messages_from_payload(row.payload))
    return found


def attachments_of(conn: sa.Connection, run_id: str) -> list[Attachment]:
    rows: Any = conn.execute(sa.select(attachments).where(attachments.c.run_id == run_id).order_by(attachments.c.id))
    return [
        Attachment(
            id=row.id, name=row.name, mime_type=row.mime_type, kind=MediaKind(row.kind), content=row.content,
            metadata=loads(row.metadata),
        )
        for row in rows
    ]  # fmt: skip
