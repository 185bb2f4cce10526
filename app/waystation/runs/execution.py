"""One execution of a run by this process: its turn, and how the turn is stopped.

A turn is stopped in steps, each a grace time apart: the adapter's interrupt; cancelling the task of the turn; cancelling it again; giving
it up. A turn that was given up may go on as long as it likes: what it emits is refused, and its run ends without it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from waystation.agents.base import BaseAgent
from waystation.agents.turn import CancelToken, StopReason, Turn, TurnResult
from waystation.clock import now
from waystation.domain.run import Run, RunFailure
from waystation.errors import RunCancelledError, RunLostError
from waystation.live.hub import Hub
from waystation.logs import get_logger
from waystation.runs import outcome
from waystation.runs.outcome import Leg
from waystation.runs.recorder import Recorder
from waystation.store.ledger import Ledger

log = get_logger(__name__)

CANCELS = 2
"""How often the task of a turn is cancelled before the turn is given up."""


class Execution:
    """`on_given_up` is awaited when the turn did not end: it must end the run."""

    def __init__(
        self,
        run: Run,
        agent: BaseAgent,
        ledger: Ledger,
        hub: Hub,
        *,
        grace_s: float,
        on_given_up: Callable[["Execution"], Awaitable[None]],
    ) -> None:
        self.run = run
        self.agent = agent
        self.turn: Turn | None = None
        self.channel = hub.attach(run.id)
        self.channel.begin_leg(self)
        self.cancel = CancelToken(self._begin_stop)
        self.recorder = Recorder(run, agent.name, ledger, self.channel, self.cancel)
        self.task: asyncio.Task[None] | None = None
        self.is_given_up = False
        self.is_released = False
        self._grace_s = grace_s
        self._on_given_up = on_given_up
        self._began = time.monotonic()
        self._stopper: asyncio.Task[None] | None = None
        self._in_turn = False
        self._cancels_issued = 0

    def leg(self) -> Leg:
        """What is known of the leg now."""
        return Leg(
            run=self.run,
            agent=self.agent,
            fold=self.recorder.fold,
            at=now(),
            duration_s=time.monotonic() - self._began,
            next_index=self.recorder.next_index,
            first_content_s=self.recorder.first_content_s(self._began),
            turn=self.turn,
        )

    async def run_turn(self, turn: Turn) -> tuple[TurnResult | None, RunFailure | None]:
        """The turn, under its deadline. (None, None) if it was stopped; RunLostError if it was given up or the run is lost."""
        self.turn = turn
        loop = asyncio.get_running_loop()
        deadline = self.run.deadline_at
        timer = loop.call_later(max(deadline - now(), 0.0), self.cancel.request, StopReason.TIMEOUT) if deadline else None
        self._in_turn = True
        try:
            if self.cancel.requested:
                self.cancel.check()
            return await self.agent.run_turn(turn, self.recorder), None
        except RunCancelledError:
            return None, None
        except RunLostError:
            raise
        except asyncio.CancelledError:
            return None, self._consume_cancellation()
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # some libraries raise what is no Exception
            failure = outcome.failure_of(error)
            if failure.type == "internal_error" and not self.cancel.requested:
                log.exception("agent failed", run_id=self.run.id, agent_id=self.agent.id)
            return None, failure
        finally:
            self._in_turn = False
            self._take_back_cancels()
            if timer:
                timer.cancel()

    def _consume_cancellation(self) -> RunFailure | None:
        """Swallow a cancellation that the stopper has issued, and no other. One that nobody asked of this task is the agent's own:
        something that it awaited was cancelled."""
        if self.task is None or self.task.cancelling() == 0:
            return outcome.failure_of(RuntimeError())
        self._take_back_cancels()
        if self.task.cancelling():
            raise asyncio.CancelledError
        return None

    def _take_back_cancels(self) -> None:
        """Also those that the agent has swallowed itself: the task goes on, to end the run."""
        while self._cancels_issued and self.task is not None and self.task.cancelling():
            self._cancels_issued -= 1
            self.task.uncancel()

    # ---- stopping ----------------------------------------------------------------------------------------------------------
    def _begin_stop(self) -> None:
        if self._in_turn and self._stopper is None:
            self._stopper = asyncio.create_task(self._stop(), name=f"stop {self.run.id}")

    async def _stop(self) -> None:
        if self.cancel.reason is not StopReason.LOST:
            await self._interrupt()
        for _ in range(CANCELS):
            if not self._in_turn or self.task is None:
                return
            self._cancels_issued += 1
            self.task.cancel()
            await self._until_turn_ended()
        if self._in_turn:
            log.error("turn does not end; its run ends without it", run_id=self.run.id, agent_id=self.agent.id)
            self.is_given_up = True
            self.recorder.close()
            await self._on_given_up(self)

    async def _interrupt(self) -> None:
        try:
            async with asyncio.timeout(self._grace_s):
                await self.cancel.interrupt()
                while self._in_turn and self.cancel.reason is not StopReason.LOST:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass
        except Exception:
            log.exception("interrupt failed", run_id=self.run.id)

    async def _until_turn_ended(self) -> None:
        end = time.monotonic() + self._grace_s
        while self._in_turn and time.monotonic() < end:
            await asyncio.sleep(0.01)
