"""Running the server: uvicorn as Waystation wants it."""

import logging

import uvicorn
from fastapi import FastAPI

from waystation import logs
from waystation.config import Settings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DRAIN_MARGIN_S = 10


class _StreamsThatAreCut(logging.Filter):
    """Drops uvicorn's complaint about an answer without an end: streams are cut on purpose when the server shuts down."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


def run_server(app: FastAPI, settings: Settings, *, host: str | None = None, port: int | None = None) -> None:
    """Serve until told to stop. Blocks."""
    logs.configure(settings.log_level)
    logging.getLogger("uvicorn.error").addFilter(_StreamsThatAreCut())
    address = host or settings.host
    if address not in LOOPBACK:
        logs.get_logger("waystation").warning("listening beyond this machine, and there is no authentication", host=address)
    uvicorn.run(
        app,
        host=address,
        port=settings.port if port is None else port,
        loop="auto",
        http="httptools",
        log_level="warning" if settings.log_level != "debug" else "debug",
        access_log=False,
        timeout_graceful_shutdown=int(settings.drain_s) + DRAIN_MARGIN_S,
        server_header=False,
        proxy_headers=False,  # nothing here depends on the client's address
    )
