"""A tool call as clients see it, and what a paused run waits for.

A requirement is open until an answer was applied to it. Answers come from clients and are matched by tool_call_id; only the
fields that answer are read, so a call's name and arguments are always those that the store holds.
"""

import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from waystation.clock import iso
from waystation.domain.text import clean, clean_json


class UserInputField(BaseModel):
    """One argument that the user may fill in; `value` None is not filled in yet."""

    model_config = ConfigDict(frozen=True)

    name: str
    field_type: str = "str"
    description: str | None = None
    value: Any = None


class ToolExecution(BaseModel):
    """A tool call: what was asked for, what must happen before it may run, and its result. Field names as in AgentOS."""

    model_config = ConfigDict(frozen=True)

    tool_call_id: str
    tool_name: str
    tool_args: dict[str, Any] = Field(default_factory=dict)
    tool_call_error: bool | None = None
    result: str | None = None
    metrics: dict[str, Any] | None = None
    child_run_id: str | None = None
    stop_after_tool_call: bool = False
    created_at: int = 0
    requires_confirmation: bool | None = None
    confirmed: bool | None = None
    confirmation_note: str | None = None
    requires_user_input: bool | None = None
    user_input_schema: list[UserInputField] | None = None
    user_feedback_schema: list[dict[str, Any]] | None = None
    answered: bool | None = None
    external_execution_required: bool | None = None
    external_execution_silent: bool | None = None
    approval_type: str | None = None
    approval_id: str | None = None
    parent_tool_call_id: str | None = None


class PauseKind(StrEnum):
    CONFIRMATION = "confirmation"
    USER_INPUT = "user_input"
    EXTERNAL = "external_execution"


class Requirement(BaseModel):
    """Something a paused run waits for."""

    model_config = ConfigDict(frozen=True)

    id: str
    created_at: float
    tool_execution: ToolExecution

    @property
    def kind(self) -> PauseKind:
        tool = self.tool_execution
        if tool.external_execution_required:
            return PauseKind.EXTERNAL
        return PauseKind.USER_INPUT if tool.requires_user_input else PauseKind.CONFIRMATION

    @property
    def needs_approval(self) -> bool:
        """Whether an admin must decide. Then a client's `confirmed` counts for nothing."""
        return self.tool_execution.approval_type == "required"

    @property
    def is_open(self) -> bool:
        tool = self.tool_execution
        match self.kind:
            case PauseKind.EXTERNAL:
                return tool.result is None
            case PauseKind.USER_INPUT:
                return not tool.answered or any(field.value is None for field in tool.user_input_schema or ())
            case PauseKind.CONFIRMATION:
                return tool.confirmed is None

    def answered_by(self, answer: dict[str, Any]) -> "Requirement":
        """This requirement with a client's answer applied; unchanged where the answer holds nothing that counts."""
        tool = self.tool_execution
        match self.kind:
            case PauseKind.EXTERNAL:
                result = answer.get("result")
                changes: dict[str, Any] = {} if result is None else {"result": clean(_as_text(result))}
            case PauseKind.USER_INPUT:
                changes = self._user_input(answer)
            case PauseKind.CONFIRMATION:
                changes = {} if self.needs_approval else _confirmation(answer)
        return self.model_copy(update={"tool_execution": tool.model_copy(update=changes)}) if changes else self

    def resolved_by_approval(self, status: str | None, approval_id: str | None) -> "Requirement":
        """This requirement with an admin's decision applied: `approved`, `rejected`, or anything else for still open."""
        if status not in ("approved", "rejected"):
            return self
        changes = {"confirmed": status == "approved", "approval_id": approval_id}
        return self.model_copy(update={"tool_execution": self.tool_execution.model_copy(update=changes)})

    def _user_input(self, answer: dict[str, Any]) -> dict[str, Any]:
        sent = answer.get("user_input_schema")
        given = {
            item["name"]: item.get("value")
            for item in (sent if isinstance(sent, list) else ())
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
        if not given:
            return {}
        fields = [
            field if given.get(field.name) is None else field.model_copy(update={"value": clean_json(given[field.name])})
            for field in self.tool_execution.user_input_schema or ()
        ]
        return {"user_input_schema": fields, "answered": all(field.value is not None for field in fields)}

    def wire(self) -> dict[str, Any]:
        """The form clients read. Nulls inside the tool call are kept, as AgentOS does."""
        body: dict[str, Any] = {
            "id": self.id,
            "created_at": iso(self.created_at),
            "tool_execution": self.tool_execution.model_dump(mode="json"),
        }
        if self.tool_execution.user_input_schema is not None:
            body["user_input_schema"] = [field.model_dump(mode="json") for field in self.tool_execution.user_input_schema]
        return body


def _confirmation(answer: dict[str, Any]) -> dict[str, Any]:
    confirmed = answer.get("confirmed")
    if not isinstance(confirmed, bool):
        return {}
    note = answer.get("confirmation_note")
    return {"confirmed": confirmed, "confirmation_note": clean(note) if isinstance(note, str) else None}


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(clean_json(value), ensure_ascii=False)
