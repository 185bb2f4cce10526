"""Watching a run's log from an index on: the one code behind streams, resumes, long polls and waiting for an answer.

Register, read the store, wait (see `live.hub`). A viewer ends when it has delivered the event that ends the run. It ends at a pause
too, unless it came after it: then it waits for the continuation.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from waystation.db.engine import Database
from waystation.domain.event import Gap, RunPaused, Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import RunDetail
from waystation.errors import RunNotFoundError, UnavailableError
from waystation.live.hub import Hub
from waystation.store import details, looks
from waystation.store import runs as run_store


@dataclass(frozen=True, slots=True)
class State:
    """Where a run's log stands: its status, and the index of its next event."""

    status: RunStatus
    next_index: int

    def is_over_at(self, index: int) -> bool:
        """Whether nothing comes behind an index, unless a pause is continued."""
        return self.status not in (RunStatus.PENDING, RunStatus.RUNNING) and index >= self.next_index - 1


class Watch:
    def __init__(self, database: Database, hub: Hub) -> None:
        self._database = database
        self._hub = hub

    async def state(self, run_id: str) -> State:
        """Raises RunNotFoundError."""
        found = await self._database.read(run_store.find_state, run_id)
        if found is None:
            raise RunNotFoundError(run_id)
        return State(*found)

    async def segments(self, run_id: str, after: int, *, waits_when_paused: bool = False) -> AsyncGenerator[Segment | Gap]:
        """The committed events behind an index, as they come. `waits_when_paused`: do not end at a pause that was over before."""
        channel = self._hub.attach(run_id)
        cursor, waits = after, waits_when_paused
        try:
            while not channel.is_gone:
                version, found = channel.version, channel.since(cursor)
                if found is None or (not found and channel.has_ended):
                    look = await self._database.read(looks.look, run_id, cursor, waits)
                    for item in look.made:
                        yield item
                    if look.is_over:
                        return
                    found = look.segments
                    channel.know(min(cursor, look.end))
                for segment in found:
                    if segment.first_index > cursor + 1:
                        yield Gap(cursor + 1, segment.first_index - 1)
                    cursor, waits = segment.last_index, False
                    yield segment
                    if segment.ends_leg and await self._ends(run_id, segment):
                        return
                if not found and channel.version == version:
                    await channel.changed()
        finally:
            self._hub.detach(channel)

    async def _ends(self, run_id: str, segment: Segment) -> bool:
        """Whether this end of a leg is the end of the log: a pause may have been continued since."""
        *_, (index, name, _) = segment.each()
        if name != RunPaused.name:
            return True
        found = await self._database.read(run_store.find_state, run_id)
        return found is None or State(*found).is_over_at(index)

    async def settled(self, run_id: str) -> RunDetail:
        """Wait until the leg has ended: the run as it then is. UnavailableError if this process shuts down before."""
        channel = self._hub.attach(run_id)
        try:
            while True:
                if channel.detail is not None:
                    return channel.detail
                if self._hub.is_closed:
                    raise UnavailableError("The server is shutting down; the run goes on, read it again soon.")
                version = channel.version
                if channel.owner is None:
                    state = await self.state(run_id)
                    if state.is_over_at(state.next_index):
                        return await self._database.read(details.read_detail, run_id)
                    channel.know(state.next_index - 1)
                if channel.version == version:
                    await channel.ended()
        finally:
            self._hub.detach(channel)
