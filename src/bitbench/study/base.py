"""The two kinds of frozen models: specs that a person writes, and records that bitbench writes."""

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
    format_exact_bytes,
    format_exact_seconds,
    format_number_text,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)

# The validation context of records: bitbench wrote them, perhaps with features that are not
# installed here.
RECORDED = {"written": "by bitbench"}
Json = Any  # the result of json.loads, whose shape the other side decides


class Spec(BaseModel):
    """A part of a file that a person writes. An unknown field is an error, not ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        str_strip_whitespace=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown(cls, value: object, info: ValidationInfo) -> object:
        """Drop unknown fields in records, which another version of bitbench may have written."""
        if (
            info.context is not RECORDED
            or not isinstance(value, dict)
            or cls.model_config["extra"] == "allow"
        ):
            return value
        return {name: content for name, content in value.items() if name in cls.model_fields}


class Record(BaseModel):
    """A part of a file that bitbench writes. Unknown fields are ignored, since it may be newer."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


T = TypeVar("T", int, float)


def _make_reader(parse: Callable[[object], T]) -> BeforeValidator:
    """Make a validator that treats a number in a person's file as text, so that it needs a unit."""

    def read(value: object, info: ValidationInfo) -> T:
        if info.context is BY_HAND:
            value = format_number_text(value)
        return parse(value)

    return BeforeValidator(read)


def _make_writer(format_value: Callable[[T], str]) -> PlainSerializer:
    """Make a serializer that writes a number in records, and a text with its unit for people."""

    def write(value: T, info: SerializationInfo) -> T | str:
        if info.context is BY_HAND:
            return format_value(value)
        return value

    return PlainSerializer(write)


def _describe_quantity(description: str, examples: list[str]) -> WithJsonSchema:
    """Return the schema of a quantity with a unit. Zero needs none."""
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
    _make_reader(parse_seconds),
    _make_writer(format_exact_seconds),
    _describe_quantity("a duration with its unit", ["250ms", "30s", "10m"]),
    WithJsonSchema({"type": "number", "description": "seconds"}, mode="serialization"),
]
Bytes = Annotated[
    int,
    _make_reader(parse_bytes),
    _make_writer(format_exact_bytes),
    _describe_quantity("a size with its unit", ["500MB", "4GiB"]),
    WithJsonSchema({"type": "integer", "description": "bytes"}, mode="serialization"),
]
Fraction = Annotated[
    float,
    _make_reader(parse_fraction),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}],
            "description": "a share",
            "examples": ["2%", "0.02"],
        },
        mode="validation",
    ),
]
