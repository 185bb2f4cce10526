"""Runs, as clients ask for them: submit, read, list, cancel.

What can be refused is refused here, before anything is stored or streamed. A run that starts at once takes a slot of this process and
is stored as RUNNING in the commit that accepts it; any other is stored as PENDING, for whoever claims it first.
"""

import asyncio
import functools
from collections.abc import Callable

from waystation.agents.base import BaseAgent, Capability
from waystation.agents.registry import AgentRegistry
from waystation.agents.turn import StopReason
from waystation.clock import new_id, now
from waystation.db.engine import Database
from waystation.domain.access import Principal
from waystation.domain.lifecycle import RunStatus
from waystation.domain.media import MediaKind
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import OnBusy, Run, RunDetail
from waystation.domain.webhook import Endpoint
from waystation.errors import (
    AgentNotFoundError,
    IdempotencyConflictError,
    NotFoundError,
    NotSupportedError,
    QueueFullError,
    RunDeletedError,
    RunNotFoundError,
    SessionBusyError,
    SessionNotFoundError,
    SessionOfOtherAgentError,
    StoreUnavailableError,
    UnavailableError,
    UnsupportedMediaError,
)
from waystation.live.base import Live
from waystation.logs import get_logger
from waystation.runs.execution import Execution
from waystation.runs.executor import Executor
from waystation.runs.idle import IdleEnds
from waystation.runs.preparation import history_runs_of
from waystation.runs.request import RunRequest, Ticket
from waystation.runs.slots import Slots
from waystation.runs.watch import Watch
from waystation.store import runs as run_store
from waystation.store.details import list_details, read_detail
from waystation.store.ledger import Ledger
from waystation.store.operations import Accept, Accepted, Verdict

log = get_logger(__name__)


