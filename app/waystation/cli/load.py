"""Finding a user's agents: a file, or `package.module:attribute`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from waystation.agents.base import BaseAgent
from waystation.errors import ConfigError


def load_agents(target: str) -> list[BaseAgent]:
    """The agents that a target names. A file or module must hold `agents`, a list; `module:attribute` may name a list or an agent."""
    place, _, attribute = target.partition(":")
    module = _from_file(Path(place)) if place.endswith(".py") or Path(place).is_file() else _from_module(place)
    name = attribute or "agents"
    if name not in vars(module):
        raise ConfigError(f"{target!r} has no {name!r}: put your agents into a list of that name.")
    return _as_agents(vars(module)[name], f"{place}:{name}")


def _as_agents(value: Any, where: str) -> list[BaseAgent]:
    found = [value] if isinstance(value, BaseAgent) else list(value) if isinstance(value, list | tuple) else None
    if found is None or not all(isinstance(agent, BaseAgent) for agent in found):
        raise ConfigError(f"{where} is not a list of agents.")
    if not found:
        raise ConfigError(f"{where} is empty: there is nothing to serve.")
    return found


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no file {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is not a Python file.")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not name.startswith(exc.name):
            raise
        raise ConfigError(f"There is no module {name!r}; give a file (my_agents.py) or package.module:attribute.") from exc
