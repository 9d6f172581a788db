"""A Chrome trace as torch's profiler writes it, read event by event: it may be far larger than what we keep of it."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from bitbench.study.base import Json
from bitbench.util.errors import ProfileError

_CHUNK = 1 << 20
_EVENTS = '"traceEvents"'
_BETWEEN = " \t\r\n,"
_OPERATOR, _ANNOTATION, _MEMORY = "cpu_op", "user_annotation", "cpu_instant_event"
# Not yet run on a GPU.
_DEVICE, _DEVICE_ANNOTATION = ("kernel", "gpu_memcpy", "gpu_memset"), "gpu_user_annotation"


class Span(NamedTuple):
    """An operator or an annotation; times in microseconds of the trace's own clock."""

    thread: int
    start: float
    end: float
    name: str
    is_operator: bool
    correlation: int | None  # what device kernels that it launched are marked with


class MemoryChange(NamedTuple):
    thread: int
    at: float
    size: int  # bytes of host memory; negative where it was freed


class DeviceWork(NamedTuple):
    name: str
    correlation: int | None
    start: float
    duration: float


class DeviceMark(NamedTuple):
    """An annotation of the host, from the first to the last of the kernels that were launched within it."""

    name: str
    start: float
    end: float


class ChromeTrace(NamedTuple):
    spans: list[Span]
    memory: list[MemoryChange]
    device: list[DeviceWork]
    device_marks: list[DeviceMark]


def read_trace(path: Path) -> ChromeTrace:
    """What a profile needs of it; events that are damaged or of another kind are passed over."""
    trace = ChromeTrace([], [], [], [])
    with _opened(path) as file:
        try:
            for event in _events(file):
                _sort_in(event, trace)
        except (ValueError, EOFError, OSError) as error:
            raise ProfileError(
                f"{path.name} is not a complete trace of torch's profiler ({error}); profile again"
            ) from None
    return trace


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _events(file: IO[str]) -> Iterator[Json]:
    """The members of `traceEvents`, one after the other, with no more than a chunk in memory."""
    decoder, text, place = json.JSONDecoder(), _skip_to_events(file), 0
    while True:
        while place < len(text) and text[place] in _BETWEEN:
            place += 1
        if place < len(text) and text[place] == "]":
            return
        try:
            event, place = decoder.raw_decode(text, place)
        except ValueError:
            more = file.read(_CHUNK)
            if not more:
                raise ValueError("it ends in the middle of its events") from None
            text, place = text[place:] + more, 0
            continue
        yield event


def _skip_to_events(file: IO[str]) -> str:
    text = ""
    while more := file.read(_CHUNK):
        text += more
        place = text.find(_EVENTS)
        if place >= 0:
            opening = text.find("[", place)
            if opening >= 0:
                return text[opening + 1 :]
    raise ValueError("it has no traceEvents")


def _sort_in(event: Json, trace: ChromeTrace) -> None:
    if not isinstance(event, dict) or not isinstance(event.get("ts"), (int, float)):
        return
    kind, start, arguments = event.get("cat"), float(event["ts"]), event.get("args") or {}
    if kind in _DEVICE:
        work = DeviceWork(str(event.get("name")), arguments.get("External id"), start, float(event.get("dur") or 0.0))
        trace.device.append(work)
        return
    if kind == _DEVICE_ANNOTATION:
        trace.device_marks.append(DeviceMark(str(event.get("name")), start, start + float(event.get("dur") or 0.0)))
        return
    if not isinstance(event.get("tid"), int):
        return
    thread = event["tid"]
    if kind in (_OPERATOR, _ANNOTATION) and event.get("ph") == "X":
        end = start + float(event.get("dur") or 0.0)
        is_operator = kind == _OPERATOR
        trace.spans.append(Span(thread, start, end, str(event.get("name")), is_operator, arguments.get("External id")))
    elif kind == _MEMORY and arguments.get("Device Type") == 0:  # the host's
        trace.memory.append(MemoryChange(thread, start, int(arguments.get("Bytes") or 0)))
