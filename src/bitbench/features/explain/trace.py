"""Read a Chrome trace of torch's profiler, and divide its steps among operators and kernels.

vLLM marks every step in its trace with its content. `execute_context_1(128)_generation_0(0)` means
one prompt of 128 tokens and no running sequence. The transformers server uses the same marks.
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
_OPERATOR = "cpu_op"
_ANNOTATION = "user_annotation"
# Not yet run on a GPU.
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_DEVICE_ANNOTATION = "gpu_user_annotation"


class Span(NamedTuple):
    """An operator or an annotation, with times in microseconds of the trace's own clock."""

    thread: int
    start: float
    end: float
    name: str
    is_operator: bool
    correlation: int | None  # the mark of the device kernels that it launched


class DeviceWork(NamedTuple):
    """A kernel or a copy on the device, with times in microseconds."""

    name: str
    correlation: int | None
    start: float
    duration: float


class DeviceMark(NamedTuple):
    """An annotation of the host, from its first to its last kernel on the device."""

    name: str
    start: float
    end: float


class ChromeTrace(NamedTuple):
    """The events of a trace that a profile needs."""

    spans: list[Span]
    device: list[DeviceWork]
    device_marks: list[DeviceMark]


def read_trace(path: Path) -> ChromeTrace:
    """Return the operators, kernels and marks of a trace. Damaged and other events are skipped.

    Raise ProfileError if the file is incomplete.
    """
    trace = ChromeTrace([], [], [])
    with _open_text(path) as file:
        try:
            for event in _iter_events(file):
                _add_event(event, trace)
        except (ValueError, EOFError, OSError) as error:
            raise ProfileError(
                f"{path.name} is not a complete trace of torch's profiler ({error}); profile again"
            ) from None
    return trace


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _iter_events(file: IO[str]) -> Iterator[Json]:
    """Yield the members of `traceEvents` with no more than a chunk in memory."""
    decoder = json.JSONDecoder()
    text = _skip_to_events(file)
    position = 0
    while True:
        while position < len(text) and text[position] in _BETWEEN:
            position += 1
        if position < len(text) and text[position] == "]":
            return
        try:
            event, position = decoder.raw_decode(text, position)
        except ValueError:
            more = file.read(_CHUNK)
            if not more:
                raise ValueError("it ends in the middle of its events") from None
            text = text[position:] + more
            position = 0
            continue
        yield event


def _skip_to_events(file: IO[str]) -> str:
    text = ""
    while more := file.read(_CHUNK):
        text += more
        key = text.find(_EVENTS)
        opening = text.find("[", key)
        if key >= 0 and opening >= 0:
            return text[opening + 1 :]
    raise ValueError("it has no traceEvents")


def _add_event(event: Json, trace: ChromeTrace) -> None:
    """Append the event to its list in the trace. Skip events that a profile does not need."""
    if not isinstance(event, dict) or not isinstance(event.get("ts"), (int, float)):
        return
    kind = event.get("cat")
    name = str(event.get("name"))
    start = float(event["ts"])
    arguments = event.get("args") or {}
    if kind in _DEVICE:
        correlation = arguments.get("External id")
        duration = float(event.get("dur") or 0.0)
        trace.device.append(DeviceWork(name, correlation, start, duration))
    elif kind == _DEVICE_ANNOTATION:
        end = start + float(event.get("dur") or 0.0)
        trace.device_marks.append(DeviceMark(name, start, end))
    elif kind in (_OPERATOR, _ANNOTATION) and event.get("ph") == "X":
        thread = event.get("tid")
        if not isinstance(thread, int):
            return
        end = start + float(event.get("dur") or 0.0)
        correlation = arguments.get("External id")
        is_operator = kind == _OPERATOR
        trace.spans.append(Span(thread, start, end, name, is_operator, correlation))


_MARK = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_ARRIVING = 2  # full steps


class Step(NamedTuple):
    """A step from its own beginning to the next one's, in microseconds. No time is lost."""

    thread: int
    start: float
    end: float
    mark: str = ""  # the engine's name for it


class StepShape(NamedTuple):
    """A full step of a phase: how many sequences it holds, and how long their prompts are."""

    phase: Phase
    batch: int
    input_tokens: int

    def is_marked(self, name: str) -> bool:
        """Return True if a mark names a full step of this phase, with no sequence missing."""
        match = _MARK.fullmatch(name)
        if match is None:
            return False
        prompts, prompt_tokens, sequences, _ = map(int, match.groups())
        if self.phase is Phase.DECODE:
            return prompts == 0 and sequences == self.batch
        return (
            sequences == 0
            and prompts == self.batch
            and prompt_tokens == self.batch * self.input_tokens
        )


