"""What a study uses beyond measuring: where it sends, what it reads, what it tells a program."""

from dataclasses import dataclass
from enum import StrEnum


class UseKind(StrEnum):
    URL = "URL"
    FILE = "file"
    VARIABLE = "variable"
    ARGUMENT = "argument"


@dataclass(frozen=True)
class Use:
    """`asks`: a person must allow it before a study from elsewhere runs."""

    kind: UseKind
    what: str  # the URL, the path, NAME or NAME=VALUE
    purpose: str  # what becomes of it: "its text is sent to the engines"
    asks: bool
