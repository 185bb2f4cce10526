"""AgentOS (the `agno` package) with a scripted agent that does what our `plain` does, for measuring side by side.

Runs in a venv of its own (`make bench-peers`). PEER_DB: a SQLite file, or a postgresql+psycopg:// URL.
"""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from agno.agent import Agent
from agno.db.postgres import PostgresDb
from agno.db.sqlite import SqliteDb
from agno.metrics import MessageMetrics
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.os import AgentOS


def chunks_for(messages: list[Any]) -> list[str]:
    said = next((str(m.content or "") for m in reversed(messages) if m.role == "user"), "")
    words = said.split()
    if words[:1] == ["chunks"]:
        return [f"x{number} " for number in range(int(words[1]))]
    return ["Hello ", "from ", "the ", "stub."]


def usage() -> MessageMetrics:
    return MessageMetrics(input_tokens=11, output_tokens=7, total_tokens=18)


@dataclass
class Scripted(Model):
    id: str = "stub-1"
    name: str = "Scripted"
    provider: str = "Stub"

    def invoke(self, messages: list[Any], assistant_message: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(role="assistant", content="".join(chunks_for(messages)), response_usage=usage())

    async def ainvoke(self, messages: list[Any], assistant_message: Any, **kwargs: Any) -> ModelResponse:
        return self.invoke(messages, assistant_message)

    def invoke_stream(self, messages: list[Any], assistant_message: Any, **kwargs: Any) -> Iterator[ModelResponse]:
        yield self.invoke(messages, assistant_message)

    async def ainvoke_stream(self, messages: list[Any], assistant_message: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        pieces = chunks_for(messages)
        for number, piece in enumerate(pieces, 1):
            yield ModelResponse(role="assistant", content=piece, response_usage=usage() if number == len(pieces) else None)

    def _parse_provider_response(self, response: Any, **kwargs: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


place = os.environ["PEER_DB"]
db = PostgresDb(db_url=place, id="peer") if place.startswith("postgresql") else SqliteDb(db_file=place, id="peer")
plain = Agent(id="plain", name="Plain", model=Scripted(), db=db, add_history_to_context=False, telemetry=False)
app = AgentOS(id="peer", agents=[plain], db=db, telemetry=False).get_app()
