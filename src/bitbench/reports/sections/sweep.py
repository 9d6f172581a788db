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
from bitbench.reports.document.numbers import percent, point_quantity, setting_quantity
from bitbench.reports.document.words import (
    counted,
    format_names,
    listing,
    mark_if,
    number_column,
    paragraph,
    plural,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.sections.failures import cached_remarks, stream_remarks
from bitbench.reports.sections.ranked import (
    promised_objectives_in_words,
    ranked_metric_column,
    ranked_metric_definition,
    ranked_point_outcomes,
)
from bitbench.study.workload import Workload, mean_arrival_rate, workload_length_text
from bitbench.util.units import show_seconds

RATE_METRICS = ("offered_rate", "achieved_rate", "output_throughput", "ttft_p50_s")
STREAM_METRICS = ("request_throughput", "output_throughput", "ttft_p50_s")
TAILS = ("ttft_p99_s", "ttft_p95_s", "ttft_p90_s")
WIDE = 130  # columns of a terminal from which all metrics fit
INTERVALS_FIT = 190  # columns from which their intervals fit, too
REQUESTS = "requests/s"
LOAD = ("concurrency", "arrival")  # fields of a workload that set its load


def sweep_points(summary: StudySummary, *, was_running: bool = False) -> list[PointSummary]:
    """Return the points of a load sweep by rising load, or an empty list for any other study.

    A sweep measures one config with one shape of requests at several loads. For a server that
    `was_running` already, one load is enough.
    """
    workloads = summary.study.workloads
    shapes = {sweep_shape_without(LOAD, workload) for workload in workloads}
    if summary.refusals or len(summary.configs) != 1 or len(shapes) != 1:
        return []
    if len(workloads) < 2 and summary.search is None and not was_running:
        return []
    return _points(summary)


def _points(summary: StudySummary) -> list[PointSummary]:
    return sorted(summary.points, key=lambda point: _level(summary, point))


def _level(summary: StudySummary, point: PointSummary) -> float:
    return sweep_level(summary.study.workload(point.point.workload))


def sweep_level(workload: Workload) -> float:
    """Return the load of a workload: requests per second, or requests in flight."""
    return mean_arrival_rate(workload.arrival) or float(workload.concurrency)


def sweep_shape_without(differing: Iterable[str], workload: Workload) -> str:
    """Return a text that is equal for workloads that differ only in these fields and in length.

    The kind of arrival must be equal, too.
    """
    content = workload.model_dump(exclude={"name", "requests", "duration", *differing})
    return f"{content} {workload.arrival.kind}"


def sweep_section(summary: StudySummary) -> Section:
    """Return the section of a load sweep: the shape of its requests, and a table by load."""
    return Section(
        say(Name(summary.configs[0].config.name), " under load"),
        (paragraph(_asked(summary)), _table(summary)),
        in_terminal=True,
    )


def _asked(summary: StudySummary) -> Phrase:
    """Return what all points share: `128 tokens in, 64 tokens out, poisson arrivals of 30.0 s.`"""
    workload = summary.study.workloads[0]
    arrival = f"{workload.arrival.kind} arrivals" if workload.open_loop else "closed loop"
    length = f" of {show_seconds(workload.duration)}" if workload.duration else ""
    texts = say(", texts from ", Name(workload.text.file)) if workload.text else ()
    input_tokens = workload_length_text(workload.input_tokens)
    output_tokens = workload_length_text(workload.output_tokens)
    shape = f"{input_tokens} tokens in, {output_tokens} tokens out, {arrival}{length}"
    return say(shape, texts, ".")


def _table(summary: StudySummary) -> Table:
    """Return a row per load. A narrow terminal shows neither intervals nor the offered rate."""
    points = _points(summary)
    title = "In flight"
    unit: str = Unit.NONE
    metrics: tuple[str, ...] = STREAM_METRICS
    if summary.study.workloads[0].open_loop:
        title = "Rate"
        unit = "req/s"
        metrics = RATE_METRICS
    metrics += (sweep_tail_metric(summary), "tpot_s")
    if summary.study.objectives:
        metrics += ("goodput",)
    columns = []
    for metric in dict.fromkeys(metrics):
        width = WIDE if metric == "offered_rate" else 0
        columns.append(
            ranked_metric_column(summary, metric, shown_from=width, intervals_from=INTERVALS_FIT)
        )
    errors_from = 0 if any(map(_errors, points)) else WIDE
    return table(
        points,
        number_column(title, unit, lambda point: setting_quantity(_level(summary, point), unit)),
        words_column("Outcome", lambda point: counted(_verdicts(point)) or "not run"),
        *columns,
        number_column("Errors", Unit.COUNT, _errors, shown_from=errors_from),
        mark=_mark,
    )


def _mark(point: PointSummary) -> Mark | None:
    has_failed = any(verdict.startswith("fails") for verdict in _verdicts(point))
    return mark_if(has_failed, Mark.ALARM)


def sweep_tail_metric(summary: StudySummary) -> str:
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


def _errors(point: PointSummary) -> int:
    return sum(run.failed_requests for run in point.runs)


def _verdicts(point: PointSummary) -> list[str]:
    """Return a verdict per trial.

    A trial that says nothing about the engine counts only if it met the objectives.
    """
    runs = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES or run.holds]
    return list(map(_verdict, runs or point.runs))


def _verdict(run: Run) -> str:
    """Return `meets`, `fails` or `unknown`, or the outcome if the study has no objectives."""
    if run.holds is None and run.outcome is Outcome.OK and run.why_not:
        return "unknown"
    if run.holds is None or run.outcome not in (Outcome.OK, Outcome.CLIENT_BOUND):
        return run.outcome.value
    verdict = "meets" if run.holds else "fails"
    return f"{verdict}, slow client" if run.outcome is Outcome.CLIENT_BOUND else verdict


