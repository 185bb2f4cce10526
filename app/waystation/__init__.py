"""Waystation: a server for AI agents whose runs are durable records.

Names are imported when they are first used, so that `import waystation` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.agents.base import BaseAgent, Capability, ExternalAgent
    from waystation.agents.claude.agent import ClaudeAgent
    from waystation.agents.native.agent import Agent
    from waystation.agents.native.models.base import Model
    from waystation.agents.native.models.scripted import ScriptedModel
    from waystation.agents.native.tools import tool
    from waystation.agents.turn import Emitter, Turn, TurnResult
    from waystation.config import Settings
    from waystation.domain.event import CustomEvent, Event, RunContent, ToolCallCompleted, ToolCallStarted
    from waystation.domain.media import MediaKind
    from waystation.domain.message import Message
    from waystation.domain.metrics import ModelUsage
    from waystation.domain.requirement import ToolExecution
    from waystation.domain.retry import RetryPolicy
    from waystation.domain.webhook import Webhook
    from waystation.errors import AgentError
    from waystation.main import Waystation

_PLACES = {
    "Agent": "waystation.agents.native.agent",
    "AgentError": "waystation.errors",
    "BaseAgent": "waystation.agents.base",
    "Capability": "waystation.agents.base",
    "ClaudeAgent": "waystation.agents.claude.agent",
    "CustomEvent": "waystation.domain.event",
    "Emitter": "waystation.agents.turn",
    "Event": "waystation.domain.event",
    "ExternalAgent": "waystation.agents.base",
    "MediaKind": "waystation.domain.media",
    "Message": "waystation.domain.message",
    "Model": "waystation.agents.native.models.base",
    "ModelUsage": "waystation.domain.metrics",
    "RetryPolicy": "waystation.domain.retry",
    "RunContent": "waystation.domain.event",
    "ScriptedModel": "waystation.agents.native.models.scripted",
    "Settings": "waystation.config",
    "ToolCallCompleted": "waystation.domain.event",
    "ToolCallStarted": "waystation.domain.event",
    "ToolExecution": "waystation.domain.requirement",
    "Turn": "waystation.agents.turn",
    "TurnResult": "waystation.agents.turn",
    "Waystation": "waystation.main",
    "Webhook": "waystation.domain.webhook",
    "tool": "waystation.agents.native.tools",
}

__all__ = [
    "Agent",
    "AgentError",
    "BaseAgent",
    "Capability",
    "ClaudeAgent",
    "CustomEvent",
    "Emitter",
    "Event",
    "ExternalAgent",
    "MediaKind",
    "Message",
    "Model",
    "ModelUsage",
    "RetryPolicy",
    "RunContent",
    "ScriptedModel",
    "Settings",
    "ToolCallCompleted",
    "ToolCallStarted",
    "ToolExecution",
    "Turn",
    "TurnResult",
    "Waystation",
    "Webhook",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'waystation' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