class RunService:
    """`worker_id` gives the id under which this process may start runs, None while it may not; `wake` has the claim loop look."""

    def __init__(
        self,
        *,
        database: Database,
        ledger: Ledger,
        registry: AgentRegistry,
        executor: Executor,
        watch: Watch,
        idle: IdleEnds,
        slots: Slots,
        live: Live,
        worker_id: Callable[[], str | None],
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._registry = registry
        self._executor = executor
        self._watch = watch
        self._idle = idle
        self._slots = slots
        self._live = live
        self._worker_id = worker_id
        self._wake = wake

    # ---- submit ----------------------------------------------------------------------------------------------------------
    async def submit(self, request: RunRequest, principal: Principal) -> Ticket:
        """Accept a run. Raises the refusals of the contract, each before anything is stored."""
        agent = self._registry.get(request.agent_id)
        _check(agent, request)
        at = now()
        run = Run(
            id=new_id(),
            agent_id=agent.id,
            session_id=request.session_id or new_id(),
            user_id=principal.user_for(request.user_id),
            status=RunStatus.PENDING,
            input=request.input,
            created_at=at,
            max_attempts=request.max_attempts or agent.retry.attempts,
            available_at=max(request.available_at or at, at),
            timeout_s=request.timeout_s,
            background=request.background,
            on_disconnect=request.on_disconnect,
            request_hash=request.request_hash,
            metadata=request.metadata,
            webhooks=request.webhooks,
            model=agent.model,
            model_provider=agent.model_provider,
        )
        accept = Accept(
            run=run,
            may_wait=request.busy_rule is not OnBusy.REJECT,
            goes_first=request.busy_rule in (OnBusy.INTERRUPT, OnBusy.ROLLBACK),
            drops=request.busy_rule is OnBusy.ROLLBACK,
            idempotency_scope=run.user_id or "",
            idempotency_key=request.idempotency_key,
            attachments=request.attachments,
        )
        return await self.accept(accept, agent, starts_now=not request.background and run.available_at <= at)

    async def accept(self, accept: Accept, agent: BaseAgent, *, starts_now: bool) -> Ticket:
        """Commit an acceptance and, if it may start now and its session is free, execute it in this process."""
        if self._slots.closed:
            raise UnavailableError
        if agent.webhooks:
            accept.run.webhooks += tuple(Endpoint(source="agent", id=w.id, events=w.events) for w in agent.webhooks)
        worker_id = self._worker_id() if starts_now else None
        execution: Execution | None = None
        if worker_id is not None and not self._is_over_share(accept.run.user_id) and self._slots.take():
            accept.worker_id = worker_id
            execution, accept.first = self._executor.begin(accept.run, agent)
            accept.history_runs = history_runs_of(accept.run, agent)
        answer = self._ledger.accept(accept)
        if execution is not None:
            # A callback, not this task: the run is accepted and executed also if its request is cancelled meanwhile.
            answer.add_done_callback(functools.partial(self._begin, execution))
        accepted = await asyncio.shield(answer)
        ticket = self._ticket(accept, accepted)
        await self._stop_asked(accepted.asked)
        return ticket

    def _is_over_share(self, user_id: str | None) -> bool:
        """Whether a user has half of the slots while others wait: the next run waits too."""
        return self._slots.some_wait and user_id is not None and self._executor.held_by_users()[user_id] >= self._slots.share

    async def _stop_asked(self, run_ids: list[str]) -> None:
        """Tell runs that are in the way of a new one to stop. They were asked in its commit: what is not told here, their owners, a
        claim or recovery find there."""
        try:
            for run_id in run_ids:
                if not self._executor.stop(run_id, StopReason.CANCELLED):
                    self._live.tell_cancel(run_id)
                    await self._idle.cancel_if_idle(run_id)
        except StoreUnavailableError:
            log.warning("turns in flight not told to stop; their owners will find it", runs=len(run_ids))

    def _begin(self, execution: Execution, answer: "asyncio.Future[Accepted]") -> None:
        """Start the execution of a run that was accepted, or give its slot back."""
        if not answer.cancelled() and answer.exception() is None and answer.result().verdict is Verdict.STARTED:
            self._executor.start(execution, answer.result())
        else:
            self._executor.abandon(execution)
            self._slots.give_back()

    def _ticket(self, accept: Accept, answer: Accepted) -> Ticket:
        run = accept.run
        match answer.verdict:
            case Verdict.STARTED | Verdict.WAITS:
                if answer.verdict is Verdict.WAITS:
                    self._wake()
                return Ticket(run_id=run.id, session_id=run.session_id, agent_id=run.agent_id)
            case Verdict.EXISTS:
                if answer.request_hash != run.request_hash:
                    raise IdempotencyConflictError(answer.run_id or "")
                return Ticket(run_id=answer.run_id or "", session_id=answer.session_id, agent_id=run.agent_id, found=True)
            case Verdict.FULL:
                raise QueueFullError("Too many runs of this session or user wait already; try again when some have ended.")
            case Verdict.DELETED:
                raise RunDeletedError
            case Verdict.OTHER_USER:
                raise SessionNotFoundError(run.session_id)
            case Verdict.OTHER_AGENT:
                raise SessionOfOtherAgentError(run.session_id, run.agent_id)
            case Verdict.BUSY:
                raise SessionBusyError(run_id=answer.run_id, session_id=run.session_id)

    # ---- read ------------------------------------------------------------------------------------------------------------
    async def get(self, agent_id: str, run_id: str, principal: Principal, *, session_id: str | None = None) -> RunDetail:
        """A run of this agent with its messages, at any time of its life."""
        try:
            detail = await self._database.read(read_detail, run_id)
        except RunNotFoundError:
            detail = None
        if detail is None or not _is_visible(detail.run, agent_id, session_id, principal):
            raise self._not_found(agent_id, run_id)
        return detail

    def _not_found(self, agent_id: str, run_id: str) -> NotFoundError:
        """What is missing: the agent or the run. Runs of an agent that is not served any more are found by its id."""
        return RunNotFoundError(run_id) if self._registry.find(agent_id) else AgentNotFoundError(agent_id)

    async def find_ticket(self, agent_id: str, run_id: str, principal: Principal) -> Ticket:
        """A run to watch. Raises AgentNotFoundError, RunNotFoundError."""
        run = await self._database.read(run_store.find, run_id)
        if run is None or not _is_visible(run, agent_id, None, principal):
            raise self._not_found(agent_id, run_id)
        return Ticket(run_id=run.id, session_id=run.session_id, agent_id=run.agent_id)

    async def list_of_agent(
        self,
        agent_id: str,
        principal: Principal,
        request: PageRequest,
        *,
        session_id: str | None,
        user_id: str | None,
        status: RunStatus | None,
        descending: bool,
    ) -> Page[RunDetail]:
        """One page of the runs of an agent. SessionNotFoundError for a session that is another user's."""
        self._registry.get(agent_id)
        return await self._database.read(
            list_details, request=request, agent_id=agent_id, session_id=session_id, user_id=principal.user_for(user_id),
            status=status, descending=descending,
        )  # fmt: skip

    # ---- cancel ----------------------------------------------------------------------------------------------------------
    async def cancel(self, agent_id: str, run_id: str, principal: Principal, wait_s: float) -> tuple[Run, bool]:
        """Stop a run wherever it is; the run as it is now, and whether it is still stopping. Idempotent. Runs of an agent that is not
        served any more can be stopped too."""
        while True:
            run = await self._database.read(run_store.find, run_id)
            if run is None or not _is_visible(run, agent_id, None, principal):
                raise self._not_found(agent_id, run_id)
            if run.is_final:
                return run, False
            if run.status is not RunStatus.RUNNING:
                if await self._idle.cancel(run):
                    self._idle.ended(run)
                continue
            if await self._database.write(run_store.request_cancel, run_id, now()):
                break
        if not self._executor.stop(run_id, StopReason.CANCELLED):
            self._live.tell_cancel(run_id)
        return await self._until_stopped(run, wait_s)

    async def _until_stopped(self, run: Run, wait_s: float) -> tuple[Run, bool]:
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._watch.settled(run.id)
            except TimeoutError:
                pass
        now_is = await self._database.read(run_store.find, run.id)
        if now_is is None:
            raise RunNotFoundError(run.id)
        return now_is, not now_is.is_final

    async def end_unanswered(self, run: Run) -> None:
        """End a run over the head of an owner that does not answer its cancel request. `run` is as it was read."""
        if await self._idle.cancel(run):
            self._executor.stop(run.id, StopReason.LOST)
            self._idle.ended(run)


_KINDS = (MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO, MediaKind.FILE)


def _check(agent: BaseAgent, request: RunRequest) -> None:
    """Refuse what the agent can't do, before anything is stored."""
    sent = (request.input.images, request.input.audio, request.input.videos, request.input.files)
    if request.attachments or any(sent):
        given = {a.kind for a in request.attachments} | {kind for kind, items in zip(_KINDS, sent, strict=True) if items}
        if unsupported := sorted(given - agent.media):
            raise UnsupportedMediaError(f"Agent {agent.id!r} takes no {', '.join(kind.value for kind in unsupported)}.")
    if request.input.output_schema is not None and Capability.OUTPUT_SCHEMA not in agent.capabilities:
        raise NotSupportedError(f"Agent {agent.id!r} has no capability OUTPUT_SCHEMA.")
    if request.busy_rule is OnBusy.ROLLBACK and Capability.ROLLBACK not in agent.capabilities:
        raise NotSupportedError(f"Agent {agent.id!r} has no capability ROLLBACK: its own conversation keeps every turn. Use interrupt.")


def _is_visible(run: Run, agent_id: str, session_id: str | None, principal: Principal) -> bool:
    return run.agent_id == agent_id and principal.may_see(run.user_id) and session_id in (None, run.session_id)