def sweep_answer(summary: StudySummary) -> list[Phrase]:
    """Return the sentences that sum up the table, the answer first."""
    if summary.search:
        sentences = [_searched(summary, summary.search)]
    else:
        sentences = [_most_output(summary)]
        if summary.study.objectives:
            sentences.append(_highest_met(summary))
    flawed = list(filter(_errors, _points(summary)))
    if flawed:
        causes = [group.failure.cause for point in flawed for group in point.failures]
        end = f": {causes[0]}" if causes else "."
        workloads = format_names(point.point.workload for point in flawed)
        sentences.append(say("Requests failed on ", workloads, end))
    sentences += cached_remarks(summary)
    sentences += stream_remarks(summary)
    notes = {note for config in summary.configs for note in config.notes}
    sentences += map(say, sorted(notes))
    return sentences


RESUMES = "the same command with --into resumes the search."
ENDS = {
    None: f" The search was interrupted; {RESUMES}",
    SearchStop.TRIALS: " All its trials were used; more --trials narrow it.",
    SearchStop.HIGHEST: " --max-rate allows more.",
}


def _searched(summary: StudySummary, search: RateAnswer) -> Phrase:
    """Return the result of a rate search, or why there is none yet."""
    limits = promised_objectives_in_words(summary)
    end = ENDS.get(search.stop, "")
    if search.rate is None:
        if search.high is None:
            why = _explain_no_test(summary)
            return say("No rate was tested against ", limits, f": {why}; {RESUMES}")
        lowest = setting_quantity(search.high, REQUESTS)
        return say(
            limits, " is not met, not even at ", lowest, ", the lowest rate that was tried.", end
        )
    if search.high is None:
        highest = setting_quantity(search.rate, REQUESTS)
        met = say(limits, " is met even at ", highest, ", the highest rate tried.")
        return say(met, _verified(search), end)
    rate = strong(Quantity(search.rate, REQUESTS, search.low, search.high))
    interval = f" ({percent(search.confidence)} interval, {plural(search.trials, 'trial')})."
    answer = say("The highest rate that meets ", limits, ": ", rate, interval)
    return say(answer, _verified(search), end)


def _explain_no_test(summary: StudySummary) -> str:
    count = sum(len(point.runs) for point in summary.points)
    if count:  # other work on the machine may have spoiled the trials
        return f"none of {plural(count, 'trial')} counts"
    return "no trial was finished"


def _verified(search: RateAnswer) -> Phrase:
    """Return the result of long trials at the lower end of the answer. Empty without any."""
    if search.verified is not None:
        count = f"{search.verified_requests:,} requests"
        rate = setting_quantity(search.verified, REQUESTS)
        return say(" Verified: a trial of ", count, " at ", rate, " met the limits.")
    if search.refuted and search.stop is not None:
        rates = listing([setting_quantity(rate, REQUESTS) for rate in search.refuted])
        return say(" Not verified: long trials at ", rates, " missed the limits.")
    return ()


def _most_output(summary: StudySummary) -> Phrase:
    """Return the load with the highest throughput, and the points that have no result."""
    measured = [point for point in _points(summary) if "output_throughput" in point.metrics]
    if not measured:
        return say("No point has a result.")
    lacking = _without_result(summary)
    best = max(measured, key=lambda point: point.metrics["output_throughput"].value)
    output = _figure(summary, best, "output_throughput")
    tail = sweep_tail_metric(summary)
    ttft = _figure(summary, best, tail)
    time = f", with a {ranked_metric_definition(summary, tail).label} of "
    subject = "of the other points the most output is " if lacking else "The most output: "
    return say(lacking, subject, strong(output), " at ", _load(summary, best), time, ttft, ".")


def _without_result(summary: StudySummary) -> Phrase:
    """Return `8 in flight has no result (oom (6)); `. Empty if every point has one."""
    missing = []
    for point in _points(summary):
        if "output_throughput" not in point.metrics:
            outcomes = ranked_point_outcomes(point) or "not tried"
            missing.append(say(_load(summary, point), f" ({outcomes})"))
    if not missing:
        return ()
    have = "has" if len(missing) == 1 else "have"
    return say(listing(missing), f" {have} no result; ")


def _load(summary: StudySummary, point: PointSummary) -> Quantity:
    unit = REQUESTS if summary.study.workloads[0].open_loop else "in flight"
    return setting_quantity(_level(summary, point), unit)


def _figure(summary: StudySummary, point: PointSummary, metric: str) -> Quantity | None:
    return point_quantity(point, metric, ranked_metric_definition(summary, metric))


def _highest_met(summary: StudySummary) -> Phrase:
    """Return the highest load at which every trial met the objectives."""
    limits = promised_objectives_in_words(summary)
    met = list(filter(_meets, _points(summary)))
    if not met:
        return say("No point met ", limits, " in every trial.")
    highest = met[-1]
    load = _load(summary, highest)
    goodput = _figure(summary, highest, "goodput")
    every = " in every trial: "
    answer = say("The highest point that met ", limits, every, load, ", goodput ", goodput, ".")
    for finding in highest.objectives:
        if finding.verdict is Verdict.INCONCLUSIVE and finding.reason:
            why = f" Over all its requests that is inconclusive: {finding.reason}."
            return say(answer, why)
    return answer


def _meets(point: PointSummary) -> bool:
    runs = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES]
    return bool(runs) and all(run.holds and run.outcome is Outcome.OK for run in runs)
