"""The limit: a bare FastAPI route with the form fields of a run, which stores nothing and answers a fixed object."""

from typing import Annotated, Any

from fastapi import FastAPI, File, Form, UploadFile


def create_app() -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/agents/{agent_id}/runs")
    async def create_run(
        agent_id: str,
        message: Annotated[str, Form()],
        stream: Annotated[bool, Form()] = True,
        session_id: Annotated[str | None, Form()] = None,
        user_id: Annotated[str | None, Form()] = None,
        background: Annotated[bool, Form()] = False,
        version: Annotated[int | None, Form()] = None,
        files: Annotated[list[UploadFile] | None, File()] = None,
    ) -> dict[str, Any]:
        return {"run_id": "r", "session_id": session_id or "s", "agent_id": agent_id, "status": "COMPLETED", "content": message}

    return app
