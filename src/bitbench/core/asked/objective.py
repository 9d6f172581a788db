"""What a service promises: a limit on a statistic of its times, such as `ttft_p99: 200ms`."""

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from bitbench.core.base import Seconds, Spec

Metric = Literal["ttft", "tpot", "latency"]
Statistic = Literal["mean", "p50", "p90", "p95", "p99"]
NAMES = tuple(f"{metric}_{statistic}" for metric in get_args(Metric) for statistic in get_args(Statistic))


class Objective(Spec):
    """Holds in a trial in which `statistic` over its requests of `metric` is at most `limit`."""

    metric: Metric
    statistic: Statistic
    limit: Seconds = Field(gt=0)

    @property
    def name(self) -> str:
        return f"{self.metric}_{self.statistic}"


def parse_objectives(value: object) -> object:
    """`{ttft_p99: 200ms}` and `"ttft_p99=200ms,tpot_p99=20ms"` as well as a list of objectives."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        unclear = [part for part in parts if "=" not in part]
        if unclear or not parts:
            raise ValueError(f"expected objectives such as ttft_p99=200ms,tpot_p99=20ms, got {value!r}")
        pairs = [(name.strip(), limit) for name, _, limit in (part.partition("=") for part in parts)]
    elif isinstance(value, Mapping):
        pairs = [(str(name), limit) for name, limit in value.items()]
    else:
        return value
    names = [name for name, _ in pairs]
    for name in names:
        if name not in NAMES:
            raise ValueError(
                f"there is no objective {name!r}; an objective is one of {', '.join(get_args(Metric))}, "
                f"then _ and one of {', '.join(get_args(Statistic))}, such as ttft_p99"
            )
        if names.count(name) > 1:
            raise ValueError(f"{name} is given more than once")
    return [{"metric": name.split("_")[0], "statistic": name.split("_")[1], "limit": limit} for name, limit in pairs]


Objectives = Annotated[
    tuple[Objective, ...],
    BeforeValidator(parse_objectives),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"enum": list(NAMES)},
            "additionalProperties": {"type": ["number", "string"]},
            "examples": [{"ttft_p99": "200ms", "tpot_p99": "20ms"}],
        }
    ),
]
