"""What a paused run waits for, and which answers count."""

from typing import Any

import pytest

from waystation.domain.requirement import PauseKind, Requirement, ToolExecution, UserInputField


def asked(**tool: Any) -> Requirement:
    values = {"tool_call_id": "c", "tool_name": "t", "tool_args": {"x": 1}} | tool
    return Requirement(id="q", created_at=0.0, tool_execution=ToolExecution(**values))


CONFIRM = asked(requires_confirmation=True)
APPROVE = asked(requires_confirmation=True, approval_type="required")
EXTERNAL = asked(external_execution_required=True)
FIELDS = [UserInputField(name="city"), UserInputField(name="day", value="Monday")]
INPUT = asked(requires_user_input=True, user_input_schema=FIELDS)


def kept(requirement: Requirement) -> dict[str, Any]:
    tool = requirement.tool_execution
    names = ("confirmed", "confirmation_note", "result", "answered", "approval_id")
    return {name: getattr(tool, name) for name in names if getattr(tool, name) is not None}


@pytest.mark.parametrize(
    ("requirement", "kind"),
    [(CONFIRM, PauseKind.CONFIRMATION), (INPUT, PauseKind.USER_INPUT), (EXTERNAL, PauseKind.EXTERNAL), (APPROVE, PauseKind.CONFIRMATION)],
)
def test_a_requirement_is_open_until_it_is_answered(requirement: Requirement, kind: PauseKind) -> None:
    assert (requirement.kind, requirement.is_open) == (kind, True)


@pytest.mark.parametrize(
    ("requirement", "answer", "expected"),
    [
        (CONFIRM, {"confirmed": True}, {"confirmed": True}),
        (CONFIRM, {"confirmed": False, "confirmation_note": "no\x00"}, {"confirmed": False, "confirmation_note": "no\ufffd"}),
        (CONFIRM, {"confirmed": True, "confirmation_note": 5}, {"confirmed": True}),
        (EXTERNAL, {"result": "done\x00"}, {"result": "done\ufffd"}),
        (EXTERNAL, {"result": ""}, {"result": ""}),
        (EXTERNAL, {"result": {"n": 1, "城": float("nan")}}, {"result": '{"n": 1, "城": null}'}),
        (INPUT, {"user_input_schema": [{"name": "city", "value": "Rome"}]}, {"answered": True}),
        (INPUT, {"user_input_schema": [{"name": "city", "value": False}]}, {"answered": True}),
    ],
)
def test_an_answer_closes_a_requirement(requirement: Requirement, answer: dict[str, Any], expected: dict[str, Any]) -> None:
    answered = requirement.answered_by(answer)
    assert (answered.is_open, kept(answered)) == (False, expected)


@pytest.mark.parametrize(
    ("requirement", "answer"),
    [
        (CONFIRM, {}),
        (CONFIRM, {"confirmed": None}),
        (CONFIRM, {"confirmed": "true"}),
        (CONFIRM, {"confirmed": 1}),
        (CONFIRM, {"result": "done"}),
        (APPROVE, {"confirmed": True}),
        (EXTERNAL, {}),
        (EXTERNAL, {"result": None}),
        (EXTERNAL, {"confirmed": True}),
        (INPUT, {}),
        (INPUT, {"answered": True}),
        (INPUT, {"user_input_schema": None}),
        (INPUT, {"user_input_schema": 5}),
        (INPUT, {"user_input_schema": "city"}),
        (INPUT, {"user_input_schema": {"name": "city", "value": "Rome"}}),
        (INPUT, {"user_input_schema": [5, {"name": 5, "value": 1}, {"value": 1}]}),
    ],
)
def test_what_does_not_answer_changes_nothing(requirement: Requirement, answer: dict[str, Any]) -> None:
    assert requirement.answered_by(answer) is requirement


def test_fields_are_filled_in_one_answer_after_the_other() -> None:
    two = asked(requires_user_input=True, user_input_schema=[UserInputField(name="a"), UserInputField(name="b")])
    first = two.answered_by({"user_input_schema": [{"name": "a", "value": 1}, {"name": "b", "value": None}, {"name": "z", "value": 9}]})
    second = first.answered_by({"user_input_schema": [{"name": "b", "value": "\x00"}]})
    assert (first.is_open, second.is_open) == (True, False)
    assert [(f.name, f.value) for f in second.tool_execution.user_input_schema or ()] == [("a", 1), ("b", "\ufffd")]


def test_an_answer_never_changes_what_is_called() -> None:
    answered = CONFIRM.answered_by({"confirmed": True, "tool_name": "rm", "tool_args": {"x": 2}, "tool_call_id": "z"})
    tool = answered.tool_execution
    assert (tool.tool_name, tool.tool_args, tool.tool_call_id) == ("t", {"x": 1}, "c")


@pytest.mark.parametrize(
    ("status", "is_open", "expected"),
    [
        ("approved", False, {"confirmed": True, "approval_id": "p"}),
        ("rejected", False, {"confirmed": False, "approval_id": "p"}),
        ("pending", True, {}),
        ("cancelled", True, {}),
        (None, True, {}),
    ],
)
def test_an_admin_decides_what_needs_approval(status: str | None, is_open: bool, expected: dict[str, Any]) -> None:
    decided = APPROVE.resolved_by_approval(status, "p")
    assert (decided.is_open, kept(decided)) == (is_open, expected)


def test_the_wire_form_shows_the_fields_to_fill_in() -> None:
    wire = INPUT.wire()
    assert [field["name"] for field in wire["user_input_schema"]] == ["city", "day"]
    assert "user_input_schema" not in CONFIRM.wire()
    assert Requirement.model_validate_json(INPUT.model_dump_json()) == INPUT
