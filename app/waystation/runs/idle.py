"""Ending runs that nobody executes: queued, paused and handed-back ones, and those whose owner does not answer."""

from collections.abc import Callable
from dataclasses import replace

from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.event import Envelope, RunCancelled, Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunOutput
from waystation.domain.session import MAX_SHOWN_NAME_CHARS
from waystation.live.hub import Hub
from waystation.logs import get_logger
from waystation.runs.fold import Fold
from waystation.runs.notice import deliveries_of
from waystation.runs.outcome import CANCEL_REASON
from waystation.store import events
from waystation.store import runs as run_store
from waystation.store.operations import EventLines
from waystation.store.rows import dumps

log = get_logger(__name__)


class IdleEnds:
    """`agent_name` gives the name of an agent by its id; `on_end` is told when a session may have become free."""

    def __init__(self, database: Database, hub: Hub, agent_name: Callable[[str], str], on_end: Callable[[], None]) -> None:
        self._database = database
        self._hub = hub
        self._agent_name = agent_name
        self._on_end = on_end

    async def cancel_if_idle(self, run_id: str) -> None:
        """End a run as CANCELLED if nobody executes it, and tell of it."""
        run = await self._database.read(run_store.find, run_id)
        if run is not None and not run.is_final and run.status is not RunStatus.RUNNING and await self.cancel(run):
            self.ended(run)

    async def cancel(self, run: Run) -> bool:
        """End a run as CANCELLED in one commit with its last event. `run` is as it was read; False: it has changed since."""
        segments = await self._database.read(events.read_all, run.id) if run.next_index else []
        fold = _folded(run, segments)
        envelope = Envelope(
            run_id=run.id, session_id=run.session_id, agent_id=run.agent_id, agent_name=self._agent_name(run.agent_id)
        )  # fmt: skip
        at, text = now(), fold.text or None
        line = envelope.line(RunCancelled(reason=CANCEL_REASON, content=text), run.next_index, at)
        output = RunOutput(content=text, tools=list(fold.tools.values()), cancellation_stage=_stage(run))
        values = {"output": output.model_dump_json(exclude_none=True, exclude_defaults=True)}
        if fold.warnings:
            values["metadata"] = dumps(run.metadata | {"warnings": fold.warnings})
        first_message = run.input.message[:MAX_SHOWN_NAME_CHARS]
        deliveries = deliveries_of(replace(run, status=RunStatus.CANCELLED, output=output, finished_at=at), at) if run.webhooks else ()
        return await self._database.write(
            run_store.end_idle, run, RunStatus.CANCELLED, EventLines(1, line), values, first_message, at, deliveries
        )  # fmt: skip

    def ended(self, run: Run) -> None:
        """Tell the viewers of this process, and the claim loop. After the commit."""
        log.info("run ended without an owner", run_id=run.id, was=run.status.value)
        self._hub.look_again(run.id, run.next_index)
        self._on_end()


def _folded(run: Run, segments: list[Segment]) -> Fold:
    fold = Fold(run.metrics)
    for segment in segments:
        for _, _, line in segment.each():
            fold.restore(line)
    return fold


def _stage(run: Run) -> str:
    match run.status:
        case RunStatus.PENDING:
            return "PENDING"
        case RunStatus.PAUSED:
            return "PAUSED"
        case _:
            return "EXECUTING"
