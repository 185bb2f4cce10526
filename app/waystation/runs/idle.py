"""Ending runs that nobody executes: queued, paused and handed-back ones, and those whose owner does not answer."""

from collections.abc import Callable

import sqlalchemy as sa

from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.event import Envelope, RunCancelled, Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunOutput
from waystation.domain.session import MAX_SHOWN_NAME_CHARS
from waystation.live.hub import Hub
from waystation.logs import get_logger
from waystation.runs.fold import Fold
from waystation.runs.outcome import CANCEL_REASON
from waystation.store import approvals, events
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

    async def cancel(self, run: Run) -> bool:
        """End a run as CANCELLED in one commit with its last event. `run` is as it was read; False: it has changed since."""
        return await self._database.write(self._cancel, run)

    def _cancel(self, conn: sa.Connection, run: Run) -> bool:
        segments = events.read_all(conn, run.id) if run.next_index else []
        fold = _folded(run, segments)
        name = self._agent_name(run.agent_id)
        envelope = Envelope(run_id=run.id, session_id=run.session_id, agent_id=run.agent_id, agent_name=name)
        at = now()
        text = fold.text or None
        line = envelope.line(RunCancelled(reason=CANCEL_REASON, content=text), run.next_index, at)
        output = RunOutput(content=text, tools=list(fold.tools.values()), cancellation_stage=_stage(run))
        values = {
            "output": output.model_dump_json(exclude_none=True, exclude_defaults=True),
            "metadata": dumps(run.metadata | {"warnings": fold.warnings}) if fold.warnings else None,
        }
        values = {name: value for name, value in values.items() if value is not None}
        first_message = run.input.message[:MAX_SHOWN_NAME_CHARS]
        done = run_store.end_idle(conn, run, RunStatus.CANCELLED, EventLines(1, line), dict(values), first_message, at)
        if done:
            approvals.cancel_of_run(conn, run.id, at)
        return done

    def ended(self, run: Run) -> None:
        """Tell the viewers of this process, and the claim loop. After the commit."""
        log.info("run ended without an owner", run_id=run.id, was=run.status.value)
        self._hub.look_again(run.id)
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
