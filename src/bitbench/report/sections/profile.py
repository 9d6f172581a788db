"""Operator profiles in Markdown: what a step consists of, and the table of operators behind it."""

from collections.abc import Sequence

from bitbench.core.recorded.profile import Operator, OperatorProfile, ProfileGroup, StepTimes
from bitbench.ground.units import UNKNOWN, show_bytes, show_percent, show_seconds, significant
from bitbench.report.document.text import code, escape, table

GROUP_NAMES = {
    ProfileGroup.QUANTIZED_MATMUL: "quantized matmul",
    ProfileGroup.DENSE_MATMUL: "dense matmul",
    ProfileGroup.ATTENTION: "attention and KV cache",
    ProfileGroup.NORM_ACTIVATION: "normalisation, activation",
    ProfileGroup.COPIES_CASTS: "copies and casts",
    ProfileGroup.SAMPLING: "sampling",
    ProfileGroup.OTHER: "other operators",
    ProfileGroup.FRAMEWORK: "framework overhead",
    ProfileGroup.FIRST_CALL: "first call",
}
# The sum of the groups and the step time that the client measured are from two clocks; further apart than this, one of
# them did not see what the other saw, and the reader is told.
ALLOWED_GAP = 0.05
OPERATORS_IN_REPORT = 8


def profile_markdown(profiles: Sequence[OperatorProfile], limit: int | None = None) -> str:
    """Every profile with its groups and its operators; `limit`: no more than so many of these."""
    return "\n\n".join(part for one in profiles for part in _one(one, limit)) + "\n" if profiles else ""


def profile_section(profiles: Sequence[OperatorProfile]) -> str:
    """For the report of a study: the groups of all profiles side by side, then the longest operators of each."""
    if not profiles:
        return ""
    parts = ["## Where the time of a step goes", _explanation(), _side_by_side(profiles)]
    parts += [part for one in profiles for part in _one(one, OPERATORS_IN_REPORT)]
    return "\n\n".join(parts)


def _explanation() -> str:
    return (
        "From torch's profiler, in instances of their own and after warm-up. A step is one forward pass with all that "
        "belongs to it until the next one begins; its groups are means over the profiled steps, and add up to it. "
        "*Framework overhead* is what is in no operator that computes or moves data: Python, scheduling, views, "
        "allocation. *First call* is what the very first step took beyond a usual one; no other figure contains it."
    )


def _side_by_side(profiles: Sequence[OperatorProfile]) -> str:
    groups = [group for group in ProfileGroup if any(one.group_s(group) is not None for one in profiles)]
    header = [
        "Contender",
        "Batch",
        "Phase",
        "Step, profiler off (ms)",
        "on (ms)",
        *(f"{GROUP_NAMES[group]} (ms)" for group in groups),
    ]
    header += ["Sum / measured", "Profiler's cost"]
    rows = [
        [
            code(one.contender.name),
            str(one.batch),
            one.phase.value,
            _milliseconds(one.unprofiled.median_s),
            _milliseconds(one.profiled.mean_s),
            *(_milliseconds(one.group_s(group)) for group in groups),
            show_percent(1 + one.agreement),
            _cost(one),
        ]
        for one in profiles
    ]
    return table(header, rows, left=(0, 2))


def _one(profile: OperatorProfile, limit: int | None) -> list[str]:
    title = f"### {code(profile.contender.name)}, batch {profile.batch}, {profile.phase.value}"
    return [title, _facts(profile), _groups(profile), _operators(profile, limit)]


def _facts(profile: OperatorProfile) -> str:
    lines = [
        f"- median step [10 %, 90 %] with the profiler off {_times(profile.unprofiled)}, "
        f"on {_times(profile.profiled)}: the profiler costs {_cost(profile)}",
        f"- {profile.steps} profiled steps at {profile.context_tokens:,} tokens of context; their groups sum to "
        f"{show_seconds(profile.groups_s)}, {show_percent(1 + profile.agreement)} of the step that the client measured",
    ]
    if abs(profile.agreement) > ALLOWED_GAP:
        lines.append(
            f"- **the two differ by more than {show_percent(ALLOWED_GAP)}: the trace and the client did not see the "
            "same steps, or the machine was busy; profile again before relying on it**"
        )
    if profile.first_step_s is not None:
        said = profile.facts.compile_s
        compiled = "" if said is None else f"; the engine compiled for {show_seconds(said)} before it was ready"
        lines.append(f"- the first step took {show_seconds(profile.first_step_s)}{compiled}")
    if profile.trace_file is not None:
        lines.append(f"- trace, for chrome://tracing or Perfetto: {code(profile.trace_file)}")
    return "\n".join(lines)


def _groups(profile: OperatorProfile) -> str:
    whole = profile.groups_s
    rows = [
        [
            GROUP_NAMES[one.group],
            _milliseconds(one.step_s),
            UNKNOWN if one.group is ProfileGroup.FIRST_CALL else show_percent(one.step_s / whole),
            f"{one.calls:,.0f}" if one.calls else UNKNOWN,
        ]
        for one in profile.groups
    ]
    return table(["Group", "ms per step", "Share", "Calls per step"], rows)


def _operators(profile: OperatorProfile, limit: int | None) -> str:
    """The columns of torch's own table, over all profiled steps."""
    header = ["Name", "Group", "Self CPU %", "Self CPU", "CPU total", "CPU time avg", "Self device", "Self CPU Mem"]
    shown = profile.operators if limit is None else profile.operators[:limit]
    rows = [[code(one.name), GROUP_NAMES[one.group], *_figures(one)] for one in shown]
    left_out = profile.operators[len(shown) :]
    if left_out:
        share, seconds = sum(one.self_cpu_share for one in left_out), sum(one.self_cpu_s for one in left_out)
        rest = [show_percent(share), show_seconds(seconds), *[UNKNOWN] * 4, f"{sum(one.calls for one in left_out):,}"]
        rows.append([f"{len(left_out)} more", UNKNOWN, *rest])
    return table([*header, "# of Calls"], rows, left=(0, 1))


def _figures(one: Operator) -> list[str]:
    memory = one.self_memory_bytes
    sign = "-" if memory is not None and memory < 0 else ""
    return [
        show_percent(one.self_cpu_share),
        show_seconds(one.self_cpu_s),
        show_seconds(one.cpu_total_s),
        show_seconds(one.cpu_total_s / one.calls),
        show_seconds(one.self_device_s),
        UNKNOWN if memory is None else f"{sign}{show_bytes(abs(memory))}",
        f"{one.calls:,}",
    ]


def _cost(profile: OperatorProfile) -> str:
    shown = show_percent(profile.overhead, signed=True)
    return shown if profile.overhead_is_clear else f"{shown} (less than steps vary)"


def _times(times: StepTimes) -> str:
    spread = times.spread_s
    around = "" if spread is None else f" [{show_seconds(spread[0])}, {show_seconds(spread[1])}]"
    return escape(f"{show_seconds(times.median_s)}{around} ({len(times.seconds)} steps)")


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else significant(1000 * seconds)
