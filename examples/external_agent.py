"""An adapter for an SDK that keeps its own conversations: the shape of any agent that is not Waystation's own.

    waystation serve examples/external_agent.py
    curl -N -F message='hello there' -F session_id=tea http://127.0.0.1:7777/agents/parrot/runs

`ParrotClient` stands in for the SDK, so that the example runs by itself; the adapter is what you would write.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator

from waystation import AgentError, Emitter, ExternalAgent, Turn, TurnResult
from waystation.domain.event import RunContent
from waystation.domain.metrics import ModelUsage


class ParrotClient:
    """The stand-in: a client with conversations, streamed answers, an interrupt and token counts, as most SDKs have."""

    _numbers = itertools.count(1)

    def __init__(self, conversation: str | None) -> None:
        self.conversation = conversation or f"parrot-{next(self._numbers)}"
        self.input_tokens = self.output_tokens = 0
        self._stopped = False

    async def ask(self, prompt: str) -> AsyncIterator[str]:
        self.input_tokens += len(prompt.split())
        for word in prompt.split():
            await asyncio.sleep(0.1)
            if self._stopped:
                return
            if word.lower() == "crash":
                raise ConnectionError("the parrot has flown")
            self.output_tokens += 1
            yield f"{word}, "

    async def interrupt(self) -> None:
        self._stopped = True


class ParrotAgent(ExternalAgent):
    """The adapter: forwards the prompt, translates what comes back, stops when it is asked to, tells the usage."""

    sdk = "parrot"

    @property
    def model(self) -> str:
        return "parrot-1"

    @property
    def model_provider(self) -> str:
        return "Birds"

    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        client = ParrotClient(turn.session.external_session_id)  # None: the first turn of this session
        turn.cancel.bind(client.interrupt)  # awaited once, when the run is cancelled, times out or is drained
        turn.cancel.check()  # the request may have come before there was something to interrupt
        try:
            async for piece in client.ask(turn.run.input.message):
                emit(RunContent(content=piece))
                await emit.room()
        except ConnectionError as exc:
            raise AgentError("The parrot can't be reached.", error_type="parrot_unreachable", retryable=True) from exc
        finally:
            emit.usage(self._usage(client))  # also what an interrupted or failed turn has cost
        return TurnResult(external_session_id=client.conversation)

    def _usage(self, client: ParrotClient) -> ModelUsage:
        tokens_in, tokens_out = client.input_tokens, client.output_tokens
        return ModelUsage(
            id=self.model,
            provider=self.model_provider,
            input_tokens=tokens_in,
            output_tokens=tokens_out,
            total_tokens=tokens_in + tokens_out,
        )


agents = [ParrotAgent(id="parrot", name="Parrot", description="Says what you say, word by word.")]
