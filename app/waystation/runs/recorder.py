"""The recorder: numbers the events of a run, hands them to the ledger, and folds them into the run's output.

It is the Emitter of a turn and the Source of the ledger at once. What it has handed over stays "in flight" until the ledger says
what became of it; only then it is published to viewers. A step that the store refuses is taken back, so that the run can still be
ended with an error at the index where its log really stops.
"""

import asyncio
import time
from collections.abc import Sequence

from waystation.agents.turn import CancelToken, StopReason
from waystation.clock import now
from waystation.domain.event import Envelope, Event, RunContent, Segment
from waystation.domain.message import Message
from waystation.domain.metrics import ModelUsage
from waystation.domain.run import Run, RunDetail
from waystation.errors import RunLostError
from waystation.live.hub import Channel
from waystation.logs import get_logger
from waystation.runs.fold import Fold
from waystation.store.ledger import Ledger
from waystation.store.operations import EventLines, Finish, MessageLines, Step, Stepped

log = get_logger(__name__)

YIELD_EVERY = 32
MOST_PENDING_EVENTS = 512
MOST_PENDING_BYTES = 64 * 1024 * 1024


class Recorder:
    """The log of one execution of a run. Only used in the event loop."""

    def __init__(self, run: Run, agent_name: str, ledger: Ledger, channel: Channel, cancel: CancelToken) -> None:
        self._run = run
        self._ledger = ledger
        self._channel = channel
        self._cancel = cancel
        self._envelope = Envelope(run_id=run.id, session_id=run.session_id, agent_id=run.agent_id, agent_name=agent_name)
        self.fold = Fold(run.metrics)
        self._next = run.next_index
        self._lines: list[bytes] = []
        self._bytes = 0
        self._messages: list[str] = []
        self._message_count = 0
        self._in_flight: list[Step] = []
        self._finish: Finish | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self._closed = False
        self._detail: RunDetail | None = None
        self._first = b""
        self._first_content: float | None = None
        self.has_waiting_turn = False
        """Whether the last commit saw a run of the session that waits for its turn."""

    # ---- what was there before -------------------------------------------------------------------------------------------
    def restore(self, segments: list[Segment], messages: list[Message]) -> None:
        """Take in what earlier attempts, legs or owners of the run have stored."""
        for segment in segments:
            for _, _, line in segment.each():
                self.fold.restore(line)
        self._message_count = len(messages)
        self.fold.messages = list(messages)

    @property
    def next_index(self) -> int:
        return self._next

    # ---- the emitter of the turn -----------------------------------------------------------------------------------------
    def __call__(self, event: Event) -> int:
        if self._closed:
            raise RunLostError
        return self.record(event)

    def record(self, event: Event) -> int:
        """The same for the executor."""
        index = self._next
        line = self._envelope.line(event, index, now())
        self._next = index + 1
        self._lines.append(line)
        self._bytes += len(line)
        self.fold.add(event, index)
        if self._first_content is None and isinstance(event, RunContent):
            self._first_content = time.monotonic()
        self._ledger.gather(self)
        if self._bytes > MOST_PENDING_BYTES:
            self._cancel.request(StopReason.STORE)
        return index

    def message(self, *messages: Message) -> None:
        if self._closed:
            raise RunLostError
        self.record_messages(messages)

    def record_messages(self, messages: Sequence[Message]) -> None:
        """The same for the executor."""
        # Encoded here, so that a message that can't be is the error of the one who gave it.
        self._messages.extend([message.encode() for message in messages])
        self.fold.messages.extend(messages)

    def usage(self, usage: ModelUsage) -> None:
        self.fold.metrics = self.fold.metrics.with_usage(usage)

    def external_session(self, session_id: str) -> None:
        self.fold.external_session_id = session_id

    async def room(self) -> None:
        if len(self._lines) >= MOST_PENDING_EVENTS:
            await self._settled()
        elif self._next % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        if self._cancel.requested:
            self._cancel.check()

    async def stored(self) -> None:
        await self.flush()
        self._cancel.check()

    # ---- the end of a leg ------------------------------------------------------------------------------------------------
    def accept_lines(self, event: Event) -> EventLines:
        """The first event of a run that starts with its acceptance: it commits with it, so the ledger does not ask for it."""
        line = self._envelope.line(event, 0, now())
        self.fold.add(event, 0)
        self._next = 1
        self._first = line
        return EventLines(1, line)

    def accepted(self) -> None:
        """The acceptance is committed, with the first event."""
        self._channel.committed(Segment(0, 0, self._first, False))

    def close(self) -> None:
        """The turn was given up: what it still emits is refused."""
        self._closed = True

    async def flush(self) -> None:
        """Until all that was recorded is committed, whether the run is to stop or not."""
        while self._lines or self._messages or self._in_flight:
            self._ledger.gather(self)
            await self._settled()

    def first_content_s(self, began: float) -> float | None:
        """Seconds from a point of the monotonic clock to the first content."""
        return None if self._first_content is None else self._first_content - began

    async def finish(self, event: Event | None, finish: Finish, detail: RunDetail | None = None) -> None:
        """Commit the end of the leg with its last event; `detail` is then given to those who wait for it in this process.
        RunLostError: somebody else owns the run, and nothing was stored."""
        self._failure = None
        self._detail = detail
        if event is not None:
            index = self._next
            self._lines.append(self._envelope.line(event, index, now()))
            self._next = index + 1
            self.fold.add(event, index)
        self._finish = finish
        self._ledger.gather(self)
        while self._has_unsettled():
            await self._settled()

    def _has_unsettled(self) -> bool:
        return self._finish is not None or bool(self._in_flight)

    async def _settled(self) -> None:
        """Until the ledger has told what became of the next step."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter
        if self._cancel.reason is StopReason.LOST:
            raise RunLostError
        if self._failure is not None:
            raise self._failure

    # ---- the source of the ledger ----------------------------------------------------------------------------------------
    def take(self) -> Step | None:
        if self._cancel.reason is StopReason.LOST:
            self._release()
            return None
        if not (self._lines or self._messages or self._finish):
            return None
        run = self._run
        count = len(self._lines)
        step = Step(
            run_id=run.id,
            session_id=run.session_id,
            agent_id=run.agent_id,
            user_id=run.user_id,
            epoch=run.epoch,
            first_index=self._next - count,
            events=EventLines(count, b"\n".join(self._lines)),
            messages=self._message_lines(),
            finish=self._finish,
        )
        self._lines, self._bytes, self._messages, self._finish = [], 0, [], None
        self._in_flight.append(step)
        return step

    def _message_lines(self) -> MessageLines | None:
        if not self._messages:
            return None
        first = self._message_count
        self._message_count += len(self._messages)
        return MessageLines(first, len(self._messages), "\n".join(self._messages))

    def settle(self, outcome: Stepped | Exception) -> None:
        # The execution goes on before its viewers: a run that has ended gives its slot back before its client can ask for another.
        self._release()
        if self._in_flight:
            self._take_in(self._in_flight.pop(), outcome)

    def _release(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _take_in(self, step: Step, outcome: Stepped | Exception) -> None:
        if isinstance(outcome, Exception):
            log.error("events refused by the store", run_id=self._run.id, first_index=step.first_index)
            self._failure = outcome
            self._lines, self._bytes, self._messages = [], 0, []
            self._next = step.first_index
            self._message_count -= step.messages.count if step.messages else 0
            self._cancel.request(StopReason.STORE)
        elif not outcome.owned:
            self._cancel.request(StopReason.LOST)
        else:
            self.has_waiting_turn = outcome.has_waiting_turn
            if step.events.count:
                self._publish(step)
            if outcome.cancel_requested:
                self._cancel.request(StopReason.CANCELLED)

    def _publish(self, step: Step) -> None:
        last_index = step.first_index + step.events.count - 1
        ends_leg = step.finish is not None and step.finish.status != "PENDING"
        if ends_leg:
            self._channel.detail = self._detail
        self._channel.committed(Segment(step.first_index, last_index, step.events.lines, ends_leg))
