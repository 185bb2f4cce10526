"""Tools: Python functions that a model may call.

A plain function is a tool as it is; `@tool` sets what must happen before it runs and what becomes of a call that a crash has
interrupted. Sync functions run in a thread, async ones in the event loop.
"""

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, overload

from waystation.agents.native.functions import Arguments, Parameter, parameters_of, summary_of
from waystation.agents.native.results import ToolError, text_of
from waystation.errors import ConfigError

T = TypeVar("T")
Effect = Literal["never", "safe", "ask"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
EFFECTS = ("never", "safe", "ask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function with what a model is told about it and the rules for its calls. It can still be called as the function.

    `offered` are the arguments that the model gives; `arguments` all of them, with those that only the user gives. `effect` says
    what becomes of a call that was started when its process was lost: `never` repeat it (the model is told that its outcome is
    unknown), it is `safe` to repeat, or `ask` for confirmation first.
    """

    name: str
    description: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    offered: Arguments
    arguments: Arguments
    requires_confirmation: bool = False
    requires_user_input: bool = False
    user_input_fields: frozenset[str] = frozenset()
    external_execution: bool = False
    approval: bool = False
    stop_after_tool_call: bool = False
    timeout_s: float | None = None
    effect: Effect = "never"
    is_async: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def pauses(self) -> bool:
        """Whether a call waits for somebody before it may run."""
        return self.requires_confirmation or self.requires_user_input or self.external_execution

    def described(self) -> dict[str, Any]:
        """What a model and the readers of `/agents` are told."""
        body: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self.offered.schema}
        if self.requires_confirmation:
            body["requires_confirmation"] = True
        if self.external_execution:
            body["external_execution"] = True
        return body

    async def call(self, values: dict[str, Any]) -> str:
        """The text of the result. Raises what the function raises, and ToolError if it took too long or tried to exit."""
        try:
            async with asyncio.timeout(self.timeout_s) as scope:
                if self.is_async:
                    return text_of(await self.function(**values))
                result = await _in_thread(lambda: _run(self.function, values))
                return await _awaited(result) if isinstance(result, _Later) else result
        except TimeoutError:
            if scope.expired():
                raise ToolError(f"The tool did not end within {self.timeout_s:g} s.") from None
            raise
        except (SystemExit, KeyboardInterrupt) as exc:
            # A task that ends with one of these would end the event loop, and all other runs with it.
            raise ToolError("The tool tried to end the process.") from exc


async def _in_thread(work: Callable[[], T]) -> T:
    """The result of work done in a thread of its own. Not the loop's pool of threads: a few tools that never end would fill it, and the
    whole process waits on it. Nor does such a thread keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits any more
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as exc:  # noqa: BLE001  # carried over to the task that waits
            error = exc
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="waystation-tool", daemon=True).start()
    return await future


@dataclass(frozen=True, slots=True)
class _Later:
    """What a sync function returned, to be awaited."""

    awaitable: Any


async def _awaited(later: _Later) -> str:
    return text_of(await later.awaitable)


def _run(function: Callable[..., Any], values: dict[str, Any]) -> str | _Later:
    """In a thread: call the function and make the text of its result."""
    try:
        result = function(**values)
        return _Later(result) if inspect.isawaitable(result) else text_of(result)
    except StopIteration as exc:
        # A StopIteration can't be carried over by a future: whoever waits for it would wait forever.
        raise ToolError("The tool raised StopIteration.") from exc


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    requires_confirmation: bool = False,
    requires_user_input: bool = False,
    user_input_fields: Iterable[str] = (),
    external_execution: bool = False,
    approval: bool = False,
    stop_after_tool_call: bool = False,
    timeout_s: float | None = None,
    effect: Effect = "never",
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    requires_confirmation: bool = False,
    requires_user_input: bool = False,
    user_input_fields: Iterable[str] = (),
    external_execution: bool = False,
    approval: bool = False,
    stop_after_tool_call: bool = False,
    timeout_s: float | None = None,
    effect: Effect = "never",
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function; bare (`@tool`) or with settings.

    Args:
        name: what the model calls it; default: the function's name.
        description: what the model is told; default: the docstring up to its first section.
        requires_confirmation: the run pauses before each call until the user confirms or declines it.
        requires_user_input: the run pauses before each call until the user has filled in `user_input_fields`.
        user_input_fields: the parameters that the user gives and the model does not; default: the user may change all of them.
        external_execution: the client executes the call and hands in its result; the function is never called.
        approval: an admin must approve each call, see `/approvals`.
        stop_after_tool_call: a call that went well ends the turn, its result being the answer.
        timeout_s: seconds after which a call fails. A sync function's thread can't be stopped; its result is then ignored.
        effect: what becomes of a call that was running when the server was lost, see `Tool`.

    Raises ConfigError for a function or settings that can't work.
    """

    def made(function: Callable[..., Any]) -> Tool:
        return _tool(
            function,
            name=name,
            description=description,
            requires_confirmation=requires_confirmation or approval,
            requires_user_input=requires_user_input or bool(fields),
            user_input_fields=fields,
            external_execution=external_execution,
            approval=approval,
            stop_after_tool_call=stop_after_tool_call,
            timeout_s=timeout_s,
            effect=effect,
        )

    fields = frozenset(user_input_fields)
    return made(function) if function is not None else made


def as_tool(function: Callable[..., Any]) -> Tool:
    """A tool as it is, or a plain function made one."""
    return function if isinstance(function, Tool) else tool(function)


def _tool(function: Callable[..., Any], *, name: str | None, description: str | None, **settings: Any) -> Tool:
    named = name or (function.__name__ if inspect.isroutine(function) else type(function).__name__)
    plain = function if inspect.isroutine(function) else type(function).__call__
    fields: frozenset[str] = settings["user_input_fields"]
    _refuse_unworkable(named, plain, settings)
    parameters = tuple(parameters_of(function, named))
    if unknown := fields - {p.name for p in parameters}:
        raise ConfigError(f"Tool {named!r} has no parameter {min(unknown)!r} that a user could fill in.")
    arguments = Arguments(named, parameters)
    return Tool(
        name=named,
        description=description if description is not None else summary_of(inspect.getdoc(function) or ""),
        function=function,
        parameters=parameters,
        offered=Arguments(named, [p for p in parameters if p.name not in fields]) if fields else arguments,
        arguments=arguments,
        is_async=inspect.iscoroutinefunction(plain),
        **settings,
    )


def _refuse_unworkable(name: str, function: Callable[..., Any], settings: dict[str, Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"Tool {name!r} is a generator; return a list or a text instead.")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"Tool name {name!r}: use 1 to 64 letters, digits, _ or -; give it with @tool(name=...).")
    ways = [w for w in ("requires_confirmation", "requires_user_input", "external_execution") if settings[w]]
    if len(ways) > 1:
        raise ConfigError(f"Tool {name!r} can wait for one thing only, not for {' and '.join(ways)}.")
    if settings["effect"] not in EFFECTS:
        raise ConfigError(f"Tool {name!r}: effect must be one of {', '.join(EFFECTS)}, not {settings['effect']!r}.")
    if settings["timeout_s"] is not None and settings["timeout_s"] <= 0:
        raise ConfigError(f"Tool {name!r}: timeout_s must be more than 0.")
