"""Going on with a run: a paused one under its own id, a finished one as a sibling from one of its message boundaries.

A finished run is never rewritten. A paused run goes on only when every requirement has its answer; answers are matched with what the
store holds, so a client can neither change a call nor stand in for an admin.
"""

from collections.abc import Callable
from typing import Any

from waystation.agents.base import BaseAgent, Capability
from waystation.agents.registry import AgentRegistry
from waystation.clock import new_id, now
from waystation.db.engine import Database
from waystation.domain.access import Principal
from waystation.domain.checkpoint import cut
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message, repaired
from waystation.domain.requirement import Requirement
from waystation.domain.run import Run, RunDetail
from waystation.domain.text import clean
from waystation.errors import (
    InvalidInputError,
    NotSupportedError,
    RequirementsOpenError,
    RunInFlightError,
    RunNotContinuableError,
    RunNotFoundError,
    UnavailableError,
    UnknownRequirementError,
)
from waystation.runs.executor import Executor
from waystation.runs.request import ContinueRequest, Ticket
from waystation.runs.service import RunService
from waystation.runs.slots import Slots
from waystation.store import approvals
from waystation.store import runs as run_store
from waystation.store.approvals import Approval
from waystation.store.operations import Accept, MessageLines
from waystation.store.rows import payload_from_messages


