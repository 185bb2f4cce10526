"""The executor: runs the turn of an agent and commits how it ended.

1. A run is executed in a task of the container. No request owns it; a client that goes away is a viewer less.
2. Stopping (cancel, deadline, drain, a lost lease or epoch): the adapter's interrupt, a grace time, then the task of the turn is
   cancelled, and exactly that cancellation is consumed. How the leg ends is decided by the reason, not by what the agent returns.
3. A leg ends in one commit (see `outcome`), or not at all: RunLostError means that somebody else owns the run.
"""

import asyncio
import time
from collections.abc import Callable

from waystation.agents.base import BaseAgent
from waystation.agents.registry import AgentRegistry
from waystation.agents.turn import CancelToken, StopReason, Turn, TurnResult
from waystation.clock import now
from waystation.config import Settings
from waystation.db.engine import Database
from waystation.domain.event import RunStarted
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunDetail, RunFailure
from waystation.errors import RunCancelledError, RunLostError, StoreUnavailableError
from waystation.live.hub import Hub
from waystation.logs import get_logger
from waystation.runs import outcome
from waystation.runs.outcome import Leg, LegEnd
from waystation.runs.preparation import Preparation
from waystation.runs.recorder import Recorder
from waystation.store import runs as run_store
from waystation.store.ledger import Ledger
from waystation.store.operations import Accepted, EventLines

log = get_logger(__name__)