def list_steps(trace: ChromeTrace, shape: StepShape) -> list[Step]:
    """Return the full steps of a phase that another step with work follows at once.

    Raise ProfileError if none exist.
    """
    marks = [span for span in trace.spans if _MARK.fullmatch(span.name)]
    marks.sort(key=lambda span: span.start)
    steps = []
    for mark, following in itertools.pairwise(marks):
        same_thread = mark.thread == following.thread
        if shape.is_marked(mark.name) and _has_work(following) and same_thread:
            steps.append(Step(mark.thread, mark.start, following.start, mark.name))
    if not steps:
        names = sorted({mark.name for mark in marks})
        marked = ", ".join(names[:5]) or "none"
        raise ProfileError(
            f"the trace has no {shape.phase.value} step of {shape.batch} sequences that another "
            f"one follows (marks in it: {marked}); try a smaller batch or shorter prompts, which "
            "the engine does not split"
        )
    # The other prompts still arrive during the first steps. The client leaves them out, too.
    if shape.phase is Phase.PREFILL and len(steps) > _ARRIVING:
        return steps[_ARRIVING:]
    return steps


def _has_work(mark: Span) -> bool:
    """Return False for vLLM's empty step, which cleans up when no work is left, and then waits."""
    match = _MARK.fullmatch(mark.name)
    return match is not None and any(map(int, match.groups()))


def compute_prefill_seconds(first_tokens: Sequence[float], batch: int) -> tuple[float, ...]:
    """Return the seconds of each prefill step, from the arrival of first tokens.

    Prompts wait in line, and the tokens of a step arrive together. So one step passes between a
    token and the token `batch` positions later, wherever the steps begin. The first and last step
    are left out because they may be smaller. The second is left out because it may begin while
    prompts still arrive.
    """
    arrivals = sorted(first_tokens)[2 * batch - 1 : len(first_tokens) - batch]
    times = arrivals[::batch]
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


