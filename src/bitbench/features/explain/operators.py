"""Self times: what each operator took without the operators it called, inside the steps that count."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bitbench.analysis.operator_groups import GroupTable
from bitbench.features.explain.device_kernels import graph_kernels
from bitbench.features.explain.steps import Step
from bitbench.features.explain.trace import ChromeTrace, MemoryChange, Span
from bitbench.records.profile import GroupTime, Operator, ProfileGroup

_MICROSECOND = 1e-6


@dataclass
class _Sum:
    """One operator within one group: the same name may serve attention here and be a plain copy there."""

    calls: int = 0
    self_us: float = 0.0
    total_us: float = 0.0
    device_us: float = 0.0
    memory: int = 0


@dataclass
class _Open:
    """An operator whose end has not come yet, while a thread is walked through."""

    span: Span
    group: ProfileGroup
    owns: bool  # what it calls belongs to its group
    children_us: float = 0.0
    memory: int = 0


_Key = tuple[str, ProfileGroup]


def divide(
    trace: ChromeTrace, steps: Sequence[Step], table: GroupTable
) -> tuple[list[Operator], list[GroupTime], float]:
    """The operators of these steps, the groups of one step, and the mean length of a step in seconds.

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
        kernels := graph_kernels(trace, steps, sum(operator.self_device_s or 0.0 for operator in operators), table)
    ):
        operators = [*kernels, *(operator.model_copy(update={"self_device_s": 0.0}) for operator in operators)]
    seconds = dict.fromkeys(ProfileGroup, 0.0)
    calls = dict.fromkeys(ProfileGroup, 0)
    for operator in operators:
        seconds[operator.group] += (operator.self_device_s or 0.0) if on_device else operator.self_cpu_s
        calls[operator.group] += operator.calls
    seconds[ProfileGroup.FRAMEWORK] += step_s * len(steps) - sum(seconds.values())
    groups = [
        GroupTime(group=group, step_s=seconds[group] / len(steps), calls=calls[group] / len(steps))
        for group in ProfileGroup
        if calls[group] or group is ProfileGroup.FRAMEWORK
    ]
    return operators, groups, step_s


def _sums(trace: ChromeTrace, steps: Sequence[Step], table: GroupTable) -> dict[_Key, _Sum]:
    sums: dict[_Key, _Sum] = defaultdict(_Sum)
    device = _device_times(trace)
    for thread in {step.thread for step in steps}:
        inside = _Inside([step for step in steps if step.thread == thread])
        for ended in _walk(trace, thread, table):
            if not inside.has(ended.span.start):
                continue
            total = ended.span.end - ended.span.start
            entry = sums[ended.span.name, ended.group]
            entry.calls += 1
            entry.total_us += total
            entry.self_us += total - ended.children_us
            entry.memory += ended.memory
            if ended.span.correlation is not None:
                entry.device_us += device.get(ended.span.correlation, 0.0)
    return sums


class _Inside:
    """Whether a moment lies in one of the steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = sorted(steps, key=lambda step: step.start)
        self._starts = [step.start for step in self._steps]

    def has(self, moment: float) -> bool:
        place = bisect_right(self._starts, moment) - 1
        return place >= 0 and moment < self._steps[place].end


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
    changes = sorted((change for change in trace.memory if change.thread == thread), key=lambda change: change.at)
    memory = iter(changes)
    change = next(memory, None)
    stack: list[_Open] = []

    def ended_by(moment: float) -> Iterator[_Open]:
        nonlocal change
        while stack and stack[-1].span.end <= moment:
            change = _take_memory(stack, memory, change, stack[-1].span.end)
            ended = stack.pop()
            if stack:
                stack[-1].children_us += ended.span.end - ended.span.start
            yield ended
        change = _take_memory(stack, memory, change, moment)

    for span in spans:
        yield from ended_by(span.start)
        end = min(span.end, stack[-1].span.end) if stack else span.end  # a call cannot outlive its caller
        if stack and stack[-1].owns:
            group, owns = stack[-1].group, True
        else:
            group, owns = table.group_of(span.name)
        stack.append(_Open(span._replace(end=end), group, owns))
    yield from ended_by(float("inf"))


def _take_memory(
    stack: list[_Open], memory: Iterator[MemoryChange], change: MemoryChange | None, until: float
) -> MemoryChange | None:
    """Gives what was allocated up to a moment to the innermost operator; returns the next change."""
    while change is not None and change.at <= until:
        if stack:
            stack[-1].memory += change.size
        change = next(memory, None)
    return change


def _operators(sums: dict[_Key, _Sum], on_device: bool) -> list[Operator]:
    all_self = sum(entry.self_us for entry in sums.values()) or 1.0
    has_memory = any(entry.memory for entry in sums.values())
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
            self_memory_bytes=entry.memory if has_memory else None,
        )
        for (name, group), entry in ordered
    ]
