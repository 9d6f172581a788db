"""A config under rising load: its table and its sentences."""

from collections.abc import Iterable

from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.results.summary import (
    PointSummary,
    RateAnswer,
    Run,
    SearchStop,
    StudySummary,
)
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.reports.document.model import (
    Mark,
    Name,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import find_point_quantity, format_percent, make_setting
from bitbench.reports.document.words import (
    build_table,
    format_count,
    format_counts,
    format_list,
    format_names,
    make_number_column,
    make_words_column,
    mark_if,
    paragraph,
    say,
    strong,
)
from bitbench.reports.sections.failures import iter_cache_remarks, iter_stream_remarks
from bitbench.reports.sections.ranked import (
    find_metric_definition,
    format_outcomes,
    format_study_objectives,
    make_metric_column,
)
from bitbench.study.workload import Workload, find_mean_rate, format_length
from bitbench.util.units import show_seconds

RATE_METRICS = ("offered_rate", "achieved_rate", "output_throughput", "ttft_p50_s")
STREAM_METRICS = ("request_throughput", "output_throughput", "ttft_p50_s")
TAILS = ("ttft_p99_s", "ttft_p95_s", "ttft_p90_s")
WIDE = 130  # columns of a terminal from which all metrics fit
INTERVALS_FIT = 190  # columns from which their intervals fit, too
REQUESTS = "requests/s"
LOAD = ("concurrency", "arrival")  # fields of a workload that set its load


def list_sweep_points(summary: StudySummary, *, was_running: bool = False) -> list[PointSummary]:
    """Return the points of a load sweep by rising load, or an empty list for any other study.

    A sweep measures one config with one shape of requests at several loads. For a server that
    `was_running` already, one load is enough.
    """
    workloads = summary.study.workloads
    shapes = {describe_shape_without(LOAD, workload) for workload in workloads}
    if summary.refusals or len(summary.configs) != 1 or len(shapes) != 1:
        return []
    if len(workloads) < 2 and summary.search is None and not was_running:
        return []
    return _list_points(summary)


def _list_points(summary: StudySummary) -> list[PointSummary]:
    return sorted(summary.points, key=lambda point: _compute_level(summary, point))


def _compute_level(summary: StudySummary, point: PointSummary) -> float:
    return compute_load(summary.study.workload(point.point.workload))


def compute_load(workload: Workload) -> float:
    """Return the load of a workload: requests per second, or requests in flight."""
    return find_mean_rate(workload.arrival) or float(workload.concurrency)


def describe_shape_without(differing: Iterable[str], workload: Workload) -> str:
    """Return a text that is equal for workloads that differ only in these fields and in length.

    The kind of arrival must be equal, too.
    """
    content = workload.model_dump(exclude={"name", "requests", "duration", *differing})
    return f"{content} {workload.arrival.kind}"


def build_sweep_section(summary: StudySummary) -> Section:
    """Return the section of a load sweep: the shape of its requests, and a table by load."""
    return Section(
        say(Name(summary.configs[0].config.name), " under load"),
        (paragraph(_describe_requests(summary)), _build_table(summary)),
        in_terminal=True,
    )


def _describe_requests(summary: StudySummary) -> Phrase:
    """Return what all points share: `128 tokens in, 64 tokens out, poisson arrivals of 30.0 s.`"""
    workload = summary.study.workloads[0]
    arrival = f"{workload.arrival.kind} arrivals" if workload.open_loop else "closed loop"
    length = f" of {show_seconds(workload.duration)}" if workload.duration else ""
    texts = say(", texts from ", Name(workload.text.file)) if workload.text else ()
    input_tokens = format_length(workload.input_tokens)
    output_tokens = format_length(workload.output_tokens)
    shape = f"{input_tokens} tokens in, {output_tokens} tokens out, {arrival}{length}"
    return say(shape, texts, ".")


def _build_table(summary: StudySummary) -> Table:
    """Return a row per load. A narrow terminal shows neither intervals nor the offered rate."""
    points = _list_points(summary)
    title = "In flight"
    unit: str = Unit.NONE
    metrics: tuple[str, ...] = STREAM_METRICS
    if summary.study.workloads[0].open_loop:
        title = "Rate"
        unit = "req/s"
        metrics = RATE_METRICS
    metrics += (choose_tail_metric(summary), "tpot_s")
    if summary.study.objectives:
        metrics += ("goodput",)
    columns = []
    for metric in dict.fromkeys(metrics):
        width = WIDE if metric == "offered_rate" else 0
        columns.append(
            make_metric_column(summary, metric, shown_from=width, intervals_from=INTERVALS_FIT)
        )
    errors_from = 0 if any(map(_count_errors, points)) else WIDE
    return build_table(
        points,
        make_number_column(
            title, unit, lambda point: make_setting(_compute_level(summary, point), unit)
        ),
        make_words_column(
            "Outcome", lambda point: format_counts(_list_verdicts(point)) or "not run"
        ),
        *columns,
        make_number_column("Errors", Unit.COUNT, _count_errors, shown_from=errors_from),
        mark=_mark,
    )


def _mark(point: PointSummary) -> Mark | None:
    has_failed = any(verdict.startswith("fails") for verdict in _list_verdicts(point))
    return mark_if(has_failed, Mark.ALARM)


def choose_tail_metric(summary: StudySummary) -> str:
    """Return the highest percentile of the TTFT for which every point has enough requests."""
    tails = [point.tails for point in summary.points]
    has_tail = False
    for metric in TAILS:
        carried = [tail[metric].is_carried for tail in tails if metric in tail]
        if carried and all(carried):
            return metric
        has_tail |= bool(carried)
    # Without the requests, a percentile is the mean over trials.
    return "ttft_p50_s" if has_tail else TAILS[0]


def _count_errors(point: PointSummary) -> int:
    return sum(run.failed_requests for run in point.runs)


def _list_verdicts(point: PointSummary) -> list[str]:
    """Return a verdict per trial.

    A trial that says nothing about the engine counts only if it met the objectives.
    """
    runs = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES or run.holds]
    return list(map(_find_verdict, runs or point.runs))


