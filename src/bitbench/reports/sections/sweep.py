"""Along a growing load: the table and the sentences of one config."""

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
    listing,
    name_phrases,
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
WIDE = 130  # columns of a terminal from which all figures fit beside each other
INTERVALS_FIT = 190  # from which their intervals do, too
REQUESTS = "requests/s"
LOAD = ("concurrency", "arrival")  # of a workload: how much is asked at once


def sweep_points(summary: StudySummary, *, was_running: bool = False) -> list[PointSummary]:
    """The points by rising load, of a study that asks one config for the same at several loads, or a server that
    `was_running` already at one; else nothing."""
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
    """Requests per second, or requests in flight."""
    return mean_arrival_rate(workload.arrival) or float(workload.concurrency)


def sweep_shape_without(differing: Iterable[str], workload: Workload) -> str:
    """All of it but its length in time and these: the kind of arrival stays."""
    content = workload.model_dump(exclude={"name", "requests", "duration", *differing})
    return f"{content} {workload.arrival.kind}"


def sweep_section(summary: StudySummary) -> Section:
    return Section(
        say(Name(summary.configs[0].config.name), " under load"),
        (paragraph(_asked(summary)), _table(summary)),
        in_terminal=True,
    )


def _asked(summary: StudySummary) -> Phrase:
    """What all points have in common: `128 tokens in, 64 tokens out, poisson arrivals of 30.0 s.`"""
    workload = summary.study.workloads[0]
    how = f"{workload.arrival.kind} arrivals" if workload.open_loop else "closed loop"
    length = f" of {show_seconds(workload.duration)}" if workload.duration else ""
    texts = say(", texts from ", Name(workload.text.file)) if workload.text else ()
    said, answered = (
        workload_length_text(workload.input_tokens),
        workload_length_text(workload.output_tokens),
    )
    return say(f"{said} tokens in, {answered} tokens out, {how}{length}", texts, ".")


def _table(summary: StudySummary) -> Table:
    """A narrow terminal has no room for intervals, nor for an offered rate beside the one that was asked for."""
    points = _points(summary)
    by_rate = summary.study.workloads[0].open_loop
    goodput = ["goodput"] if summary.study.objectives else []
    metrics = dict.fromkeys(
        [
            *(RATE_METRICS if by_rate else STREAM_METRICS),
            sweep_tail_metric(summary),
            "tpot_s",
            *goodput,
        ]
    )
    title, unit = ("Rate", "req/s") if by_rate else ("In flight", Unit.NONE)
    return table(
        points,
        number_column(title, unit, lambda point: setting_quantity(_level(summary, point), unit)),
        words_column("Outcome", lambda point: counted(_verdicts(point)) or "not run"),
        *(
            ranked_metric_column(
                summary,
                metric,
                shown_from=WIDE if metric == "offered_rate" else 0,
                intervals_from=INTERVALS_FIT,
            )
            for metric in metrics
        ),
        number_column(
            "Errors", Unit.COUNT, _errors, shown_from=0 if any(map(_errors, points)) else WIDE
        ),
        mark=lambda point: (
            Mark.ALARM if any(word.startswith("fails") for word in _verdicts(point)) else None
        ),
    )


def sweep_tail_metric(summary: StudySummary) -> str:
    """The highest percentile of the time to first token for which every point has enough requests."""
    tails = [point.tails for point in summary.points]
    known = {metric: [of[metric] for of in tails if metric in of] for metric in TAILS}
    if not any(known.values()):  # of requests that were not kept, the mean over trials
        return TAILS[0]
    return next(
        (metric for metric, of in known.items() if of and all(each.is_carried for each in of)),
        "ttft_p50_s",
    )


def _errors(point: PointSummary) -> int:
    return sum(run.failed_requests for run in point.runs)


def _verdicts(point: PointSummary) -> list[str]:
    """One per trial. One that says nothing about the engine counts only where it met the objectives all the same."""
    runs = [
        run for run in point.runs if run.outcome not in NOT_THE_ENGINES or run.holds
    ] or point.runs
    return [_verdict(run) for run in runs]


def _verdict(run: Run) -> str:
    """`meets`, `fails`, `unknown`, or the outcome where nothing was promised."""
    if run.holds is None and run.outcome is Outcome.OK and run.why_not:
        return "unknown"
    if run.holds is None or run.outcome not in (Outcome.OK, Outcome.CLIENT_BOUND):
        return run.outcome.value
    slow = ", slow client" if run.outcome is Outcome.CLIENT_BOUND else ""
    return f"{'meets' if run.holds else 'fails'}{slow}"


