"""Rows to domain objects and back. JSON columns are read and written here and nowhere else."""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pydantic_core import to_json

from waystation.db.tables import runs, sessions
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message
from waystation.domain.metrics import Metrics
from waystation.domain.run import OnDisconnect, Run, RunFailure, RunInput, RunOutput
from waystation.domain.session import Session
from waystation.domain.webhook import Endpoint

RUN_COLUMNS = [
    column
    for column in runs.c
    if column.name not in ("idempotency_scope", "idempotency_key", "cancel_requested_at", "drop_requested", "goes_first")
]  # fmt: skip
SESSION_COLUMNS = list(sessions.c)


def dumps(value: Any) -> str:
    return to_json(value, inf_nan_mode="constants").decode()


def loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def run_from_row(row: sa.Row[Any]) -> Run:
    """A run from a row that has all RUN_COLUMNS."""
    values = row._asdict()
    output, error, metrics = values["output"], values["error"], values["metrics"]
    values |= {
        "status": RunStatus(values["status"]),
        "input": RunInput.model_validate_json(values["input"]),
        "output": RunOutput.model_validate_json(output) if output else None,
        "error": RunFailure.model_validate_json(error) if error else None,
        "metrics": Metrics.model_validate_json(metrics) if metrics else Metrics(),
        "metadata": loads(values["metadata"]) or {},
        "webhooks": endpoints_from(values["webhooks"]) if values["webhooks"] else (),
        "on_disconnect": OnDisconnect(values["on_disconnect"]),
    }
    for flag in ("holds_session", "cancel_requested", "background", "dropped_from_history"):
        values[flag] = bool(values[flag])
    return Run(**values)


def session_from_row(row: sa.Row[Any]) -> Session:
    """A session from a row that has all SESSION_COLUMNS."""
    values = row._asdict()
    values |= {
        "state": loads(values["state"]) or {},
        "metadata": loads(values["metadata"]) or {},
        "summary": loads(values["summary"]),
    }
    return Session(**values)


def messages_from_payload(payload: str) -> list[Message]:
    return [Message.model_validate_json(line) for line in payload.split("\n")]


def payload_from_messages(messages: list[Message]) -> str:
    return "\n".join(message.encode() for message in messages)


def endpoints_json(endpoints: Sequence[Endpoint]) -> str:
    return dumps([{"source": e.source, "id": e.id, "events": e.events, "url": e.url} for e in endpoints])


def endpoints_from(text: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(**{**item, "events": tuple(item["events"])}) for item in json.loads(text))


def input_json(value: RunInput) -> str:
    return value.model_dump_json(exclude_defaults=True)