def _find_verdict(run: Run) -> str:
    """Return `meets`, `fails` or `unknown`, or the outcome if the study has no objectives."""
    if run.holds is None and run.outcome is Outcome.OK and run.why_not:
        return "unknown"
    if run.holds is None or run.outcome not in (Outcome.OK, Outcome.CLIENT_BOUND):
        return run.outcome.value
    verdict = "meets" if run.holds else "fails"
    return f"{verdict}, slow client" if run.outcome is Outcome.CLIENT_BOUND else verdict


def list_sweep_sentences(summary: StudySummary) -> list[Phrase]:
    """Return the sentences that sum up the table, the answer first."""
    if summary.search:
        sentences = [_describe_search(summary, summary.search)]
    else:
        sentences = [_describe_most_output(summary)]
        if summary.study.objectives:
            sentences.append(_describe_highest_met(summary))
    flawed = list(filter(_count_errors, _list_points(summary)))
    if flawed:
        causes = [group.failure.cause for point in flawed for group in point.failures]
        end = f": {causes[0]}" if causes else "."
        workloads = format_names(point.point.workload for point in flawed)
        sentences.append(say("Requests failed on ", workloads, end))
    sentences += iter_cache_remarks(summary)
    sentences += iter_stream_remarks(summary)
    notes = {note for config in summary.configs for note in config.notes}
    sentences += map(say, sorted(notes))
    return sentences


RESUMES = "the same command with --into resumes the search."
ENDS = {
    None: f" The search was interrupted; {RESUMES}",
    SearchStop.TRIALS: " All its trials were used; more --trials narrow it.",
    SearchStop.HIGHEST: " --max-rate allows more.",
}


