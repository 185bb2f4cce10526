"""Which runs of a session make up the conversation that its next turn goes on with.

A continuation of a finished run is a sibling that holds a copy of its source's messages up to the place where it goes on. The
conversation that ends with a sibling therefore goes on, towards the past, before its source: the source and what came between
belong to another branch.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Turnlike(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def forked_from_run_id(self) -> str | None: ...


T = TypeVar("T", bound=Turnlike)


def lineage(newest_first: Iterable[T]) -> list[T]:
    """The runs of the branch that the newest run ends, oldest first."""
    branch: list[T] = []
    source: str | None = None
    for run in newest_first:
        if source is not None:
            if run.id == source:
                source = run.forked_from_run_id
            continue
        branch.append(run)
        source = run.forked_from_run_id
    return branch[::-1]
