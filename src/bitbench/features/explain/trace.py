"""A Chrome trace as torch's profiler writes it: its steps, and what each operator or kernel took of them by itself.

vLLM marks every step in its trace with what it computes, such as `execute_context_1(128)_generation_0(0)`: one prompt
of 128 tokens and no running sequence. The transformers server marks its steps alike.
"""

import gzip
import itertools
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from bitbench.analysis.roofline import GroupTable
from bitbench.records.profile import GroupTime, Operator, Phase, ProfileGroup
from bitbench.study.base import Json
from bitbench.util.errors import ProfileError

_CHUNK = 1 << 20
_EVENTS = '"traceEvents"'
_BETWEEN = " \t\r\n,"
_OPERATOR, _ANNOTATION = "cpu_op", "user_annotation"
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
    device: list[DeviceWork]
    device_marks: list[DeviceMark]


def read_trace(path: Path) -> ChromeTrace:
    """What a profile needs of it; events that are damaged or of another kind are passed over."""
    trace = ChromeTrace([], [], [])
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8") as file
    ):
        try:
            for event in _events(file):
                _sort_in(event, trace)
        except (ValueError, EOFError, OSError) as error:
            raise ProfileError(
                f"{path.name} is not a complete trace of torch's profiler ({error}); profile again"
            ) from None
    return trace


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
        work = DeviceWork(
            str(event.get("name")),
            arguments.get("External id"),
            start,
            float(event.get("dur") or 0.0),
        )
        trace.device.append(work)
        return
    if kind == _DEVICE_ANNOTATION:
        trace.device_marks.append(
            DeviceMark(str(event.get("name")), start, start + float(event.get("dur") or 0.0))
        )
        return
    if not isinstance(event.get("tid"), int):
        return
    thread = event["tid"]
    if kind in (_OPERATOR, _ANNOTATION) and event.get("ph") == "X":
        end = start + float(event.get("dur") or 0.0)
        is_operator = kind == _OPERATOR
        trace.spans.append(
            Span(
                thread,
                start,
                end,
                str(event.get("name")),
                is_operator,
                arguments.get("External id"),
            )
        )


_MARK = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_ARRIVING = 2  # full steps


class Step(NamedTuple):
    """From its own beginning to that of the next step, in microseconds: nothing between two steps is lost."""

    thread: int
    start: float
    end: float
    mark: str = ""  # what the engine calls it


class StepShape(NamedTuple):
    phase: Phase
    batch: int
    input_tokens: int

    def is_marked(self, name: str) -> bool:
        """Whether a mark is that of a full step of this phase, and not one in which some sequences are missing."""
        found = _MARK.fullmatch(name)
        if found is None:
            return False
        prompts, prompt_tokens, sequences, _ = map(int, found.groups())
        if self.phase is Phase.DECODE:
            return prompts == 0 and sequences == self.batch
        return (
            sequences == 0
            and prompts == self.batch
            and prompt_tokens == self.batch * self.input_tokens
        )


def steps_in_trace(trace: ChromeTrace, shape: StepShape) -> list[Step]:
    """The full steps of a phase that another step of work followed at once."""
    marks = sorted(
        (span for span in trace.spans if _MARK.fullmatch(span.name)), key=lambda span: span.start
    )
    steps = [
        Step(mark.thread, mark.start, following.start, mark.name)
        for mark, following in itertools.pairwise(marks)
        if shape.is_marked(mark.name) and _does_work(following) and mark.thread == following.thread
    ]
    if not steps:
        seen = ", ".join(sorted({mark.name for mark in marks})[:5]) or "none"
        raise ProfileError(
            f"the trace has no {shape.phase.value} step of {shape.batch} sequences that another one follows "
            f"(marks in it: {seen}); try a smaller batch or shorter prompts, which the engine does not split"
        )
    # While the first ones are computed the other prompts are still arriving; the client leaves them out as well.
    return steps[_ARRIVING:] if shape.phase is Phase.PREFILL and len(steps) > _ARRIVING else steps


