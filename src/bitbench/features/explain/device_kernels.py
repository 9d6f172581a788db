"""Kernels of CUDA graphs, by their own names: a replay is one launch, and no operator stands behind its kernels.
*Not yet run on a GPU.*"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from bitbench.analysis.operator_groups import GroupTable
from bitbench.features.explain.steps import Step
from bitbench.features.explain.trace import ChromeTrace, DeviceMark, DeviceWork
from bitbench.records.profile import Operator

_MICROSECOND = 1e-6
# Of the device's time in the steps; where operators explain less of it, graphs were replayed.
_EXPLAINED_SHARE = 0.9
_LONGEST_NAME = 160  # a kernel's template arguments may fill pages


def graph_kernels(trace: ChromeTrace, steps: Sequence[Step], explained_s: float, table: GroupTable) -> list[Operator]:
    """Every kernel of these steps under its own name, the longest first; empty where operators explain them
    (`explained_s`), or the device has no marks of these steps."""
    marks = _marks_of(trace, steps)
    inside = [work for work in trace.device if _is_inside(work, marks)]
    all_s = _MICROSECOND * sum(work.duration for work in inside)
    if not inside or explained_s >= _EXPLAINED_SHARE * all_s:
        return []
    named: dict[str, list[DeviceWork]] = defaultdict(list)
    for work in inside:
        named[_shortened(work.name)].append(work)
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
    marks = sorted((mark for mark in trace.device_marks if mark.name in names), key=lambda mark: mark.start)
    return marks[-len(steps) :]


def _is_inside(work: DeviceWork, marks: Sequence[DeviceMark]) -> bool:
    place = bisect_right(marks, work.start, key=lambda mark: mark.start) - 1
    return place >= 0 and work.start < marks[place].end


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
