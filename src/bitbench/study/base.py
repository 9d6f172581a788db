"""The two kinds of frozen types: what a person writes, and what bitbench records."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from bitbench.util.units import (
    BY_HAND,
    parse_bytes,
    parse_fraction,
    parse_seconds,
    written_bytes,
    written_seconds,
    written_value,
)

# A context of validation: bitbench wrote it, perhaps with features that are not installed here.
RECORDED = {"written": "by bitbench"}
Json = Any  # whatever json.loads returns; the shape is the other side's business


class Spec(BaseModel):
    """Written by a person: a field we do not know is a mistake to be named, not ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        str_strip_whitespace=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_unknown(cls, value: object, info: ValidationInfo) -> object:
        """In records of another version of bitbench an unknown field is no mistake."""
        if (
            info.context is not RECORDED
            or not isinstance(value, dict)
            or cls.model_config["extra"] == "allow"
        ):
            return value
        return {name: content for name, content in value.items() if name in cls.model_fields}


class Record(BaseModel):
    """Written by bitbench, perhaps by a newer one: unknown fields are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


T = TypeVar("T", int, float)


def _reading(parse: Callable[[object], T]) -> BeforeValidator:
    """A number in a file that a person wrote is judged like a text: it may need a unit."""

    def read(value: object, info: ValidationInfo) -> T:
        return parse(written_value(value) if info.context is BY_HAND else value)

    return BeforeValidator(read)


def _writing(write: Callable[[T], str]) -> PlainSerializer:
    """A number in records, with its unit in a file for people."""

    def written(value: T, info: SerializationInfo) -> T | str:
        return write(value) if info.context is BY_HAND else value

    return PlainSerializer(written)


def _quantity(description: str, examples: list[str]) -> WithJsonSchema:
    """With a unit; zero needs none."""
    return WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"const": 0}],
            "description": description,
            "examples": examples,
        },
        mode="validation",
    )


Seconds = Annotated[
    float,
    _reading(parse_seconds),
    _writing(written_seconds),
    _quantity("a duration with its unit", ["250ms", "30s", "10m"]),
    WithJsonSchema({"type": "number", "description": "seconds"}, mode="serialization"),
]
Bytes = Annotated[
    int,
    _reading(parse_bytes),
    _writing(written_bytes),
    _quantity("a size with its unit", ["500MB", "4GiB"]),
    WithJsonSchema({"type": "integer", "description": "bytes"}, mode="serialization"),
]
Fraction = Annotated[
    float,
    _reading(parse_fraction),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}],
            "description": "a share",
            "examples": ["2%", "0.02"],
        },
        mode="validation",
    ),
]
