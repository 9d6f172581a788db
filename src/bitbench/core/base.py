"""The two kinds of frozen types: what a person writes, and what bitbench records."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from bitbench.ground.units import parse_bytes, parse_fraction, parse_seconds

Json = Any  # whatever json.loads returns; the shape is the other side's business


class Spec(BaseModel):
    """Written by a person: a field we do not know is a mistake to be named, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)


class Record(BaseModel):
    """Written by bitbench, perhaps by a newer one: unknown fields are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def _quantity(description: str, examples: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": ["number", "string"], "description": description, "examples": examples})


Seconds = Annotated[float, BeforeValidator(parse_seconds), _quantity("a duration, or seconds", ["250ms", "30s", "10m"])]
Bytes = Annotated[int, BeforeValidator(parse_bytes), _quantity("a size, or bytes", ["500MB", "4GiB"])]
Fraction = Annotated[float, BeforeValidator(parse_fraction), _quantity("a share", ["2%", "0.02"])]
