"""`/queue/…`: runs as the jobs of AgentOS, and what waits and executes."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from waystation.api.deps import ContainerDep, PageDep, PrincipalDep
from waystation.api.schemas.queue import JOB_STATUSES, JobBody, JobsBody, job_body, stats_body
from waystation.api.schemas.shared import errors, json_response, page_meta
from waystation.api.streams import known_run, run_headers
from waystation.domain.lifecycle import RunStatus

router = APIRouter(tags=["queue"])

JobStatus = Literal["queued", "running", "completed", "failed", "cancelled", "paused"]


@router.get("/queue/jobs", operation_id="list_queue_jobs", response_model=JobsBody, responses=errors(422))
async def list_jobs(
    container: ContainerDep,
    principal: PrincipalDep,
    page: PageDep,
    status: Annotated[list[JobStatus] | None, Query(description="May be given several times; without it, all.")] = None,
    sort_by: Annotated[Literal["created_at"], Query()] = "created_at",
    sort_order: Annotated[Literal["asc", "desc"], Query()] = "desc",
) -> Response:
    """The runs of all agents, newest first unless asked otherwise."""
    wanted: list[RunStatus] = [JOB_STATUSES[name] for name in dict.fromkeys(status or JOB_STATUSES)]
    found = await container.queue.list_jobs(wanted, page, principal, descending=sort_order == "desc")
    return json_response({"data": [job_body(job) for job in found.items], "meta": page_meta(found)})


@router.get("/queue/jobs/{job_id}", operation_id="get_queue_job", response_model=JobBody, responses=errors(404))
async def get_job(job_id: str, container: ContainerDep, principal: PrincipalDep) -> Response:
    """One run as a job. Its id is that of the run."""
    return json_response(job_body(await container.queue.get_job(known_run(job_id), principal)))


@router.post("/queue/jobs/{job_id}/requeue", operation_id="requeue_queue_job", response_model=JobBody, responses=errors(404, 409, 429, 503))
async def requeue_job(job_id: str, request: Request, container: ContainerDep, principal: PrincipalDep) -> Response:
    """Ask once more what a failed or cancelled run was asked: the answer is the new run, the old one stays as it is."""
    ticket = await container.queue.requeue(known_run(job_id), principal)
    return json_response(job_body(await container.queue.get_job(ticket.run_id, principal)), headers=run_headers(ticket, request))


@router.get("/queue/stats", operation_id="queue_stats", response_model=dict[str, Any], responses=errors(503))
async def queue_stats(container: ContainerDep) -> Response:
    """What waits and runs, how old the oldest waiting run is, and the processes that execute."""
    return json_response(stats_body(await container.health.queue()))
