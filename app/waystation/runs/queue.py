"""The runs as jobs of a queue: list them, read one, queue one again."""

from collections.abc import Sequence
from dataclasses import replace

from waystation.agents.registry import AgentRegistry
from waystation.clock import new_id, now
from waystation.db.engine import Database
from waystation.domain.access import Principal
from waystation.domain.lifecycle import RunStatus
from waystation.domain.media import Attachment
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import Run
from waystation.errors import RunNotFoundError, RunNotRequeuableError
from waystation.runs.request import Ticket
from waystation.runs.service import RunService
from waystation.store import queue
from waystation.store.details import files_of
from waystation.store.operations import Accept
from waystation.store.queue import Job

__all__ = ["Job", "QueueService"]


class QueueService:
    def __init__(self, *, database: Database, registry: AgentRegistry, runs: RunService) -> None:
        self._database = database
        self._registry = registry
        self._runs = runs

    async def list_jobs(self, statuses: Sequence[RunStatus], request: PageRequest, principal: Principal, *, descending: bool) -> Page[Job]:
        return await self._database.read(queue.list_jobs, statuses, request, user_id=principal.subject, descending=descending)

    async def get_job(self, run_id: str, principal: Principal) -> Job:
        """Raises RunNotFoundError, also for the run of another user."""
        job = await self._database.read(queue.find_job, run_id)
        if job is None or not principal.may_see(job.run.user_id):
            raise RunNotFoundError(run_id)
        return job

    async def requeue(self, run_id: str, principal: Principal) -> Ticket:
        """Accept a new run that asks the same of the same agent in the same session. The old one stays as it ended.

        Raises RunNotFoundError; RunNotRequeuableError unless it ended in ERROR or CANCELLED; QueueFullError; AgentNotFoundError.
        """
        source = (await self.get_job(run_id, principal)).run
        if source.status not in (RunStatus.ERROR, RunStatus.CANCELLED):
            raise RunNotRequeuableError(run_id, f"it is {source.shown_status.value}, neither ERROR nor CANCELLED")
        if source.forked_from_run_id is not None:
            # What it took over from its source is not part of its input.
            raise RunNotRequeuableError(run_id, f"it goes on from run {source.forked_from_run_id!r}; continue that one again")
        agent = self._registry.get(source.agent_id)
        at = now()
        files = await self._database.read(files_of, source) if source.input.files else []
        copies = {file.id: replace(file, id=new_id()) for file in files}
        run = Run(
            id=new_id(),
            agent_id=agent.id,
            session_id=source.session_id,
            user_id=source.user_id,
            status=RunStatus.PENDING,
            input=source.input.model_copy(update={"files": _renamed(source, copies)}),
            created_at=at,
            max_attempts=source.max_attempts,
            available_at=at,
            timeout_s=source.timeout_s,
            background=True,
            metadata={key: value for key, value in source.metadata.items() if key != "warnings"} | {"requeued_from": source.id},
            webhooks=tuple(endpoint for endpoint in source.webhooks if endpoint.source == "run"),
            model=agent.model,
            model_provider=agent.model_provider,
        )
        accept = Accept(run=run, may_wait=True, attachments=tuple(copies.values()))
        return await self._runs.accept(accept, agent, starts_now=False)


def _renamed(source: Run, copies: dict[str, Attachment]) -> list[dict[str, object]]:
    """The files of the input, with the ids of their copies."""
    return [item | {"id": copies[item["id"]].id} if item.get("id") in copies else item for item in source.input.files]
