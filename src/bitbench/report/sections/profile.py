"""Operator profiles: what a step consists of, and the table of operators behind it."""

from collections.abc import Sequence

from bitbench.core.recorded.profile import Operator, OperatorProfile, ProfileGroup, StepTimes
from bitbench.report.document.model import (
    Block,
    Document,
    Emphasis,
    Heading,
    Name,
    Phrase,
    Quantity,
    Row,
    Section,
    Table,
    TableCell,
    Unit,
)
from bitbench.report.document.numbers import percent
from bitbench.report.document.words import (
    bullets,
    number_column,
    plural,
    say,
    small_print,
    strong,
    words_column,
)
from bitbench.report.quantities import ROUGH, count, number, seconds, share, size

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
WIDE = 110  # characters of a terminal from which there is room for every column of an operator
TITLE = say("Where the time of a step goes")


def profile_document(profiles: Sequence[OperatorProfile], limit: int | None = None) -> Document:
    """A section per profile, with its groups and its operators; `limit`: no more than so many of these."""
    return Document(TITLE, (), tuple(Section(_title(one), _blocks(one, limit)) for one in profiles))


def profile_section(profiles: Sequence[OperatorProfile]) -> Section | None:
    """For the report of a study: the groups of all profiles side by side, then the longest operators of each."""
    if not profiles:
        return None
    each = [block for one in profiles for block in (Heading(_title(one)), *_blocks(one, OPERATORS_IN_REPORT))]
    return Section(TITLE, (_explanation(), _side_by_side(profiles), *each))


def _explanation() -> Block:
    return small_print(
        "From torch's profiler, in instances of their own and after warm-up. A step is one forward pass and everything "
        "until the next one begins; its groups are means over the profiled steps and add up to it. ",
        Emphasis(say("Framework overhead")),
        " is the time outside of operators that compute or move data: Python, scheduling, views, allocation. ",
        Emphasis(say("First call")),
        " is what the very first step took beyond a usual one; no other figure contains it.",
    )


def _title(profile: OperatorProfile) -> Phrase:
    return say(Name(profile.contender.name), f", batch {profile.batch}, {profile.phase.value}")


def _side_by_side(profiles: Sequence[OperatorProfile]) -> Table:
    groups = [group for group in ProfileGroup if any(one.group_s(group) is not None for one in profiles)]
    columns = [
        words_column("Contender"),
        number_column("Batch", Unit.COUNT),
        words_column("Phase"),
        number_column("Step, profiler off", Unit.SECONDS),
        number_column("Step, profiler on", Unit.SECONDS),
        *(number_column(GROUP_NAMES[group], Unit.SECONDS) for group in groups),
        number_column("Sum / measured", Unit.SHARE),
        number_column("Profiler's cost", Unit.SHARE),
    ]
    rows = [
        Row(
            (
                say(Name(one.contender.name)),
                count(one.batch),
                say(one.phase.value),
                seconds(one.unprofiled.median_s),
                seconds(one.profiled.mean_s),
                *(seconds(one.group_s(group)) for group in groups),
                share(1 + one.agreement),
                _cost(one),
            )
        )
        for one in profiles
    ]
    return Table(tuple(columns), tuple(rows))


def _blocks(profile: OperatorProfile, limit: int | None) -> tuple[Block, ...]:
    return (*bullets(_facts(profile)), _groups(profile), _operators(profile, limit))


def _facts(profile: OperatorProfile) -> list[Phrase]:
    off, on, cost = _times(profile.unprofiled), _times(profile.profiled), _cost(profile)
    total = Quantity(profile.groups_s, Unit.SECONDS, digits=ROUGH)
    of_measured = Quantity(1 + profile.agreement, Unit.SHARE)
    context = f"{plural(profile.steps, 'profiled step')} at {profile.context_tokens:,} tokens of context"
    facts = [
        say("Median step [10 %, 90 %] with the profiler off ", off, ", on ", on, ": the profiler costs ", cost, "."),
        say(f"{context}; their groups sum to ", total, ", ", of_measured, " of the step that the client measured."),
    ]
    if abs(profile.agreement) > ALLOWED_GAP:
        facts.append(
            strong(
                f"The two differ by more than {percent(ALLOWED_GAP)}: the trace and the client did not see the same "
                "steps, or the machine was busy. Profile again before relying on it."
            )
        )
    if profile.first_step_s is not None:
        first = Quantity(profile.first_step_s, Unit.SECONDS, digits=ROUGH)
        compiling = seconds(profile.facts.compile_s)
        compiled = say("; the engine compiled for ", compiling, " before it was ready") if compiling else ()
        facts.append(say("The first step took ", first, compiled, "."))
    if profile.trace_file is not None:
        facts.append(say("Trace, for chrome://tracing or Perfetto: ", Name(profile.trace_file)))
    return facts


def _times(times: StepTimes) -> Quantity:
    low, high = times.spread_s or (None, None)
    note = f"({plural(len(times.seconds), 'step')})"
    return Quantity(times.median_s, Unit.SECONDS, low, high, digits=ROUGH, note=note)


def _cost(profile: OperatorProfile) -> Quantity:
    note = "" if profile.overhead_is_clear else "(less than steps vary)"
    return Quantity(profile.overhead, Unit.SHARE, is_signed=True, note=note)


def _groups(profile: OperatorProfile) -> Table:
    """Each time in its own unit: they differ by orders of magnitude."""
    whole = profile.groups_s
    columns = (
        words_column("Group"),
        number_column("Time per step"),
        number_column("Share", Unit.SHARE),
        number_column("Calls per step"),
    )
    rows = [
        Row(
            (
                say(GROUP_NAMES[group.group]),
                seconds(group.step_s),
                None if group.group is ProfileGroup.FIRST_CALL else share(group.step_s / whole),
                number(group.calls or None, digits=1),
            )
        )
        for group in profile.groups
    ]
    return Table(columns, tuple(rows))


def _operators(profile: OperatorProfile, limit: int | None) -> Table:
    """The columns of torch's own table, over all profiled steps, each time in its own unit."""
    columns = (
        words_column("Name"),
        words_column("Group", shown_from=WIDE),
        number_column("Self CPU %"),
        number_column("Self CPU"),
        number_column("CPU total"),
        number_column("CPU time avg", shown_from=WIDE),
        number_column("Self device", shown_from=WIDE),
        number_column("Self CPU Mem", shown_from=WIDE),
        number_column("# of Calls", Unit.COUNT),
    )
    shown = profile.operators if limit is None else profile.operators[:limit]
    rows = [Row((say(Name(one.name)), say(GROUP_NAMES[one.group]), *_figures(one))) for one in shown]
    if rest := profile.operators[len(shown) :]:
        part, time = sum(one.self_cpu_share for one in rest), sum(one.self_cpu_s for one in rest)
        unknown = [None] * 4
        calls = count(sum(one.calls for one in rest))
        rows.append(Row((say(f"{len(rest)} more"), None, share(part), seconds(time), *unknown, calls)))
    return Table(columns, tuple(rows))


def _figures(operator: Operator) -> tuple[TableCell, ...]:
    return (
        share(operator.self_cpu_share),
        seconds(operator.self_cpu_s),
        seconds(operator.cpu_total_s),
        seconds(operator.cpu_total_s / operator.calls if operator.calls else None),
        seconds(operator.self_device_s),
        size(operator.self_memory_bytes),
        count(operator.calls),
    )
