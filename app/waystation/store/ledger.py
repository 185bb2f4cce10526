"""The ledger: the writes of all runs of a process, gathered and committed together.

1. One task takes everything that is pending and writes it as one transaction. The next batch gathers meanwhile; nothing lingers.
2. One accept per session and batch: the next of the same session sees this one's result.
3. Waiters are answered and events handed on only after the commit.
4. After any other error the batch is done by halves, so that a poisoned value fails alone. What may well succeed the second time
   (deadlock, lost connection) is repeated once first.
5. While the store is out of reach, accepts are refused and steps are kept and tried again: an outage kills no run.
"""

import asyncio
import time
from typing import Any, Protocol

from waystation.clock import now
from waystation.db.engine import Database
from waystation.errors import StoreConflictError, StoreUnavailableError
from waystation.logs import get_logger
from waystation.store.batch import write
from waystation.store.operations import Accept, Accepted, Operation, Step, Stepped

log = get_logger(__name__)

Outcome = Accepted | Stepped | Exception

RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
QUICK_S = 1.0


class Source(Protocol):
    """A run's log: gives what it has gathered when a batch is made, hears what became of it."""

    def take(self) -> Step | None: ...
    def settle(self, outcome: Stepped | Exception) -> None: ...


class Ledger:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: list[tuple[Accept, asyncio.Future[Accepted]]] = []
        self._sources: dict[Source, None] = {}
        self._kept: list[tuple[Step, Source]] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._outage_since: float | None = None
        self._batch_began: float | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="ledger")

    async def close(self) -> None:
        """Commit what is pending, once, and stop."""
        self._closing = True
        self._wake.set()
        if self._task:
            await asyncio.wait([self._task])

    @property
    def lag_s(self) -> float:
        """How long the batch in hand, or the outage, has lasted: 0.0 when idle."""
        began = self._outage_since or self._batch_began
        return now() - began if began else 0.0

    @property
    def is_down(self) -> bool:
        return self._outage_since is not None

    @property
    def failure(self) -> BaseException | None:
        """Why the ledger has stopped working, if it has."""
        return self._task.exception() if self._task and self._task.done() and not self._task.cancelled() else None

    def accept(self, accept: Accept) -> "asyncio.Future[Accepted]":
        """Raises StoreUnavailableError through the future when the store is out of reach."""
        answer: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        if self.failure is not None or (self.is_down and (self._kept or self._batch_began is not None)):
            # Known to be out of reach: the batch in hand, or the steps that are kept, will tell when it is back.
            answer.set_exception(StoreUnavailableError())
            return answer
        self._queue.append((accept, answer))
        self._wake.set()
        return answer

    def gather(self, source: Source) -> None:
        """Have the source asked for its step when the next batch is made."""
        if source not in self._sources:
            self._sources[source] = None
            self._wake.set()

    async def _run(self) -> None:
        delay = RETRY_FIRST_S
        while True:
            if not (self._queue or self._sources or self._kept):
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()  # takes a turn of the loop: whatever could run in it has joined the batch
            else:
                await asyncio.sleep(0)  # the same
            accepts, steps = self._take()
            self._batch_began = now()
            outcomes = await self._commit([*(operation for operation, _ in accepts), *(step for step, _ in steps)])
            self._batch_began = None
            self._settle(accepts, steps, outcomes)
            if not self._kept:
                delay = RETRY_FIRST_S
            elif self._closing:
                return
            else:
                await asyncio.sleep(delay)  # nothing shortens it: a run that streams would try a thousand times a second
                delay = min(delay * 2, RETRY_MOST_S)

    def _take(self) -> tuple[list[tuple[Accept, "asyncio.Future[Accepted]"]], list[tuple[Step, Source]]]:
        accepts: list[tuple[Accept, asyncio.Future[Accepted]]] = []
        later: list[tuple[Accept, asyncio.Future[Accepted]]] = []
        seen: set[str] = set()
        for entry in self._queue:
            session_id = entry[0].run.session_id
            (later if session_id in seen else accepts).append(entry)
            seen.add(session_id)
        steps, self._kept = self._kept, []
        behind = {source for _, source in steps}  # the kept step of a source comes before its next one
        steps += [(step, source) for source in self._sources if source not in behind and (step := _taken(source))]
        self._queue, self._sources = later, {source: None for source in self._sources if source in behind}
        return accepts, steps

    def _settle(
        self,
        accepts: list[tuple[Accept, "asyncio.Future[Accepted]"]],
        steps: list[tuple[Step, Source]],
        outcomes: list[Outcome],
    ) -> None:
        for (_, answer), outcome in zip(accepts, outcomes, strict=False):
            _resolve(answer, outcome)
        for (step, source), outcome in zip(steps, outcomes[len(accepts) :], strict=True):
            if isinstance(outcome, StoreUnavailableError):
                self._kept.append((step, source))
            elif not isinstance(outcome, Accepted):
                source.settle(outcome)
        down = any(isinstance(outcome, StoreUnavailableError) and not isinstance(outcome, StoreConflictError) for outcome in outcomes)
        self._note_outage(down, bool(outcomes))

    def _note_outage(self, down: bool, tried: bool) -> None:
        if down and self._outage_since is None:
            self._outage_since = now()
            log.error("store out of reach; running turns go on, their events are kept", steps=len(self._kept))
            refused, self._queue = self._queue, []
            for _, answer in refused:
                _resolve(answer, StoreUnavailableError())
        elif tried and not down and self._outage_since is not None:
            log.info("store reached again", after_s=round(now() - self._outage_since, 1))
            self._outage_since = None

    async def _commit(self, batch: list[Operation], *, repeat: bool = True) -> list[Outcome]:
        if not batch:
            return []
        began = time.monotonic()
        try:
            return list(await self._database.hot(write, batch))
        except StoreConflictError as error:
            # Somebody holds a lock that one of these needs: the others must not wait for it.
            if repeat:
                return await self._commit(batch, repeat=False)
            return [error] if len(batch) == 1 else await self._by_halves(batch)
        except StoreUnavailableError as error:
            # A connection that was lost tells so at once, and the next one may do; who has waited long would wait long again.
            if repeat and time.monotonic() - began < QUICK_S:
                return await self._commit(batch, repeat=False)
            return [error] * len(batch)
        except Exception as error:  # noqa: BLE001  # drivers also raise OverflowError, UnicodeEncodeError
            if len(batch) == 1:
                log.error("operation refused by the database", error=type(error.__cause__ or error).__name__)
                return [error]
            return await self._by_halves(batch)

    async def _by_halves(self, batch: list[Operation]) -> list[Outcome]:
        half = len(batch) // 2
        return [*await self._commit(batch[:half]), *await self._commit(batch[half:])]


def _taken(source: Source) -> Step | None:
    """What a source has gathered. One that fails is told so and harms no other."""
    try:
        return source.take()
    except Exception as error:
        log.exception("a run's log could not be taken")
        source.settle(error)
        return None


def _resolve(answer: "asyncio.Future[Any]", outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
