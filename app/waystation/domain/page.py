"""Pages of lists."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Which page of a list is asked for. `page` counts from 1."""

    page: int = 1
    limit: int = 20

    @property
    def offset(self) -> int:
        return (max(self.page, 1) - 1) * self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """The items of one page, and how many there are in all."""

    items: list[T]
    total: int
    request: PageRequest

    @property
    def pages(self) -> int:
        return -(-self.total // self.request.limit)
