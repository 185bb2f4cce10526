"""Deliveries of webhooks as clients read them."""

from typing import Any, Literal

from pydantic import BaseModel

from waystation.api.schemas.shared import PageMeta, without_none
from waystation.domain.webhook import Delivery, DeliveryStatus, origin_of


class DeliveryBody(BaseModel):
    """`source`: whose webhook it is. `endpoint`: its id on the agent, or its place in the request. `url`: of a run's own, scheme and host
    only. Times are seconds since the epoch; `next_attempt_at` is there while it is pending."""

    id: str
    run_id: str
    session_id: str
    event: str
    source: Literal["agent", "run"]
    endpoint: str
    url: str | None
    status: DeliveryStatus
    attempts: int
    next_attempt_at: float | None
    last_attempt_at: float | None
    last_status_code: int | None
    last_error: str | None
    delivered_at: float | None
    created_at: float


class DeliveriesBody(BaseModel):
    data: list[DeliveryBody]
    meta: PageMeta


def delivery_body(delivery: Delivery) -> dict[str, Any]:
    return without_none({
        "id": delivery.id,
        "run_id": delivery.run_id,
        "session_id": delivery.session_id,
        "event": delivery.event,
        "source": delivery.source,
        "endpoint": delivery.endpoint,
        "url": origin_of(delivery.url) if delivery.url else None,
        "status": delivery.status.value,
        "attempts": delivery.attempts,
        "next_attempt_at": delivery.next_attempt_at,
        "last_attempt_at": delivery.last_attempt_at,
        "last_status_code": delivery.last_status_code,
        "last_error": delivery.last_error,
        "delivered_at": delivery.delivered_at,
        "created_at": delivery.created_at,
    })  # fmt: skip
