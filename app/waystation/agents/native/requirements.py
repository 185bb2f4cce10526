"""What a paused native run waits for: the requirement of a call, and how its answer is read."""

from collections.abc import Iterable

from waystation.agents.native.tools import Tool
from waystation.clock import new_id, now
from waystation.domain.requirement import PauseKind, Requirement, ToolExecution, UserInputField

ASK_AGAIN = "The server was interrupted while this call ran. It may have had its effect already. Run it again?"


def requirement_for(tool: Tool, execution: ToolExecution) -> Requirement:
    """What a call of a tool that pauses waits for."""
    if tool.external_execution:
        changes: dict[str, object] = {"external_execution_required": True}
    elif tool.requires_user_input:
        changes = {"requires_user_input": True, "user_input_schema": _fields(tool, execution)}
    else:
        changes = {"requires_confirmation": True}
        if tool.approval:
            changes["approval_type"] = "required"
    return _requirement(execution.model_copy(update=changes))


def asked_again(execution: ToolExecution) -> Requirement:
    """The question whether a call of unknown effect is to be made again. Its arguments are those it was started with."""
    changes = {
        "requires_confirmation": True,
        "confirmed": None,
        "confirmation_note": ASK_AGAIN,
        "requires_user_input": None,
        "user_input_schema": None,
        "answered": None,
        "approval_id": None,
    }
    return _requirement(execution.model_copy(update=changes))


def with_user_input(execution: ToolExecution) -> ToolExecution:
    """The call with what the user has filled in among its arguments."""
    given = {field.name: field.value for field in execution.user_input_schema or () if field.value is not None}
    return execution.model_copy(update={"tool_args": execution.tool_args | given})


def declined_text(requirement: Requirement) -> str:
    """What the model is told of a call that was not confirmed."""
    who = "An administrator" if requirement.needs_approval else "The user"
    note = requirement.tool_execution.confirmation_note
    return f"{who} declined this call: {note}" if note else f"{who} declined this call."


def pause_text(requirements: Iterable[Requirement]) -> str:
    """One line that says what a run waits for."""
    waits: dict[str, list[str]] = {}
    for requirement in requirements:
        waits.setdefault(_waits_for(requirement), []).append(requirement.tool_execution.tool_name)
    return "; ".join(f"Waiting for {what}: {', '.join(names)}" for what, names in waits.items())


def _waits_for(requirement: Requirement) -> str:
    match requirement.kind:
        case PauseKind.EXTERNAL:
            return "the result of"
        case PauseKind.USER_INPUT:
            return "input to"
        case PauseKind.CONFIRMATION:
            return "an administrator's approval of" if requirement.needs_approval else "confirmation of"


def _requirement(execution: ToolExecution) -> Requirement:
    return Requirement(id=new_id(), created_at=now(), tool_execution=execution)


def _fields(tool: Tool, execution: ToolExecution) -> list[UserInputField]:
    """What the user sees: the fields to fill in, and beside them what the model has given."""
    asked = tool.user_input_fields or {p.name for p in tool.parameters if p.required}
    return [
        UserInputField(name=p.name, field_type=p.type_name, description=p.description, value=execution.tool_args.get(p.name))
        for p in tool.parameters
        if p.name in asked or execution.tool_args.get(p.name) is not None
    ]
