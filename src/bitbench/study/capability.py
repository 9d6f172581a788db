"""What an NVIDIA GPU can compute, as CUDA numbers it: 7.5 is Turing, 8.0 and 8.6 Ampere, 8.9 Ada, 9.0 Hopper, 10.0 and
12.0 Blackwell."""

import re
from typing import NamedTuple

_VERSION = r"(\d{1,2})\.(\d)"
_RANGE = re.compile(rf"(?:>={_VERSION})? ?(?:<{_VERSION})?")


class Capability(NamedTuple):
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_LEAST, _MOST = Capability(0, 0), Capability(100, 0)


class CapabilityRange(NamedTuple):
    """Half open: `>=8.9 <10.0` holds for 8.9 and 9.0."""

    least: Capability
    below: Capability

    def __contains__(self, capability: object) -> bool:
        return isinstance(capability, tuple) and self.least <= capability < self.below

    def overlaps(self, other: "CapabilityRange") -> bool:
        return self.least < other.below and other.least < self.below

    def __str__(self) -> str:
        """For a table: `from 8.9`, `below 8.0`, `7.5 to below 8.9`."""
        if self.below == _MOST:
            return f"from {self.least}"
        return f"below {self.below}" if self.least == _LEAST else f"{self.least} to below {self.below}"


def parse_capability(text: str) -> Capability:
    """`8.9`; raises ValueError."""
    found = re.fullmatch(_VERSION, text)
    if found is None:
        raise ValueError(f"{text!r} is not a compute capability; write it as 8.9")
    return Capability(int(found[1]), int(found[2]))


def parse_range(text: str) -> CapabilityRange:
    """`>=8.9`, `<8.0` or `>=8.0 <8.9`; raises ValueError."""
    found = _RANGE.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text!r} is not a range of compute capabilities; write >=8.9, <8.0 or >=8.0 <8.9")
    least = Capability(int(found[1]), int(found[2])) if found[1] else _LEAST
    below = Capability(int(found[3]), int(found[4])) if found[3] else _MOST
    if least >= below:
        raise ValueError(f"{text!r} holds for no compute capability")
    return CapabilityRange(least, below)
