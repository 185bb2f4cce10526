"""The offline demo model: no network, no key, no language model. It follows rules and says so.

It chooses tools whose name, description or options the prompt mentions, fills their arguments from the prompt, and puts the
results into a sentence. The same conversation always gives the same answer.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

from waystation.agents.native.models.base import Model, ModelDelta, TextDelta, ToolCallsDelta, UsageDelta
from waystation.agents.native.models.prompt import STOP_WORDS, Prompt
from waystation.domain.message import FunctionCall, Message, ToolCall

PROVIDER = "Demo"
DELAY_S = 0.02
MOST_CALLS = 4
ENOUGH = 2
GREETINGS = frozenset({"hi", "hello", "hey", "moin", "hallo"})
NOTICE = "I am a scripted offline demo, not a language model"

_PIECE = re.compile(r"\S+\s*|\s+")


class DemoModel(Model):
    """Streams word by word, with `delay_s` seconds before each."""

    def __init__(self, *, id: str = "demo:offline", delay_s: float = DELAY_S) -> None:
        super().__init__(id=id, provider=PROVIDER, name="Offline demo", is_demo=True)
        self._delay_s = delay_s

    async def request(
        self, messages: list[Message], tools: list[dict[str, Any]], *, output_schema: dict[str, Any] | None
    ) -> AsyncGenerator[ModelDelta, None]:
        usage = sum(len((message.content or "").split()) for message in messages)
        results = _results(messages)
        prompt = Prompt(_last_user_text(messages))
        calls = [] if results else _calls(prompt, tools)
        if calls:
            yield ToolCallsDelta(tuple(calls))
            yield UsageDelta(input_tokens=usage, output_tokens=len(calls))
            return
        if output_schema is not None:
            text = json.dumps(prompt.example(output_schema), ensure_ascii=False)
        else:
            text = _told(results) if results else _answer(prompt, tools, messages)
        pieces = _PIECE.findall(text)
        for piece in pieces:
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            yield TextDelta(piece)
        yield UsageDelta(input_tokens=usage, output_tokens=len(pieces))


def _last_user_text(messages: list[Message]) -> str:
    return next((message.content or "" for message in reversed(messages) if message.role == "user"), "")


def _results(messages: list[Message]) -> list[Message]:
    """The tool results since the last user message, in order."""
    results: list[Message] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            results.append(message)
    return results[::-1]


def _calls(prompt: Prompt, tools: list[dict[str, Any]]) -> list[ToolCall]:
    """Calls of the tools that the prompt means and whose required arguments it holds; the best match comes first."""
    scored = sorted(((_score(prompt, tool), -place) for place, tool in enumerate(tools)), reverse=True)
    calls: list[ToolCall] = []
    for score, place in scored:
        if score < ENOUGH or len(calls) == MOST_CALLS:
            break
        tool = tools[-place]
        arguments = prompt.filled(tool["parameters"])
        if arguments is not None:
            text = json.dumps(arguments, ensure_ascii=False)
            calls.append(ToolCall(id=f"call_{os.urandom(6).hex()}", function=FunctionCall(name=tool["name"], arguments=text)))
    return calls


def _score(prompt: Prompt, tool: dict[str, Any]) -> int:
    """How well a tool fits: 3 for each word of its name or option, 2 for each of its description, 1 for a parameter."""
    properties: dict[str, Any] = tool["parameters"].get("properties", {})
    said = {_stem(word) for word in prompt.said}
    score = 3 * len(said & _stems(tool["name"]))
    score += 2 * len(said & _stems(tool["description"])) + len(said & _stems(" ".join(properties)))
    for name, part in properties.items():
        if name == "expression" and prompt.expression:
            score += 5
        if any(str(option).lower() in prompt.words for option in part.get("enum", ())):
            score += 3
    return score


def _stems(text: str) -> frozenset[str]:
    words = {word.lower() for word in re.findall(r"[^\W_]+", text)}
    return frozenset(_stem(word) for word in words - STOP_WORDS if len(word) > 2)


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _told(results: list[Message]) -> str:
    """The results of tools in a sentence each."""
    sentences = []
    for result in results:
        name, text = result.tool_name or "the tool", (result.content or "").strip()
        if result.tool_call_error:
            sentences.append(f"The tool {name} could not help: {text}")
        elif not text:
            sentences.append(f"The tool {name} has finished without a result.")
        else:
            sentences.append(f"{_given(result)}: {text}" + ("" if text.endswith((".", "!", "?", "}", "]")) else "."))
    return " ".join(sentences)


def _given(result: Message) -> str:
    arguments = result.tool_args or {}
    if not arguments:
        return f"The tool {result.tool_name} says"
    return f"The tool {result.tool_name} says for {', '.join(str(value) for value in arguments.values())}"


def _answer(prompt: Prompt, tools: list[dict[str, Any]], messages: list[Message]) -> str:
    """What it says when no tool fits."""
    asked = [message.content or "" for message in messages if message.role == "user"][:-1]
    if asked and prompt.said & {"before", "earlier", "remember", "previous", "previously", "last", "history", "said"}:
        return f"Before this you wrote: “{asked[-1]}”. {NOTICE}, but I can see the session's history."
    greeting = "Hello! " if GREETINGS & frozenset(prompt.words[:2]) else ""
    if not tools:
        return f"{greeting}{NOTICE}. I have no tools here, so all I can do is repeat your words: {prompt.text}"
    names = ", ".join(tool["name"] for tool in tools)
    return f"{greeting}{NOTICE}. I can call these tools: {names}. Ask for what one of them does."
