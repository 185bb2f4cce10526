"""The executor: runs the turns of agents and commits how they ended.

1. A run is executed in a task of the container. No request owns it; a client that goes away is a viewer less.
2. How a leg ends is decided by why it was stopped, if it was, and else by what the agent returned or raised.
3. A leg ends in one commit (see `outcome`), or not at all: RunLostError means that somebody else owns the run, and that nothing
   which this execution still has to say is kept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from waystation.agents.base import BaseAgent
from waystation.agents.registry import AgentRegistry
from waystation.agents.turn import StopReason, TurnResult
from waystation.clock import now
from waystation.config import Settings
from waystation.db.engine import Database
from waystation.domain.event import RunStarted
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunDetail, RunFailure
from waystation.errors import RunLostError, StoreUnavailableError
from waystation.live.hub import Hub
from waystation.logs import get_logger
from waystation.runs import outcome
from waystation.runs.execution import Execution
from waystation.runs.fold import Fold
from waystation.runs.idle import IdleEnds
from waystation.runs.outcome import LegEnd
from waystation.runs.preparation import Preparation
from waystation.store import runs as run_store
from waystation.store.ledger import Ledger
from waystation.store.operations import Accepted, EventLines

log = get_logger(__name__)

FAILED = RunFailure(type="internal_error", message="The run could not be executed; the server's log has the details.")


class Executor:
    """`on_end` is told after each execution: the run, and whether a turn of its session waits."""

    def __init__(
        self,
        *,
        database: Database,
        ledger: Ledger,
        hub: Hub,
        registry: AgentRegistry,
        settings: Settings,
        idle: IdleEnds,
        on_end: Callable[[Run, bool], None],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._hub = hub
        self._registry = registry
        self._settings = settings
        self._preparation = Preparation(database, settings.max_takeovers)
        self._idle = idle
        self._on_end = on_end
        self._executions: dict[str, Execution] = {}
        self._begun: set[Execution] = set()
        self._given_up: set[asyncio.Task[None]] = set()
        self._stops_all_for: StopReason | None = None

    # ---- starting --------------------------------------------------------------------------------------------------------
    def begin(self, run: Run, agent: BaseAgent) -> tuple[Execution, EventLines]:
        """Make ready to execute a run that is about to be accepted. What it returns commits with the acceptance; then comes
        `start`, or `abandon` if the run was refused."""
        execution = self._new(run, agent)
        self._begun.add(execution)
        started = RunStarted(model=agent.model, model_provider=agent.model_provider)
        return execution, execution.recorder.accept_lines(started)

    def abandon(self, execution: Execution) -> None:
        self._begun.discard(execution)
        execution.is_released = True
        execution.channel.end_leg(execution)
        self._hub.detach(execution.channel)

    def start(self, execution: Execution, accepted: Accepted) -> None:
        """Execute a run that was accepted in this process."""
        self._begun.discard(execution)
        run = execution.run
        run.user_id = accepted.user_id
        run.status = RunStatus.RUNNING
        run.epoch = run.next_index = 1
        run.holds_session = True
        run.started_at = now()
        run.deadline_at = run.started_at + run.timeout_s
        execution.recorder.accepted()
        self._launch(execution, accepted)

    def start_claimed(self, run: Run) -> None:
        """Execute a run that was claimed."""
        self._launch(self._new(run, self._registry.get(run.agent_id)), None)

    def _new(self, run: Run, agent: BaseAgent) -> Execution:
        grace_s = self._settings.cancel_grace_s
        return Execution(run, agent, self._ledger, self._hub, grace_s=grace_s, on_given_up=self._end_given_up)

    def _launch(self, execution: Execution, accepted: Accepted | None) -> None:
        if earlier := self._executions.get(execution.run.id):
            # This process lost the run and has it again: the earlier execution must leave no trace.
            earlier.cancel.request(StopReason.LOST)
        self._executions[execution.run.id] = execution
        execution.task = asyncio.create_task(self._execute(execution, accepted), name=f"run {execution.run.id}")
        if self._stops_all_for is not None:
            execution.cancel.request(self._stops_all_for)

    # ---- from outside ----------------------------------------------------------------------------------------------------
    @property
    def running(self) -> dict[str, int]:
        """Epochs of the runs that are being executed, by id."""
        return {run_id: execution.run.epoch for run_id, execution in self._executions.items()}

    def held_by_users(self) -> Counter[str]:
        """How many runs each user has here, executed or about to be. Runs of nobody are left out."""
        here = (*self._executions.values(), *self._begun)
        return Counter(execution.run.user_id for execution in here if execution.run.user_id is not None)

    def stop(self, run_id: str, reason: StopReason) -> bool:
        """Ask a run to stop. False: it is not executed here."""
        execution = self._executions.get(run_id)
        if execution is None:
            return False
        execution.cancel.request(reason)
        return True

    def cancel(self, run_ids: list[str]) -> None:
        """Stop those of these runs that are executed here; their cancel was requested."""
        for run_id in run_ids:
            self.stop(run_id, StopReason.CANCELLED)

    def drop_all(self) -> None:
        """This process lost its runs: stop them all without a trace."""
        for execution in list(self._executions.values()):
            execution.cancel.request(StopReason.LOST)

    def hand_back_all(self) -> None:
        """Stop all runs, now and to come, and give them back to whoever claims them."""
        self._stops_all_for = StopReason.DRAINING
        for execution in list(self._executions.values()):
            execution.cancel.request(StopReason.DRAINING)

    # ---- one execution ---------------------------------------------------------------------------------------------------
    async def _execute(self, execution: Execution, accepted: Accepted | None) -> None:
        run = execution.run
        try:
            await self._run_leg(execution, accepted)
        except RunLostError:
            log.warning("execution without a run has ended", run_id=run.id, epoch=run.epoch, given_up=execution.is_given_up)
        except Exception:
            log.exception("execution failed", run_id=run.id)
            await self._end_failed(execution)
        finally:
            self._release(execution)

    def _release(self, execution: Execution) -> None:
        """The run is not executed here any more. Once."""
        if execution.is_released:
            return
        execution.is_released = True
        run_id = execution.run.id
        if self._executions.get(run_id) is execution:
            del self._executions[run_id]
        execution.channel.end_leg(execution)
        self._hub.detach(execution.channel)
        self._on_end(execution.run, execution.recorder.has_waiting_turn)

    async def _run_leg(self, execution: Execution, accepted: Accepted | None) -> None:
        recorder = execution.recorder
        going = await self._preparation.of(execution.run, execution.agent, recorder, execution.cancel, accepted)
        execution.run = run = going.run
        if run.cancel_requested:
            execution.cancel.request(StopReason.CANCELLED)
        elif going.failure is not None:
            await self._end(execution, outcome.failed(execution.leg(), going.failure))
            return
        for event in going.events:
            recorder(event)
        result, failure = await execution.run_turn(going.turn)
        if execution.is_given_up:
            raise RunLostError
        await self._end_leg(execution, result, failure)

    async def _end_leg(self, execution: Execution, result: TurnResult | None, failure: RunFailure | None) -> None:
        leg, reason = execution.leg(), execution.cancel.reason
        if reason is StopReason.LOST:
            raise RunLostError
        if reason is StopReason.DRAINING:
            await self._hand_back(execution)
        elif reason is not None:
            stopped = outcome.STOPS.get(reason)
            await self._end(execution, outcome.failed(leg, stopped) if stopped else outcome.cancelled(leg))
        elif failure is not None:
            await self._fail(execution, failure)
        elif result is not None:
            await self._end(execution, outcome.paused(leg, result) if result.requirements else outcome.completed(leg, result))

    # ---- ends ------------------------------------------------------------------------------------------------------------
    async def _fail(self, execution: Execution, failure: RunFailure) -> None:
        leg = execution.leg()
        run = leg.run
        if not failure.retryable or run.attempt >= run.max_attempts:
            await self._end(execution, outcome.failed(leg, failure))
            return
        warning, end = outcome.retried(leg, failure)
        execution.recorder.record(warning)
        await execution.recorder.finish(None, end.finish)
        execution.run = end.run
        log.warning("attempt failed", run_id=run.id, attempt=run.attempt, attempts=run.max_attempts, error_type=failure.type)
        await self._cancel_if_asked(execution)

    async def _end(self, execution: Execution, end: LegEnd) -> None:
        recorder, status = execution.recorder, end.run.status
        if status is not RunStatus.PAUSED:
            content = end.run.output.content if end.run.output and status is RunStatus.COMPLETED else recorder.fold.text
            recorder.record_messages(outcome.last_messages(execution.leg(), status, content))
        execution.run = end.run
        await recorder.finish(end.event, end.finish, RunDetail(run=end.run, messages=recorder.fold.messages))
        log.info("leg ended", run_id=end.run.id, status=status.value)
        await self._cancel_if_asked(execution)

    async def _cancel_if_asked(self, execution: Execution) -> None:
        """A cancel request that came while the leg was ending in a pause or a wait: there is no turn any more that could heed it."""
        waits = execution.run.status in (RunStatus.PAUSED, RunStatus.PENDING)
        if waits and execution.cancel.reason is StopReason.CANCELLED:
            await self._idle.cancel_if_idle(execution.run.id)

    async def _end_given_up(self, execution: Execution) -> None:
        """End a run whose turn does not end."""
        if execution.task is not None:
            self._given_up.add(execution.task)
            execution.task.add_done_callback(self._given_up.discard)
        try:
            await self._end_leg(execution, None, None)
        except RunLostError:
            pass
        except Exception:
            log.exception("run could not be ended", run_id=execution.run.id)
        finally:
            self._release(execution)

    async def _end_failed(self, execution: Execution) -> None:
        """The last resort: end the run with nothing but the words that it failed. What this can't end, recovery will find."""
        leg = execution.leg()
        bare = outcome.Leg(
            run=leg.run, agent=leg.agent, fold=Fold(leg.run.metrics), at=now(), duration_s=leg.duration_s, next_index=leg.next_index
        )
        try:
            end = outcome.failed(bare, FAILED)
            execution.run = end.run
            await execution.recorder.finish(end.event, end.finish, RunDetail(run=end.run, messages=[]))
        except RunLostError:
            pass
        except Exception:
            log.exception("run could not be ended", run_id=execution.run.id)

    async def _hand_back(self, execution: Execution) -> None:
        run = execution.run
        try:
            await execution.recorder.flush()
            await self._database.write(run_store.hand_back, run.id, run.epoch, now())
            log.info("run handed back", run_id=run.id)
        except StoreUnavailableError:
            log.error("run could not be handed back; recovery will find it", run_id=run.id)
