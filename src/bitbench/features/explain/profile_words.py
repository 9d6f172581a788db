"""Operator profiles as pages and sections: the parts of a step."""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.explain.types import Profiles
from bitbench.records.profile import (
    Operator,
    OperatorProfile,
    ProfileGroup,
    StepTimes,
)
from bitbench.reports.document.markdown import markdown
from bitbench.reports.document.model import (
    Block,
    Document,
    Emphasis,
    Heading,
    Name,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import ROUGH, percent, seconds, share
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    bullets,
    number_column,
    plural,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.write import StudyReport
from bitbench.util.errors import StoreError

GROUP_NAMES = {
    ProfileGroup.QUANTIZED_MATMUL: "quantized matmul",
    ProfileGroup.DENSE_MATMUL: "dense matmul",
    ProfileGroup.ATTENTION: "attention and KV cache",
    ProfileGroup.NORM_ACTIVATION: "normalisation, activation",
    ProfileGroup.COPIES_CASTS: "copies and casts",
    ProfileGroup.SAMPLING: "sampling",
    ProfileGroup.OTHER: "other operators",
    ProfileGroup.FRAMEWORK: "framework overhead",
}
# The sum of the groups and the client's step time come from two clocks. If they differ by more
# than this share, the two did not see the same steps, and the report warns.
ALLOWED_GAP = 0.05
WIDE = 110  # columns of a terminal from which every column of an operator fits
TITLE = say("Where the time of a step goes")
EXPLANATION = small_print(
    "From torch's profiler, in starts of their own and after warm-up. A step is one forward pass "
    "and everything until the next one begins; its groups are means over the profiled steps and "
    "add up to it. ",
    Emphasis(say("Framework overhead")),
    " is the time outside of operators that compute or move data: Python, scheduling, views, "
    "allocation.",
)


def profile_document(profiles: Sequence[OperatorProfile]) -> Document:
    """Show the groups of all profiles side by side, then the operators of each."""
    sections = [Section(_title(profile), _blocks(profile)) for profile in profiles]
    return Document(TITLE, _groups(profiles), tuple(sections))


def profile_section(profiles: Profiles, _: StudySummary) -> Section:
    """Show the same as `profile_document`, as one section of a study's report."""
    blocks = list(_groups(profiles.profiles))
    for profile in profiles.profiles:
        blocks += [Heading(_title(profile)), *_blocks(profile)]
    return Section(TITLE, tuple(blocks))


def _title(profile: OperatorProfile) -> Phrase:
    return say(Name(profile.config.name), f", batch {profile.batch}, {profile.phase.value}")


def _groups(profiles: Sequence[OperatorProfile]) -> tuple[Block, ...]:
    def column(group: ProfileGroup) -> ColumnOf[OperatorProfile]:
        return number_column(
            GROUP_NAMES[group], Unit.SECONDS, lambda profile: profile.group_s(group)
        )

    groups = table(
        profiles,
        words_column("Config", lambda profile: Name(profile.config.name)),
        number_column("Batch", Unit.COUNT, lambda profile: profile.batch),
        words_column("Phase", lambda profile: profile.phase.value),
        number_column(
            "Step, profiler off", Unit.SECONDS, lambda profile: profile.unprofiled.median_s
        ),
        number_column("Step, profiler on", Unit.SECONDS, lambda profile: profile.profiled.mean_s),
        *map(column, ProfileGroup),
        number_column("Sum / measured", Unit.SHARE, lambda profile: 1 + profile.agreement),
        number_column("Profiler's cost", Unit.SHARE, _cost),
        drop_empty=True,
    )
    return EXPLANATION, groups


def _blocks(profile: OperatorProfile) -> tuple[Block, ...]:
    return (*bullets(_facts(profile)), _operator_table(profile.operators))


def _facts(profile: OperatorProfile) -> Iterator[Words]:
    yield say(
        "Median step [10 %, 90 %] with the profiler off ",
        _times(profile.unprofiled),
        ", on ",
        _times(profile.profiled),
        ": the profiler costs ",
        _cost(profile),
        ".",
    )
    steps = plural(profile.steps, "profiled step")
    yield say(
        f"{steps} at {profile.context_tokens:,} tokens of context; their groups sum to ",
        seconds(profile.groups_s),
        ", ",
        share(1 + profile.agreement),
        " of the step that the client measured.",
    )
    if abs(profile.agreement) > ALLOWED_GAP:
        yield strong(
            f"The two differ by more than {percent(ALLOWED_GAP)}: the trace and the client did not "
            "see the same steps, or the machine was busy. Profile again before relying on it."
        )
    if profile.trace_file is not None:
        yield say("Trace, for chrome://tracing or Perfetto: ", Name(profile.trace_file))


def _times(times: StepTimes) -> Quantity:
    low, high = times.spread_s or (None, None)
    note = f"({plural(len(times.seconds), 'step')})"
    return Quantity(times.median_s, Unit.SECONDS, low, high, digits=ROUGH, note=note)


def _cost(profile: OperatorProfile) -> Quantity:
    note = "" if profile.overhead_is_clear else "(less than steps vary)"
    return Quantity(profile.overhead, Unit.SHARE, is_signed=True, note=note)


def _operator_table(operators: Sequence[Operator]) -> Table:
    """Return the columns of torch's own table. Each time has its own unit."""
    return table(
        operators,
        words_column("Name", lambda operator: Name(operator.name)),
        words_column("Group", lambda operator: GROUP_NAMES[operator.group], shown_from=WIDE),
        number_column("Self CPU %", Unit.NONE, lambda operator: share(operator.self_cpu_share)),
        number_column("Self CPU", Unit.NONE, lambda operator: seconds(operator.self_cpu_s)),
        number_column("CPU total", Unit.NONE, lambda operator: seconds(operator.cpu_total_s)),
        number_column("CPU time avg", Unit.NONE, _seconds_per_call, shown_from=WIDE),
        number_column(
            "Self device",
            Unit.NONE,
            lambda operator: seconds(operator.self_device_s),
            shown_from=WIDE,
        ),
        number_column("# of Calls", Unit.COUNT, lambda operator: operator.calls),
        drop_empty=True,
    )


def _seconds_per_call(operator: Operator) -> Quantity | None:
    if not operator.calls:
        return None
    return seconds(operator.cpu_total_s / operator.calls)


def profile_markdown(report: StudyReport) -> str:
    """Return the operator profiles of a study as Markdown. Raise StoreError if it has none."""
    profiles = report.folder.profiles()
    if not profiles:
        raise StoreError(
            f"{report.folder.path} has no operator profile; add `profile: {{}}` to its study file "
            "and run it again"
        )
    return markdown(profile_document(profiles))