def _describe_search(summary: StudySummary, search: RateAnswer) -> Phrase:
    """Return the result of a rate search, or why it has none yet."""
    limits = format_study_objectives(summary)
    end = ENDS.get(search.stop, "")
    if search.rate is None:
        if search.high is None:
            why = _explain_no_test(summary)
            return say("No rate was tested against ", limits, f": {why}; {RESUMES}")
        lowest = make_setting(search.high, REQUESTS)
        return say(
            limits, " is not met, not even at ", lowest, ", the lowest rate that was tried.", end
        )
    if search.high is None:
        highest = make_setting(search.rate, REQUESTS)
        met = say(limits, " is met even at ", highest, ", the highest rate tried.")
        return say(met, _describe_verification(search), end)
    rate = strong(Quantity(search.rate, REQUESTS, search.low, search.high))
    interval = (
        f" ({format_percent(search.confidence)} interval, {format_count(search.trials, 'trial')})."
    )
    answer = say("The highest rate that meets ", limits, ": ", rate, interval)
    return say(answer, _describe_verification(search), end)


def _explain_no_test(summary: StudySummary) -> str:
    count = sum(len(point.runs) for point in summary.points)
    if count:  # other work on the machine may have spoiled the trials
        return f"none of {format_count(count, 'trial')} counts"
    return "no trial was finished"


def _describe_verification(search: RateAnswer) -> Phrase:
    """Return the result of long trials at the lower end of the answer. Empty without any."""
    if search.verified is not None:
        count = f"{search.verified_requests:,} requests"
        rate = make_setting(search.verified, REQUESTS)
        return say(" Verified: a trial of ", count, " at ", rate, " met the limits.")
    if search.refuted and search.stop is not None:
        rates = format_list([make_setting(rate, REQUESTS) for rate in search.refuted])
        return say(" Not verified: long trials at ", rates, " missed the limits.")
    return ()


def _describe_most_output(summary: StudySummary) -> Phrase:
    """Return the load with the highest throughput, and the points that have no result."""
    measured = [point for point in _list_points(summary) if "output_throughput" in point.metrics]
    if not measured:
        return say("No point has a result.")
    lacking = _describe_missing(summary)
    best = max(measured, key=lambda point: point.metrics["output_throughput"].value)
    output = _find_quantity(summary, best, "output_throughput")
    tail = choose_tail_metric(summary)
    ttft = _find_quantity(summary, best, tail)
    time = f", with a {find_metric_definition(summary, tail).label} of "
    subject = "of the other points the most output is " if lacking else "The most output: "
    return say(lacking, subject, strong(output), " at ", _make_load(summary, best), time, ttft, ".")


def _describe_missing(summary: StudySummary) -> Phrase:
    """Return `8 in flight has no result (oom (6)); `. Empty if every point has one."""
    missing = []
    for point in _list_points(summary):
        if "output_throughput" not in point.metrics:
            outcomes = format_outcomes(point) or "not tried"
            missing.append(say(_make_load(summary, point), f" ({outcomes})"))
    if not missing:
        return ()
    have = "has" if len(missing) == 1 else "have"
    return say(format_list(missing), f" {have} no result; ")


def _make_load(summary: StudySummary, point: PointSummary) -> Quantity:
    unit = REQUESTS if summary.study.workloads[0].open_loop else "in flight"
    return make_setting(_compute_level(summary, point), unit)


def _find_quantity(summary: StudySummary, point: PointSummary, metric: str) -> Quantity | None:
    return find_point_quantity(point, metric, find_metric_definition(summary, metric))


def _describe_highest_met(summary: StudySummary) -> Phrase:
    """Return the highest load at which every trial met the objectives."""
    limits = format_study_objectives(summary)
    met = list(filter(_has_met, _list_points(summary)))
    if not met:
        return say("No point met ", limits, " in every trial.")
    highest = met[-1]
    load = _make_load(summary, highest)
    goodput = _find_quantity(summary, highest, "goodput")
    every = " in every trial: "
    answer = say("The highest point that met ", limits, every, load, ", goodput ", goodput, ".")
    for finding in highest.objectives:
        if finding.verdict is Verdict.INCONCLUSIVE and finding.reason:
            why = f" Over all its requests that is inconclusive: {finding.reason}."
            return say(answer, why)
    return answer


def _has_met(point: PointSummary) -> bool:
    runs = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES]
    return bool(runs) and all(run.holds and run.outcome is Outcome.OK for run in runs)
