"""What processes tell each other, so that none has to wait for its next look at the store.

1. News are hints. They are told after a commit, may be lost, repeated or late, and name runs and indices only: who hears them asks
   the store. Under each stands a poll, so losing all of them costs time, never a run.
2. What can't be said in one small text is said as "everything": then all must be looked for.
"""

from collections.abc import Callable
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

MOST_BYTES = 7_000
"""PostgreSQL takes 8,000 bytes at most."""


class News(BaseModel):
    """What happened at other processes. `moved`: run id → index of its last committed event; `is_due`: there may be something to claim;
    `cancels`: runs whose cancel was requested; `is_everything`: any of this, of any run."""

    model_config = ConfigDict(strict=True)

    moved: dict[str, int] = {}
    is_due: bool = False
    cancels: list[str] = []
    is_everything: bool = False

    def encode(self) -> str:
        text = self.model_dump_json(exclude_defaults=True)
        return text if len(text.encode()) <= MOST_BYTES else News(is_everything=True).encode()

    @classmethod
    def decode(cls, text: str) -> "News":
        """What can't be read, as from another version, may say anything."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return cls(is_everything=True)


OnNews = Callable[[News], None]
"""Hears news of other processes, in the event loop."""


class Live(Protocol):
    """Tells other processes what was committed here, and hears it from them. `tell_` never waits and never fails. Only used in the
    event loop."""

    @property
    def kind(self) -> str: ...
    @property
    def is_connected(self) -> bool:
        """Whether news come and go. Without, everything is found by polls."""
        ...

    has_others: bool
    """Whether another process lives on this database, as far as recovery has seen: nobody else needs to be told."""

    def tell_events(self, run_id: str, last_index: int) -> None: ...
    def tell_due(self) -> None:
        """Something may be due that this process can't claim."""
        ...

    def tell_cancel(self, run_id: str) -> None: ...
    async def run(self) -> None:
        """Carry news until cancelled."""
        ...

    async def close(self) -> None:
        """Tell what has not been told yet, and let go. After `run` has ended."""
        ...
