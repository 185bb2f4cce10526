"""One process of the binary for one turn, from its start until nothing of it is left.

1. One task, the owner, connects, reads and closes. Nobody cancels it; a cancelled turn only tells it to stop. The SDK's own
   clean-up does not survive a second cancellation and would leave the binary running.
2. A task of the owner's reads until the result, without a pause: the SDK keeps 100 messages, and while nobody reads it serves no
   hook and no tool of ours.
3. To stop, the binary is asked to interrupt (it ends its tools and tells a result, mostly within 0.1 s). If it can't be asked
   yet, or does not answer in time, its processes are ended.
4. After that, and after every other end, the connection is closed and what is left of the turn's processes is ended.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, CLIConnectionError, Message, ResultMessage

from waystation import tasks
from waystation.agents.claude.errors import from_exception, is_of_sdk
from waystation.agents.claude.options import secrets_of
from waystation.agents.claude.tree import MARK, end_tree, find_tree

log = logging.getLogger(__name__)

_INTERRUPT_S = 1.0
_CLOSE_S = 6.0
_STOPPED_CLOSE_S = 0.5
_ENDED_S = 2.0
_STDERR_LINES = 20


class TurnProcess:
    """Runs one prompt. Used once. `owners` keeps the owner's task until it has ended, even when the turn does not wait for it."""

    def __init__(self, options: ClaudeAgentOptions, *, secrets: Sequence[str], owners: set[asyncio.Task[ResultMessage]]) -> None:
        self._mark = uuid.uuid4().hex
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._secrets = [*secrets, *secrets_of(options.env)]
        self._options = replace(options, env=options.env | {MARK: self._mark}, stderr=self._note)
        self._owners = owners
        self._stop = asyncio.Event()
        self._connected = False
        self._pid: int | None = None

    async def run(self, prompt: str, on_message: Callable[[Message], None]) -> ResultMessage:
        """The result, which may be an error. Raises AgentError if the binary gave none. When it returns or raises no process is
        left, unless it was cancelled twice; then the owner goes on by itself."""
        owner = asyncio.create_task(self._own(prompt, on_message))
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        try:
            return await asyncio.shield(owner)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait({owner}, timeout=_INTERRUPT_S + _CLOSE_S + _ENDED_S)
            raise

    async def interrupt(self) -> None:
        """Have the turn end soon. Returns at once."""
        self._stop.set()

    async def _own(self, prompt: str, on_message: Callable[[Message], None]) -> ResultMessage:
        client = ClaudeSDKClient(self._options)
        work = asyncio.create_task(self._converse(client, prompt, on_message))
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._interrupt(client, work)
            return await self._outcome(work)
        finally:
            stop.cancel()
            work.cancel()
            await self._close(client)

    async def _converse(self, client: ClaudeSDKClient, prompt: str, on_message: Callable[[Message], None]) -> ResultMessage:
        await client.connect()
        info: dict[str, Any] = await client.get_server_info() or {}
        self._pid = info.get("pid")
        self._connected = True
        prompt_id = str(uuid.uuid4())
        await client.query(_user_message(prompt, prompt_id))
        async for message in client.receive_messages():
            on_message(message)
            if isinstance(message, ResultMessage) and _answers(message, prompt_id):
                return message
        raise CLIConnectionError("its output ended before the result")

    async def _interrupt(self, client: ClaudeSDKClient, work: asyncio.Task[ResultMessage]) -> None:
        if self._connected:
            asking = asyncio.create_task(client.interrupt())
            await asyncio.wait({work}, timeout=_INTERRUPT_S)
            await tasks.end([asking])
            if not asking.cancelled() and (error := asking.exception()) is not None:
                log.debug("interrupt failed", extra={"reason": str(error)})
        if not work.done():
            await end_tree(self._mark, await asyncio.to_thread(find_tree, self._mark, self._pid))
            await asyncio.wait({work}, timeout=_ENDED_S)

    async def _outcome(self, work: asyncio.Task[ResultMessage]) -> ResultMessage:
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=_CLOSE_S)
        if not work.done() or work.cancelled():
            stopped = CLIConnectionError("it was stopped")
            raise from_exception(stopped, connected=True, resuming=False, stderr=self._stderr_lines)
        error = work.exception()
        if error is None:
            return work.result()
        if not is_of_sdk(error):
            raise error
        resuming = self._options.resume is not None
        raise from_exception(error, connected=self._connected, resuming=resuming, stderr=self._stderr_lines) from error

    async def _close(self, client: ClaudeSDKClient) -> None:
        """The processes are looked up first: when the binary has ended, its children no longer tell whose they were. After an
        interrupted tool the binary takes more than a second to end; its transcript is complete long before that."""
        known = await asyncio.to_thread(find_tree, self._mark, self._pid)
        closing = asyncio.create_task(client.disconnect())
        await asyncio.wait({closing}, timeout=_STOPPED_CLOSE_S if self._stop.is_set() else _CLOSE_S)
        if not closing.done():
            await end_tree(self._mark, known)
            await asyncio.wait({closing}, timeout=_ENDED_S)
        closing.cancel()
        await asyncio.wait({closing}, timeout=_ENDED_S)
        if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
            log.warning("closing the claude binary failed", extra={"reason": str(error)})
        await end_tree(self._mark, known)

    def _note(self, line: str) -> None:
        self._stderr.append(line)

    @property
    def _stderr_lines(self) -> list[str]:
        """The last lines that the binary wrote to stderr, without the secrets that it was given."""
        text = "\n".join(self._stderr)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text.splitlines()


async def _user_message(text: str, message_id: str) -> AsyncIterator[dict[str, Any]]:
    yield {
        "type": "user",
        "uuid": message_id,
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
    }


def _answers(result: ResultMessage, message_id: str) -> bool:
    """Whether a result is the prompt's. Interrupted turns may name no prompt; another's is one that the binary began itself."""
    named = {*(result.user_message_uuids or ()), result.user_message_uuid} - {None}
    return message_id in named or not named
