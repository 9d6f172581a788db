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
from bitbench.reports.document.markdown import render_markdown
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
from bitbench.reports.document.numbers import ROUGH, format_percent, make_seconds, make_share
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    build_table,
    bullets,
    format_count,
    make_number_column,
    make_words_column,
    say,
    small_print,
    strong,
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


def build_profile_document(profiles: Sequence[OperatorProfile]) -> Document:
    """Show the groups of all profiles side by side, then the operators of each."""
    sections = [Section(_format_title(profile), _build_blocks(profile)) for profile in profiles]
    return Document(TITLE, _build_groups(profiles), tuple(sections))


def profile_section(profiles: Profiles, _: StudySummary) -> Section:
    """Show the same as `build_profile_document`, as one section of a study's report."""
    blocks = list(_build_groups(profiles.profiles))
    for profile in profiles.profiles:
        blocks += [Heading(_format_title(profile)), *_build_blocks(profile)]
    return Section(TITLE, tuple(blocks))


def _format_title(profile: OperatorProfile) -> Phrase:
    return say(Name(profile.config.name), f", batch {profile.batch}, {profile.phase.value}")


def _build_groups(profiles: Sequence[OperatorProfile]) -> tuple[Block, ...]:
    def column(group: ProfileGroup) -> ColumnOf[OperatorProfile]:
        return make_number_column(
            GROUP_NAMES[group], Unit.SECONDS, lambda profile: profile.group_s(group)
        )

    groups = build_table(
        profiles,
        make_words_column("Config", lambda profile: Name(profile.config.name)),
        make_number_column("Batch", Unit.COUNT, lambda profile: profile.batch),
        make_words_column("Phase", lambda profile: profile.phase.value),
        make_number_column(
            "Step, profiler off", Unit.SECONDS, lambda profile: profile.unprofiled.median_s
        ),
        make_number_column(
            "Step, profiler on", Unit.SECONDS, lambda profile: profile.profiled.mean_s
        ),
        *map(column, ProfileGroup),
        make_number_column("Sum / measured", Unit.SHARE, lambda profile: 1 + profile.agreement),
        make_number_column("Profiler's cost", Unit.SHARE, _format_cost),
        drop_empty=True,
    )
    return EXPLANATION, groups


def _build_blocks(profile: OperatorProfile) -> tuple[Block, ...]:
    return (*bullets(_iter_facts(profile)), _build_operator_table(profile.operators))


def _iter_facts(profile: OperatorProfile) -> Iterator[Words]:
    yield say(
        "Median step [10 %, 90 %] with the profiler off ",
        _format_times(profile.unprofiled),
        ", on ",
        _format_times(profile.profiled),
        ": the profiler costs ",
        _format_cost(profile),
        ".",
    )
    steps = format_count(profile.steps, "profiled step")
    yield say(
        f"{steps} at {profile.context_tokens:,} tokens of context; their groups sum to ",
        make_seconds(profile.groups_s),
        ", ",
        make_share(1 + profile.agreement),
        " of the step that the client measured.",
    )
    if abs(profile.agreement) > ALLOWED_GAP:
        yield strong(
            f"The two differ by more than {format_percent(ALLOWED_GAP)}: "
            "the trace and the client did not see the same steps, or the machine was busy. "
            "Profile again before relying on it."
        )
    if profile.trace_file is not None:
        yield say("Trace, for chrome://tracing or Perfetto: ", Name(profile.trace_file))


def _format_times(times: StepTimes) -> Quantity:
    low, high = times.spread_s or (None, None)
    note = f"({format_count(len(times.seconds), 'step')})"
    return Quantity(times.median_s, Unit.SECONDS, low, high, digits=ROUGH, note=note)


def _format_cost(profile: OperatorProfile) -> Quantity:
    note = "" if profile.overhead_is_clear else "(less than steps vary)"
    return Quantity(profile.overhead, Unit.SHARE, is_signed=True, note=note)


def _build_operator_table(operators: Sequence[Operator]) -> Table:
    """Return the columns of torch's own table. Each time has its own unit."""
    return build_table(
        operators,
        make_words_column("Name", lambda operator: Name(operator.name)),
        make_words_column("Group", lambda operator: GROUP_NAMES[operator.group], shown_from=WIDE),
        make_number_column(
            "Self CPU %", Unit.NONE, lambda operator: make_share(operator.self_cpu_share)
        ),
        make_number_column(
            "Self CPU", Unit.NONE, lambda operator: make_seconds(operator.self_cpu_s)
        ),
        make_number_column(
            "CPU total", Unit.NONE, lambda operator: make_seconds(operator.cpu_total_s)
        ),
        make_number_column("CPU time avg", Unit.NONE, _compute_seconds_per_call, shown_from=WIDE),
        make_number_column(
            "Self device",
            Unit.NONE,
            lambda operator: make_seconds(operator.self_device_s),
            shown_from=WIDE,
        ),
        make_number_column("# of Calls", Unit.COUNT, lambda operator: operator.calls),
        drop_empty=True,
    )


def _compute_seconds_per_call(operator: Operator) -> Quantity | None:
    if not operator.calls:
        return None
    return make_seconds(operator.cpu_total_s / operator.calls)


def profile_markdown(report: StudyReport) -> str:
    """Return the operator profiles of a study as Markdown. Raise StoreError if it has none."""
    profiles = report.folder.profiles()
    if not profiles:
        raise StoreError(
            f"{report.folder.path} has no operator profile; add `profile: {{}}` to its study file "
            "and run it again"
        )
    return render_markdown(build_profile_document(profiles))
