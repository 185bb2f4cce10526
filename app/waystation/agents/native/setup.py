"""What all turns of a native agent share. Built once, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waystation.agents.native.models.base import Model
from waystation.agents.native.tools import Tool
from waystation.domain.event import ModelRequestStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """`system` is the text of the system message, None for none; `tool_call_limit` counts over a whole run."""

    model: Model
    tools: Mapping[str, Tool]
    offered: list[dict[str, Any]]
    """The tools as the model is told of them."""
    system: str | None
    tool_call_limit: int | None
    request_started: ModelRequestStarted
    """The same event for every request, so that it is made once."""
