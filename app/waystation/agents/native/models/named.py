"""Models by name: `provider:model`."""

from waystation.agents.native.models.base import Model
from waystation.agents.native.models.demo import DemoModel
from waystation.errors import ConfigError


def get_model(name: str) -> Model:
    """Raises ConfigError for a name that is not `demo:…`."""
    provider, colon, rest = name.partition(":")
    if provider == "demo" and rest:
        return DemoModel(id=name)
    if not colon or not rest:
        raise ConfigError(f"Model {name!r}: expected provider:model, for example 'demo:offline'.")
    raise ConfigError(f"Model {name!r}: models of providers are not available yet in this version. Give a Model object, or 'demo:offline'.")