def sweep_answer(summary: StudySummary) -> list[Phrase]:
    """What the table says."""
    sentences = [_searched(summary, summary.search)] if summary.search else [_most_output(summary)]
    if summary.study.objectives and not summary.search:
        sentences.append(_highest_met(summary))
    flawed = [point for point in _points(summary) if _errors(point)]
    if flawed:
        causes = [group.failure.cause for point in flawed for group in point.failures]
        why = f": {causes[0]}" if causes else "."
        sentences.append(
            say(
                "Requests failed on ",
                listing(name_phrases(point.point.workload for point in flawed)),
                why,
            )
        )
    return [
        *sentences,
        *cached_remarks(summary),
        *stream_remarks(summary),
        *(
            say(note)
            for note in sorted({note for config in summary.configs for note in config.notes})
        ),
    ]


RESUMES = "the same command with --into resumes the search."
ENDS = {
    None: f" The search was interrupted; {RESUMES}",
    SearchStop.TRIALS: " All its trials were used; more --trials narrow it.",
    SearchStop.HIGHEST: " --max-rate allows more.",
}


def _searched(summary: StudySummary, found: RateAnswer) -> Phrase:
    limits = promised_objectives_in_words(summary)
    end = ENDS.get(found.stop, "")
    if found.rate is None and found.high is None:
        runs = [
            run for point in summary.points for run in point.runs
        ]  # the machine may have spoiled them
        why = f"none of {plural(len(runs), 'trial')} counts" if runs else "no trial was finished"
        return say("No rate was tested against ", limits, f": {why}; {RESUMES}")
    if found.rate is None:
        lowest = setting_quantity(found.high or 0.0, REQUESTS)
        return say(
            limits, " is not met, not even at ", lowest, ", the lowest rate that was tried.", end
        )
    if found.high is None:
        said = say(
            limits,
            " is met even at ",
            setting_quantity(found.rate, REQUESTS),
            ", the highest rate tried.",
        )
        return say(said, _verified(found), end)
    rate = Quantity(found.rate, REQUESTS, found.low, found.high)
    interval = f" ({percent(found.confidence)} interval, {plural(found.trials, 'trial')})."
    return say(
        "The highest rate that meets ", limits, ": ", strong(rate), interval, _verified(found), end
    )


def _verified(found: RateAnswer) -> Phrase:
    """What long trials at the lower end of the answer showed."""
    if found.verified is not None:
        count = f"{found.verified_requests:,} requests"
        rate = setting_quantity(found.verified, REQUESTS)
        return say(" Verified: a trial of ", count, " at ", rate, " met the limits.")
    if found.refuted and found.stop is not None:
        rates = listing([setting_quantity(rate, REQUESTS) for rate in found.refuted])
        return say(" Not verified: long trials at ", rates, " missed the limits.")
    return ()


def _most_output(summary: StudySummary) -> Phrase:
    known = [point for point in _points(summary) if "output_throughput" in point.metrics]
    if not known:
        return say("No point has a result.")
    lacking = _without_result(summary)
    best = max(known, key=lambda point: point.metrics["output_throughput"].value)
    output, ttft = (
        _figure(summary, best, "output_throughput"),
        _figure(summary, best, sweep_tail_metric(summary)),
    )
    time = f", with a {ranked_metric_definition(summary, sweep_tail_metric(summary)).label} of "
    of_the_rest = "of the other points the most output is " if lacking else "The most output: "
    return say(lacking, of_the_rest, strong(output), " at ", _load(summary, best), time, ttft, ".")


def _without_result(summary: StudySummary) -> Phrase:
    """`8 in flight has no result (client_bound (6)); `, empty where every point has one."""
    missing = [
        say(_load(summary, point), f" ({ranked_point_outcomes(point) or 'not tried'})")
        for point in _points(summary)
        if "output_throughput" not in point.metrics
    ]
    have = "has" if len(missing) == 1 else "have"
    return say(listing(missing), f" {have} no result; ") if missing else ()


def _load(summary: StudySummary, point: PointSummary) -> Quantity:
    by_rate = summary.study.workloads[0].open_loop
    return setting_quantity(_level(summary, point), REQUESTS if by_rate else "in flight")


def _figure(summary: StudySummary, point: PointSummary, metric: str) -> Quantity | None:
    return point_quantity(point, metric, ranked_metric_definition(summary, metric))


def _highest_met(summary: StudySummary) -> Phrase:
    limits = promised_objectives_in_words(summary)
    met = [point for point in _points(summary) if _meets(point)]
    if not met:
        return say("No point met ", limits, " in every trial.")
    at, goodput = _load(summary, met[-1]), _figure(summary, met[-1], "goodput")
    said = say(
        "The highest point that met ", limits, " in every trial: ", at, ", goodput ", goodput, "."
    )
    unsure = [
        found.reason
        for found in met[-1].objectives
        if found.verdict is Verdict.INCONCLUSIVE and found.reason
    ]
    return (
        say(said, f" Over all its requests that is inconclusive: {unsure[0]}.") if unsure else said
    )


def _meets(point: PointSummary) -> bool:
    judged = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES]
    return bool(judged) and all(run.holds and run.outcome is Outcome.OK for run in judged)
