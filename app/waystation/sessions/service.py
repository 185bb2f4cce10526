"""Sessions, as clients ask for them."""

from typing import Any

from waystation.agents.base import Capability
from waystation.agents.registry import AgentRegistry
from waystation.clock import new_id, now
from waystation.db.engine import Database
from waystation.domain.access import Principal
from waystation.domain.lifecycle import SETTLED
from waystation.domain.message import Message
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import RunDetail
from waystation.domain.session import Session, SessionFilter, SessionPatch
from waystation.errors import NotSupportedError, RunNotFoundError, SessionBusyError, SessionExistsError, SessionNotFoundError
from waystation.runs.service import RunService
from waystation.store import runs as run_store
from waystation.store import sessions as session_store
from waystation.store.details import list_details, read_detail

HISTORY_PAGE = PageRequest(page=1, limit=10_000)
STOP_WAIT_S = 15.0


class SessionService:
    def __init__(self, *, database: Database, registry: AgentRegistry, runs: RunService) -> None:
        self._database = database
        self._registry = registry
        self._runs = runs

    async def create(
        self,
        principal: Principal,
        *,
        session_id: str | None,
        agent_id: str | None,
        user_id: str | None,
        name: str | None,
        state: dict[str, Any] | None,
        metadata: dict[str, Any] | None,
    ) -> Session:
        if agent_id is not None:
            self._registry.get(agent_id)
        at = now()
        session = Session(
            id=session_id or new_id(),
            agent_id=agent_id,
            user_id=principal.user_for(user_id),
            name=name,
            state=state or {},
            metadata=metadata or {},
            created_at=at,
            updated_at=at,
        )
        if not await self._database.write(session_store.create, session):
            raise SessionExistsError(session.id)
        return session

    async def get(self, session_id: str, principal: Principal, user_id: str | None = None) -> Session:
        """Raises SessionNotFoundError, also for a session of another user."""
        return await self._database.read(session_store.get_visible, session_id, principal.user_for(user_id))

    async def list_sessions(self, wanted: SessionFilter, request: PageRequest) -> Page[Session]:
        return await self._database.read(session_store.list_sessions, wanted, request)

    async def chat_history(self, session_id: str) -> list[Message]:
        """The messages of all runs of a session in order, each once, without system messages."""
        page = await self._database.read(list_details, request=HISTORY_PAGE, session_id=session_id)
        return [m for detail in page.items for m in detail.messages if m.role != "system" and not m.from_history]

    async def patch(self, session_id: str, change: SessionPatch, principal: Principal, user_id: str | None) -> Session:
        """Change what is named and nothing else, also while a run goes on."""
        return await self._database.write(session_store.patch_visible, session_id, change, principal.user_for(user_id), now())

    async def list_runs(
        self,
        session_id: str,
        principal: Principal,
        request: PageRequest,
        *,
        user_id: str | None,
        created_after: float | None,
        created_before: float | None,
    ) -> Page[RunDetail]:
        await self.get(session_id, principal, user_id)
        return await self._database.read(
            list_details, request=request, session_id=session_id, created_after=created_after, created_before=created_before
        )

    async def get_run(self, session_id: str, run_id: str, principal: Principal, user_id: str | None) -> RunDetail:
        await self.get(session_id, principal, user_id)
        detail = await self._database.read(read_detail, run_id)
        if detail.run.session_id != session_id:
            raise RunNotFoundError(run_id)
        return detail

    # ---- delete ------------------------------------------------------------------------------------------------------------
    async def delete(self, session_id: str, principal: Principal, *, user_id: str | None, force: bool) -> None:
        """Delete a session with all that is of it. Unknown ones, and those of another user, are left alone without a word. With
        a turn in flight SessionBusyError, or with `force` the turn is cancelled first."""
        try:
            await self.get(session_id, principal, user_id)
        except SessionNotFoundError:
            return
        while not await self._database.write(session_store.delete, session_id, now()):
            if not force:
                in_flight = await self._database.read(run_store.find_in_flight, session_id)
                raise SessionBusyError(run_id=in_flight, session_id=session_id)
            await self._stop_all(session_id, principal)

    async def _stop_all(self, session_id: str, principal: Principal) -> None:
        for run in await self._database.read(session_store.unfinished_runs, session_id):
            if run.status not in SETTLED:
                try:
                    _, stopping = await self._runs.cancel(run.agent_id, run.id, principal, STOP_WAIT_S)
                except RunNotFoundError:
                    continue
                if stopping:
                    raise SessionBusyError(run_id=run.id, session_id=session_id)

    # ---- fork --------------------------------------------------------------------------------------------------------------
    async def fork(self, agent_id: str, session_id: str, principal: Principal, user_id: str | None) -> Session:
        """A new session with the same history; the original is not changed."""
        agent = self._registry.get(agent_id)
        source = await self.get(session_id, principal, user_id)
        if source.agent_id not in (None, agent_id):
            raise SessionNotFoundError(session_id)
        if Capability.FORK_SESSION not in agent.capabilities:
            raise NotSupportedError(f"Agent {agent_id!r} has no capability FORK_SESSION.")
        return await self._database.write(session_store.fork, source, now())

    async def compact(self, agent_id: str, session_id: str, principal: Principal, user_id: str | None) -> None:
        """No agent of this version can compact a session."""
        agent = self._registry.get(agent_id)
        await self.get(session_id, principal, user_id)
        raise NotSupportedError(f"Agent {agent.id!r} has no capability COMPACT.")
