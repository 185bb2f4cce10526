"""Approvals, as admins see and decide them."""

from typing import Any

from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.page import Page, PageRequest
from waystation.errors import ApprovalNotFoundError, ApprovalResolvedError
from waystation.store import approvals as store
from waystation.store.approvals import Approval

__all__ = ["Approval", "ApprovalService"]


class ApprovalService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, approval_id: str) -> Approval:
        """Raises ApprovalNotFoundError."""
        approval = await self._database.read(store.find, approval_id)
        if approval is None:
            raise ApprovalNotFoundError(approval_id)
        return approval

    async def list_approvals(self, filters: dict[str, str | None], request: PageRequest) -> Page[Approval]:
        return await self._database.read(store.list_approvals, filters, request)

    async def count(self, filters: dict[str, str | None]) -> int:
        return await self._database.read(store.count, filters)

    async def resolve(self, approval_id: str, *, status: str, resolved_by: str | None, data: dict[str, Any] | None) -> Approval:
        """Decide once: `approved` or `rejected`. ApprovalResolvedError the second time, whoever comes."""
        await self.get(approval_id)
        decided = await self._database.write(store.resolve, approval_id, status=status, resolved_by=resolved_by, data=data, at=now())
        approval = await self.get(approval_id)
        if not decided:
            raise ApprovalResolvedError(approval_id, approval.status)
        return approval

    async def delete(self, approval_id: str) -> None:
        if not await self._database.write(store.delete, approval_id):
            raise ApprovalNotFoundError(approval_id)