def _does_work(mark: Span) -> bool:
    """vLLM makes an empty step to clear up when nothing is left to do, and then waits."""
    found = _MARK.fullmatch(mark.name)
    return found is not None and any(int(count) for count in found.groups())


def prefill_seconds_beside_trace(first_tokens: Sequence[float], batch: int) -> tuple[float, ...]:
    """From the arrival of first tokens when prompts wait in line: one step for each `batch` of them.

    Tokens of a step arrive together, so from a token to the one `batch` places later is one step, wherever the steps
    begin. The first and the last step may be smaller, and the second may begin while prompts still arrive: left out.
    """
    arrivals = sorted(first_tokens)[2 * batch - 1 : len(first_tokens) - batch]
    times = arrivals[::batch]
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


def decode_seconds_beside_trace(streams: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """From the arrival of tokens in each stream: the gaps of one stream while all of them were decoding.

    Without the last: in the trace no step follows it, so its end is not known there.
    """
    begun, ended = max(times[0] for times in streams), min(times[-1] for times in streams)
    times = [at for at in streams[0] if begun <= at <= ended][:-1]
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


_MICROSECOND = 1e-6
# Of the device's time in the steps; where operators explain less of it, graphs were replayed.
_EXPLAINED_SHARE = 0.9
_LONGEST_NAME = 160  # a kernel's template arguments may fill pages


def _graph_kernels(
    trace: ChromeTrace, steps: Sequence[Step], explained_s: float, table: GroupTable
) -> list[Operator]:
    """Every kernel of these steps under its own name, the longest first; empty where operators explain them
    (`explained_s`), or the device has no marks of these steps."""
    marks = _marks_of(trace, steps)
    inside = [work for work in trace.device if _is_inside(work.start, marks)]
    all_s = _MICROSECOND * sum(work.duration for work in inside)
    if not inside or explained_s >= _EXPLAINED_SHARE * all_s:
        return []
    named: dict[str, list[DeviceWork]] = defaultdict(list)
    for work in inside:
        is_long = len(work.name) > _LONGEST_NAME
        named[f"{work.name[: _LONGEST_NAME - 1]}…" if is_long else work.name].append(work)
    kernels = [
        Operator(
            name=name,
            group=table.group_of(same[0].name)[0],
            calls=len(same),
            self_cpu_s=0.0,
            self_cpu_share=0.0,
            cpu_total_s=0.0,
            self_device_s=_MICROSECOND * sum(work.duration for work in same),
        )
        for name, same in named.items()
    ]
    return sorted(kernels, key=lambda kernel: kernel.self_device_s or 0.0, reverse=True)


def _marks_of(trace: ChromeTrace, steps: Sequence[Step]) -> list[DeviceMark]:
    """The device's side of the steps: as many of their names, the last ones, since the first may be left out."""
    names = {step.mark for step in steps}
    marks = sorted(
        (mark for mark in trace.device_marks if mark.name in names), key=lambda mark: mark.start
    )
    return marks[-len(steps) :]


def _is_inside(moment: float, spans: Sequence[DeviceMark | Step]) -> bool:
    """`spans`: one after the other."""
    place = bisect_right(spans, moment, key=lambda span: span.start) - 1
    return place >= 0 and moment < spans[place].end


@dataclass
class _Sum:
    """One operator within one group: the same name may serve attention here and be a plain copy there."""

    calls: int = 0
    self_us: float = 0.0
    total_us: float = 0.0
    device_us: float = 0.0


@dataclass
class _Open:
    """An operator whose end has not come yet, while a thread is walked through."""

    span: Span
    group: ProfileGroup
    owns: bool  # what it calls belongs to its group
    children_us: float = 0.0


_Key = tuple[str, ProfileGroup]


def divide_traced_steps(
    trace: ChromeTrace, steps: Sequence[Step], table: GroupTable
) -> tuple[list[Operator], list[GroupTime]]:
    """The operators of these steps, and the groups of one step.

    Where device kernels were recorded a group's time is theirs, and the rest of a step is time in which the device
    had nothing to do (not yet run on a GPU); otherwise it is the operators' self time on the thread of the steps.
    Kernels belong to the operator that launched them, but for those of a CUDA graph: within a replay there is no
    operator, and kernels are grouped by their own names.
    """
    sums = _sums(trace, steps, table)
    step_s = _MICROSECOND * sum(step.end - step.start for step in steps) / len(steps)
    on_device = bool(trace.device)
    operators = _operators(sums, on_device)
    if on_device and (
        kernels := _graph_kernels(
            trace, steps, sum(operator.self_device_s or 0.0 for operator in operators), table
        )
    ):
        operators = [
            *kernels,
            *(operator.model_copy(update={"self_device_s": 0.0}) for operator in operators),
        ]
    seconds = dict.fromkeys(ProfileGroup, 0.0)
    calls = dict.fromkeys(ProfileGroup, 0)
    for operator in operators:
        seconds[operator.group] += (
            (operator.self_device_s or 0.0) if on_device else operator.self_cpu_s
        )
        calls[operator.group] += operator.calls
    seconds[ProfileGroup.FRAMEWORK] += step_s * len(steps) - sum(seconds.values())
    groups = [
        GroupTime(group=group, step_s=seconds[group] / len(steps), calls=calls[group] / len(steps))
        for group in ProfileGroup
        if calls[group] or group is ProfileGroup.FRAMEWORK
    ]
    return operators, groups


def _sums(trace: ChromeTrace, steps: Sequence[Step], table: GroupTable) -> dict[_Key, _Sum]:
    sums: dict[_Key, _Sum] = defaultdict(_Sum)
    device = _device_times(trace)
    for thread in {step.thread for step in steps}:
        own = sorted((step for step in steps if step.thread == thread), key=lambda step: step.start)
        for ended in _walk(trace, thread, table):
            if not _is_inside(ended.span.start, own):
                continue
            total = ended.span.end - ended.span.start
            entry = sums[ended.span.name, ended.group]
            entry.calls += 1
            entry.total_us += total
            entry.self_us += total - ended.children_us
            if ended.span.correlation is not None:
                entry.device_us += device.get(ended.span.correlation, 0.0)
    return sums


def _device_times(trace: ChromeTrace) -> dict[int, float]:
    times: dict[int, float] = defaultdict(float)
    for work in trace.device:
        if work.correlation is not None:
            times[work.correlation] += work.duration
    return times


def _walk(trace: ChromeTrace, thread: int, table: GroupTable) -> Iterator[_Open]:
    """Operators of a thread as they end. They nest: one that begins within another was called by it."""
    spans = sorted(
        (span for span in trace.spans if span.thread == thread and span.is_operator),
        key=lambda span: (span.start, -span.end),
    )
    stack: list[_Open] = []

    def ended_by(moment: float) -> Iterator[_Open]:
        while stack and stack[-1].span.end <= moment:
            ended = stack.pop()
            if stack:
                stack[-1].children_us += ended.span.end - ended.span.start
            yield ended

    for span in spans:
        yield from ended_by(span.start)
        end = (
            min(span.end, stack[-1].span.end) if stack else span.end
        )  # a call cannot outlive its caller
        if stack and stack[-1].owns:
            group, owns = stack[-1].group, True
        else:
            group, owns = table.group_of(span.name)
        stack.append(_Open(span._replace(end=end), group, owns))
    yield from ended_by(float("inf"))


def _operators(sums: dict[_Key, _Sum], on_device: bool) -> list[Operator]:
    all_self = sum(entry.self_us for entry in sums.values()) or 1.0
    ordered = sorted(sums.items(), key=lambda item: item[1].self_us, reverse=True)
    return [
        Operator(
            name=name,
            group=group,
            calls=entry.calls,
            self_cpu_s=entry.self_us * _MICROSECOND,
            self_cpu_share=entry.self_us / all_self,
            cpu_total_s=entry.total_us * _MICROSECOND,
            self_device_s=entry.device_us * _MICROSECOND if on_device else None,
        )
        for (name, group), entry in ordered
    ]