def compute_decode_seconds(streams: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the seconds of each decode step: the gaps of one stream while all streams decoded.

    The last one is left out. No step follows it in the trace, so the trace does not have its end.
    """
    start = max(arrivals[0] for arrivals in streams)
    end = min(arrivals[-1] for arrivals in streams)
    times = [arrival for arrival in streams[0] if start <= arrival <= end][:-1]
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


_MICROSECOND = 1e-6
# Share of the device's time in the steps. If operators explain less of it, graphs were replayed.
_EXPLAINED_SHARE = 0.9
_LONGEST_NAME = 160  # a kernel's template arguments may fill pages


def _list_graph_kernels(
    trace: ChromeTrace, steps: Sequence[Step], explained_s: float, table: GroupTable
) -> list[Operator]:
    """Return every kernel of these steps under its own name, the longest first.

    Return an empty list if operators explain the kernels' time (`explained_s`), or if the device
    has no marks of these steps.
    """
    marks = _list_marks(trace, steps)
    inside = [work for work in trace.device if _is_inside(work.start, marks)]
    all_s = _MICROSECOND * sum(work.duration for work in inside)
    if not inside or explained_s >= _EXPLAINED_SHARE * all_s:
        return []
    by_name: dict[str, list[DeviceWork]] = defaultdict(list)
    for work in inside:
        by_name[_truncate_name(work.name)].append(work)
    kernels = []
    for name, calls in by_name.items():
        kernel = Operator(
            name=name,
            group=table.group_of(calls[0].name)[0],
            calls=len(calls),
            self_cpu_s=0.0,
            self_cpu_share=0.0,
            cpu_total_s=0.0,
            self_device_s=_MICROSECOND * sum(work.duration for work in calls),
        )
        kernels.append(kernel)
    return sorted(kernels, key=lambda kernel: kernel.self_device_s or 0.0, reverse=True)


def _truncate_name(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 1]}…"


def _list_marks(trace: ChromeTrace, steps: Sequence[Step]) -> list[DeviceMark]:
    """Return the device's marks of the steps.

    There are at most as many as steps, the last ones, because the first steps may be left out.
    """
    names = {step.mark for step in steps}
    marks = [mark for mark in trace.device_marks if mark.name in names]
    marks.sort(key=lambda mark: mark.start)
    return marks[-len(steps) :]


def _is_inside(moment: float, spans: Sequence[DeviceMark | Step]) -> bool:
    """Return True if one of the spans, which are in order, contains this moment."""
    index = bisect_right(spans, moment, key=lambda span: span.start) - 1
    return index >= 0 and moment < spans[index].end


@dataclass
class _Sum:
    """The times of an operator in one group. The same operator may be a part of several groups."""

    calls: int = 0
    self_us: float = 0.0
    total_us: float = 0.0
    device_us: float = 0.0


@dataclass
class _Open:
    """An operator that has not ended yet, during the walk through a thread."""

    span: Span
    group: ProfileGroup
    owns: bool  # operators that it calls belong to its group
    children_us: float = 0.0


_Key = tuple[str, ProfileGroup]


def divide_traced_steps(
    trace: ChromeTrace, steps: Sequence[Step], table: GroupTable
) -> tuple[list[Operator], list[GroupTime]]:
    """Return the operators of these steps, and the groups of one step.

    With device kernels, a group's time is the time of its kernels. The rest of a step is time in
    which the device was idle (not yet run on a GPU). Without them, a group's time is the self time
    of its operators on the thread of the steps. A kernel belongs to the operator that launched it.
    A replayed CUDA graph has no operators, so its kernels are grouped by their own names.
    """
    step_s = _MICROSECOND * sum(step.end - step.start for step in steps) / len(steps)
    on_device = bool(trace.device)
    operators = _list_operators(_sum_operators(trace, steps, table), on_device)
    if on_device:
        operators = _add_graph_kernels(operators, trace, steps, table)
    seconds = dict.fromkeys(ProfileGroup, 0.0)
    calls = dict.fromkeys(ProfileGroup, 0)
    for operator in operators:
        self_s = operator.self_cpu_s
        if on_device:
            self_s = operator.self_device_s or 0.0
        seconds[operator.group] += self_s
        calls[operator.group] += operator.calls
    seconds[ProfileGroup.FRAMEWORK] += step_s * len(steps) - sum(seconds.values())
    groups = []
    for group in ProfileGroup:
        if calls[group] or group is ProfileGroup.FRAMEWORK:
            step_calls = calls[group] / len(steps)
            step_seconds = seconds[group] / len(steps)
            groups.append(GroupTime(group=group, step_s=step_seconds, calls=step_calls))
    return operators, groups


def _add_graph_kernels(
    operators: list[Operator], trace: ChromeTrace, steps: Sequence[Step], table: GroupTable
) -> list[Operator]:
    """Put the kernels of replayed graphs before the operators, if there are any.

    The kernels then hold all device time, so the operators keep none.
    """
    explained_s = sum(operator.self_device_s or 0.0 for operator in operators)
    kernels = _list_graph_kernels(trace, steps, explained_s, table)
    if not kernels:
        return operators
    for operator in operators:
        kernels.append(operator.model_copy(update={"self_device_s": 0.0}))
    return kernels


def _sum_operators(
    trace: ChromeTrace, steps: Sequence[Step], table: GroupTable
) -> dict[_Key, _Sum]:
    """Add up the operators of the steps by name and group."""
    sums: dict[_Key, _Sum] = defaultdict(_Sum)
    device_us = _sum_device_times(trace)
    for thread in {step.thread for step in steps}:
        thread_steps = [step for step in steps if step.thread == thread]
        thread_steps.sort(key=lambda step: step.start)
        for ended in _walk_operators(trace, thread, table):
            if not _is_inside(ended.span.start, thread_steps):
                continue
            total_us = ended.span.end - ended.span.start
            entry = sums[ended.span.name, ended.group]
            entry.calls += 1
            entry.total_us += total_us
            entry.self_us += total_us - ended.children_us
            if ended.span.correlation is not None:
                entry.device_us += device_us.get(ended.span.correlation, 0.0)
    return sums


def _sum_device_times(trace: ChromeTrace) -> dict[int, float]:
    """Return the microseconds of device kernels by correlation."""
    times: dict[int, float] = defaultdict(float)
    for work in trace.device:
        if work.correlation is not None:
            times[work.correlation] += work.duration
    return times


def _walk_operators(trace: ChromeTrace, thread: int, table: GroupTable) -> Iterator[_Open]:
    """Yield the operators of a thread as they end.

    They nest: an operator that begins within another was called by it.
    """
    spans = [span for span in trace.spans if span.thread == thread and span.is_operator]
    spans.sort(key=lambda span: (span.start, -span.end))
    stack: list[_Open] = []

    def ended_by(moment: float) -> Iterator[_Open]:
        while stack and stack[-1].span.end <= moment:
            ended = stack.pop()
            if stack:
                stack[-1].children_us += ended.span.end - ended.span.start
            yield ended

    for span in spans:
        yield from ended_by(span.start)
        end = span.end
        if stack:
            end = min(end, stack[-1].span.end)  # a call cannot outlive its caller
        if stack and stack[-1].owns:
            group = stack[-1].group
            owns = True
        else:
            group, owns = table.group_of(span.name)
        stack.append(_Open(span._replace(end=end), group, owns))
    yield from ended_by(float("inf"))


def _list_operators(sums: dict[_Key, _Sum], on_device: bool) -> list[Operator]:
    """Return the operators with the longest self time on the CPU first."""
    all_self_us = sum(entry.self_us for entry in sums.values()) or 1.0
    operators = []
    for (name, group), entry in sorted(sums.items(), key=lambda item: -item[1].self_us):
        device_s = entry.device_us * _MICROSECOND if on_device else None
        operator = Operator(
            name=name,
            group=group,
            calls=entry.calls,
            self_cpu_s=entry.self_us * _MICROSECOND,
            self_cpu_share=entry.self_us / all_self_us,
            cpu_total_s=entry.total_us * _MICROSECOND,
            self_device_s=device_s,
        )
        operators.append(operator)
    return operators