class ContinuationService:
    """`worker_id` and `wake` as for RunService."""

    def __init__(
        self,
        *,
        database: Database,
        registry: AgentRegistry,
        runs: RunService,
        executor: Executor,
        slots: Slots,
        worker_id: Callable[[], str | None],
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._registry = registry
        self._runs = runs
        self._executor = executor
        self._slots = slots
        self._worker_id = worker_id
        self._wake = wake

    async def go_on(self, request: ContinueRequest, principal: Principal) -> Ticket:
        """Accept a continuation. What it answers is to be watched from `after` on."""
        agent = self._registry.get(request.agent_id)
        detail = await self._runs.get(request.agent_id, request.run_id, principal)
        run = detail.run
        if request.user_id is not None and run.user_id is not None and principal.user_for(request.user_id) != run.user_id:
            raise RunNotFoundError(run.id)
        match run.status:
            case RunStatus.PENDING | RunStatus.RUNNING:
                raise RunInFlightError(run.id)
            case RunStatus.CANCELLED:
                raise RunNotContinuableError(run.id, run.status.value)
            case RunStatus.PAUSED if not request.fork:
                return await self._reopen(agent, run, request)
            case _:
                return await self._sibling(agent, detail, request)

    # ---- a paused run ------------------------------------------------------------------------------------------------------
    async def _reopen(self, agent: BaseAgent, run: Run, request: ContinueRequest) -> Ticket:
        if request.input is not None or request.regenerate:
            raise InvalidInputError("input", "a paused run goes on with answers to its requirements, not with new input")
        if Capability.PAUSE not in agent.capabilities or run.output is None:
            raise NotSupportedError(f"Agent {agent.id!r} has no capability PAUSE.")
        decided = {a.tool_call_id: a for a in await self._database.read(approvals.of_run, run.id)}
        requirements = answered(run, request.answers, decided)
        if still_open := [r for r in requirements if r.is_open]:
            raise RequirementsOpenError(run.id, [_named(r) for r in still_open])
        output = run.output.model_copy(update={"requirements": requirements}).model_dump_json(exclude_none=True, exclude_defaults=True)
        if self._slots.closed:
            raise UnavailableError
        worker_id = None if request.background else self._worker_id()
        if worker_id is not None and not self._slots.take():
            worker_id = None
        reopened: Run | None = None
        try:
            reopened = await self._database.write(run_store.reopen, run, output, worker_id, now())
        finally:
            if worker_id is not None and reopened is None:
                self._slots.give_back()
        if reopened is None:
            raise RunInFlightError(run.id)
        if worker_id is not None:
            self._executor.start_claimed(reopened)
        else:
            self._wake()
        return Ticket(run_id=run.id, session_id=run.session_id, agent_id=run.agent_id, after=run.next_index - 1)

    # ---- a finished run ----------------------------------------------------------------------------------------------------
    async def _sibling(self, agent: BaseAgent, detail: RunDetail, request: ContinueRequest) -> Ticket:
        source = detail.run
        if Capability.CONTINUE not in agent.capabilities:
            raise NotSupportedError(f"Agent {agent.id!r} has no capability CONTINUE.")
        if request.answers and not request.fork:
            raise RunNotContinuableError(source.id, source.status.value)
        at = now()
        count = cut(detail.messages, "last_user" if request.regenerate else request.continue_from)
        # What was completed is known by its result; what was not is told as interrupted. No call of the source is executed again.
        taken = repaired(detail.messages[:count], results_of(source))
        messages = _taken_over(taken, request.additional_instructions, int(at))
        if request.input is not None:
            messages.append(Message(id=new_id(), role="user", content=clean(request.input), created_at=int(at)))
        elif messages and messages[-1].role == "assistant":
            raise InvalidInputError("input", "there is nothing to answer at this place; give an input")
        message = source.input.message if request.input is None else clean(request.input)
        run = Run(
            id=new_id(),
            agent_id=agent.id,
            session_id=source.session_id,
            user_id=source.user_id,
            status=RunStatus.PENDING,
            input=source.input.model_copy(update={"message": message, "session_state": None}),
            created_at=at,
            max_attempts=agent.retry.attempts,
            available_at=at,
            background=request.background,
            metadata={key: value for key, value in source.metadata.items() if key != "warnings"},
            model=agent.model,
            model_provider=agent.model_provider,
            forked_from_run_id=source.id,
            forked_from_message_index=count,
        )
        replaces = request.regenerate and request.replace_original is not False
        accept = Accept(
            run=run,
            may_wait=request.background,
            messages=MessageLines(0, len(messages), payload_from_messages(messages)) if messages else None,
            replaces_run_id=source.id if replaces else None,
        )
        return await self._runs.accept(accept, agent, starts_now=not request.background)


def results_of(run: Run) -> dict[str, str]:
    """The results of a run's completed tool calls, by call."""
    tools = run.output.tools if run.output else []
    return {tool.tool_call_id: tool.result for tool in tools if tool.result is not None}


def answered(run: Run, answers: list[dict[str, Any]], decided: dict[str, Approval]) -> list[Requirement]:
    """The requirements of a paused run with answers and admins' decisions applied. An answer to a call that the run has completed
    already is ignored (clients send back all tools of a run); one to a call that it never had is refused."""
    requirements = {r.tool_execution.tool_call_id: r for r in run.requirements}
    known = {tool.tool_call_id for tool in run.output.tools} if run.output else set()
    for answer in answers:
        call_id = answer.get("tool_call_id")
        if isinstance(call_id, str) and call_id in requirements:
            requirements[call_id] = requirements[call_id].answered_by(answer)
        elif not isinstance(call_id, str) or call_id not in known:
            raise UnknownRequirementError(run.id, call_id)
    for call_id, requirement in requirements.items():
        if requirement.needs_approval:
            approval = decided.get(call_id)
            requirements[call_id] = requirement.resolved_by_approval(
                approval.status if approval else None, approval.id if approval else None
            )
    return list(requirements.values())


def _named(requirement: Requirement) -> dict[str, Any]:
    tool = requirement.tool_execution
    return {
        "id": requirement.id, "kind": requirement.kind.value, "tool_call_id": tool.tool_call_id, "tool_name": tool.tool_name,
        "needs_approval": requirement.needs_approval,
    }  # fmt: skip


def _taken_over(messages: list[Message], instructions: str | None, at: int) -> list[Message]:
    taken = [message.model_copy(update={"from_history": True}) for message in messages]
    if instructions is None:
        return taken
    text = clean(instructions)
    if taken and taken[0].role == "system":
        return [taken[0].model_copy(update={"content": f"{taken[0].content}\n\n{text}"}), *taken[1:]]
    return [Message(id=new_id(), role="system", content=text, created_at=at), *taken]
