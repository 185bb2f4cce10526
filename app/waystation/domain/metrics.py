"""Token counts, cost and times of a run, and their sums."""

from functools import reduce
from typing import Any

from pydantic import BaseModel, ConfigDict

COUNTS = ("input_tokens", "output_tokens", "total_tokens", "reasoning_tokens", "cache_read_tokens", "cache_write_tokens")


class ModelUsage(BaseModel):
    """What one model took in one or more requests. `cost` is in US dollars, None if not known."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    provider: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None

    def plus(self, other: "ModelUsage") -> "ModelUsage":
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return self.model_copy(update=counts | {"cost": _sum(self.cost, other.cost)})


class Metrics(BaseModel):
    """The sums of a run over its model requests, and its times in seconds. `models` has one entry per model."""

    model_config = ConfigDict(frozen=True)

    models: tuple[ModelUsage, ...] = ()
    time_to_first_token: float | None = None
    duration: float | None = None

    def with_usage(self, usage: ModelUsage) -> "Metrics":
        """These metrics with one more model request added."""
        for place, known in enumerate(self.models):
            if (known.id, known.provider) == (usage.id, usage.provider):
                models = (*self.models[:place], known.plus(usage), *self.models[place + 1 :])
                return self.model_copy(update={"models": models})
        return self.model_copy(update={"models": (*self.models, usage)})

    def totals(self) -> ModelUsage:
        """The sum over the models."""
        match self.models:
            case ():
                return NOTHING
            case (only,):
                return only
            case _:
                return reduce(ModelUsage.plus, self.models)

    @property
    def cost(self) -> float | None:
        return self.totals().cost

    def wire(self) -> dict[str, Any]:
        """The form clients read: zero values dropped, the share of each model under `details.model`."""
        body = _counts_wire(self.totals())
        if self.time_to_first_token is not None:
            body["time_to_first_token"] = self.time_to_first_token
        if self.duration is not None:
            body["duration"] = self.duration
        if self.models:
            body["details"] = {"model": [_usage_wire(usage) for usage in self.models]}
        return body

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> "Metrics":
        models = tuple(ModelUsage.model_validate(item) for item in (body.get("details") or {}).get("model") or ())
        return cls(models=models, time_to_first_token=body.get("time_to_first_token"), duration=body.get("duration"))


NOTHING = ModelUsage()


def _usage_wire(usage: ModelUsage) -> dict[str, Any]:
    return _counts_wire(usage) | {"id": usage.id, "provider": usage.provider}


def _counts_wire(usage: ModelUsage) -> dict[str, Any]:
    counts: dict[str, Any] = {name: value for name in COUNTS if (value := getattr(usage, name))}
    if usage.cost is not None:
        counts["cost"] = usage.cost
    return counts


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None and b is None else (a or 0.0) + (b or 0.0)