class Execution:
    """One execution of a run by this process."""

    def __init__(self, run: Run, agent: BaseAgent, ledger: Ledger, hub: Hub) -> None:
        self.run = run
        self.agent = agent
        self.channel = hub.attach(run.id)
        self.channel.is_local = True
        self.cancel = CancelToken(self._on_stop)
        self.recorder = Recorder(run, agent.name, ledger, self.channel, self.cancel)
        self.task: asyncio.Task[None] | None = None
        self.began = time.monotonic()
        self.stopper: asyncio.Task[None] | None = None
        self.stop_turn: Callable[[], None] | None = None
        self.in_turn = False
        self.turn_cancelled = False

    def _on_stop(self) -> None:
        if self.stop_turn is not None:
            self.stop_turn()


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
        on_end: Callable[[Run, bool], None],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._hub = hub
        self._registry = registry
        self._settings = settings
        self._preparation = Preparation(database, settings.max_takeovers)
        self._on_end = on_end
        self._executions: dict[str, Execution] = {}

    # ---- starting --------------------------------------------------------------------------------------------------------
    def begin(self, run: Run, agent: BaseAgent) -> tuple[Execution, EventLines]:
        """Make ready to execute a run that is about to be accepted. What it returns commits with the acceptance; then comes
        `start`, or `abandon` if the run was refused."""
        execution = Execution(run, agent, self._ledger, self._hub)
        started = RunStarted(model=agent.model, model_provider=agent.model_provider)
        return execution, execution.recorder.accept_lines(started)

    def abandon(self, execution: Execution) -> None:
        self._hub.detach(execution.channel)

    def start(self, execution: Execution, accepted: Accepted) -> None:
        """Execute a run that was accepted in this process."""
        run = execution.run
        run.user_id = accepted.user_id
        run.status = RunStatus.RUNNING
        run.epoch = run.next_index = 1
        run.holds_session = True
        run.started_at = run.created_at
        run.deadline_at = run.created_at + run.timeout_s
        execution.recorder.accepted()
        self._launch(execution, accepted)

    def start_claimed(self, run: Run) -> None:
        """Execute a run that was claimed."""
        agent = self._registry.get(run.agent_id)
        self._launch(Execution(run, agent, self._ledger, self._hub), None)

    def _launch(self, execution: Execution, accepted: Accepted | None) -> None:
        self._executions[execution.run.id] = execution
        execution.task = asyncio.create_task(self._execute(execution, accepted), name=f"run {execution.run.id}")

    # ---- from outside ----------------------------------------------------------------------------------------------------
    @property
    def running(self) -> dict[str, int]:
        """Epochs of the runs that are being executed, by id."""
        return {run_id: execution.run.epoch for run_id, execution in self._executions.items()}

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

    async def drain(self, grace_s: float) -> None:
        """Let the runs go on for the grace time, then stop what is left and hand it back."""
        tasks = [e.task for e in self._executions.values() if e.task]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for execution in list(self._executions.values()):
            execution.cancel.request(StopReason.DRAINING)
        if left := [e.task for e in self._executions.values() if e.task]:
            await asyncio.wait(left, timeout=self._settings.cancel_grace_s + 2.0)

    # ---- one execution ---------------------------------------------------------------------------------------------------
    async def _execute(self, execution: Execution, accepted: Accepted | None) -> None:
        run = execution.run
        try:
            await self._run_leg(execution, accepted)
        except RunLostError:
            log.warning("run lost to another process", run_id=run.id, epoch=run.epoch)
        except Exception:
            log.exception("execution failed", run_id=run.id)
        finally:
            if execution.stopper:
                execution.stopper.cancel()
            self._executions.pop(run.id, None)
            execution.channel.is_local = False
            self._hub.detach(execution.channel)
            self._on_end(execution.run, execution.recorder.has_waiting_turn)

    async def _run_leg(self, execution: Execution, accepted: Accepted | None) -> None:
        run, recorder = execution.run, execution.recorder
        going = await self._preparation.of(execution.run, execution.agent, recorder, execution.cancel, accepted)
        execution.run = run = going.run
        if run.cancel_requested:
            execution.cancel.request(StopReason.CANCELLED)
        elif going.failure is not None:
            await self._end(execution, outcome.failed(self._leg(execution, None), going.failure))
            return
        for event in going.events:
            recorder(event)
        result, failure = await self._turn(execution, going.turn)
        leg = self._leg(execution, going.turn)
        reason = execution.cancel.reason
        if reason is StopReason.LOST:
            raise RunLostError
        if reason is StopReason.DRAINING:
            await self._hand_back(execution)
        elif reason is not None:
            stopped = outcome.STOPS.get(reason)
            await self._end(execution, outcome.failed(leg, stopped) if stopped else outcome.cancelled(leg))
        elif failure is not None:
            await self._fail(execution, leg, failure)
        elif result is not None:
            await self._end(execution, outcome.paused(leg, result) if result.requirements else outcome.completed(leg, result))

    async def _turn(self, execution: Execution, turn: Turn) -> tuple[TurnResult | None, RunFailure | None]:
        """The turn itself, under its deadline. Returns (None, None) if it was stopped."""
        loop = asyncio.get_running_loop()
        deadline = execution.run.deadline_at
        left = max((deadline or now()) - now(), 0.0)
        timer = loop.call_later(left, execution.cancel.request, StopReason.TIMEOUT) if deadline else None
        execution.stop_turn = lambda: self._begin_stop(execution)
        execution.in_turn = True
        try:
            if execution.cancel.requested:
                execution.cancel.check()
            return await execution.agent.run_turn(turn, execution.recorder), None
        except RunCancelledError:
            return None, None
        except asyncio.CancelledError:
            self._consume_cancellation(execution)
            return None, None
        except RunLostError:
            raise
        except Exception as error:
            failure = outcome.failure_of(error)
            if failure.type == "internal_error" and not execution.cancel.requested:
                log.exception("agent failed", run_id=execution.run.id, agent_id=execution.agent.id)
            return None, failure
        finally:
            execution.in_turn = False
            execution.stop_turn = None
            if timer:
                timer.cancel()

    def _begin_stop(self, execution: Execution) -> None:
        if execution.in_turn and execution.stopper is None:
            execution.stopper = asyncio.create_task(self._stop_turn(execution), name=f"stop {execution.run.id}")

    async def _stop_turn(self, execution: Execution) -> None:
        lost = execution.cancel.reason is StopReason.LOST
        try:
            async with asyncio.timeout(self._settings.cancel_grace_s):
                await execution.cancel.interrupt()
                while execution.in_turn and not lost:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass
        except Exception:
            log.exception("interrupt failed", run_id=execution.run.id)
        if execution.in_turn and execution.task:
            execution.turn_cancelled = True
            execution.task.cancel()

    def _consume_cancellation(self, execution: Execution) -> None:
        """Take back the one cancellation that `_stop_turn` has issued; any other goes on."""
        if not execution.turn_cancelled or execution.task is None or execution.task.uncancel() > 0:
            raise asyncio.CancelledError
        execution.turn_cancelled = False

    # ---- ends ------------------------------------------------------------------------------------------------------------
    def _leg(self, execution: Execution, turn: Turn | None) -> Leg:
        return Leg(
            run=execution.run,
            agent=execution.agent,
            fold=execution.recorder.fold,
            at=now(),
            duration_s=time.monotonic() - execution.began,
            next_index=execution.recorder.next_index,
            first_content_s=execution.recorder.first_content_s(execution.began),
            turn=turn,
        )

    async def _fail(self, execution: Execution, leg: Leg, failure: RunFailure) -> None:
        run = leg.run
        if not failure.retryable or run.attempt >= run.max_attempts:
            await self._end(execution, outcome.failed(leg, failure))
            return
        warning, end = outcome.retried(leg, failure)
        execution.recorder(warning)
        await execution.recorder.finish(None, end.finish)
        execution.run = end.run
        log.warning("attempt failed", run_id=run.id, attempt=run.attempt, attempts=run.max_attempts, error_type=failure.type)

    async def _end(self, execution: Execution, end: LegEnd) -> None:
        recorder = execution.recorder
        status = end.run.status
        if status is not RunStatus.PAUSED:
            content = end.run.output.content if end.run.output and status is RunStatus.COMPLETED else recorder.fold.text
            recorder.message(*outcome.last_messages(self._leg(execution, None), status, content))
        execution.run = end.run
        await recorder.finish(end.event, end.finish, RunDetail(run=end.run, messages=recorder.fold.messages))
        log.info("leg ended", run_id=end.run.id, status=end.run.status.value)

    async def _hand_back(self, execution: Execution) -> None:
        run = execution.run
        try:
            await execution.recorder.flush()
            await self._database.write(run_store.hand_back, run.id, run.epoch, now())
            log.info("run handed back", run_id=run.id)
        except StoreUnavailableError:
            log.error("run could not be handed back; recovery will find it", run_id=run.id)
