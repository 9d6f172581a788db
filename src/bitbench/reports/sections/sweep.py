"""One config under growing load: a table with a row per point, and what it says in sentences."""

from bitbench.analysis.results.summary import PointSummary, RateAnswer, SearchStop, StudySummary
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.reports.document.model import Mark, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.words import counted, listing, names, paragraph, plural, say, strong
from bitbench.reports.quantities import figure_of, setting, share
from bitbench.reports.sections.answer import cached_remarks
from bitbench.reports.sections.objectives import promise
from bitbench.reports.sections.ranked import definition_of, metric_column
from bitbench.study.arrival import mean_rate
from bitbench.study.prompts import show_length
from bitbench.study.workload import Workload
from bitbench.util.units import show_seconds

RATE_METRICS = ("offered_rate", "achieved_rate", "output_throughput", "ttft_p50_s")
STREAM_METRICS = ("request_throughput", "output_throughput", "ttft_p50_s")
TAILS = ("ttft_p99_s", "ttft_p95_s", "ttft_p90_s")
WIDE = 130  # columns of a terminal from which all figures fit beside each other
INTERVALS_FIT = 190  # from which their intervals do, too
REQUESTS = "requests/s"


def sweep_points(summary: StudySummary, *, was_running: bool = False) -> list[PointSummary]:
    """The points by rising load, of a study that asks one config for the same at several loads, or a server that
    `was_running` already at one; else nothing."""
    workloads = summary.study.workloads
    if summary.refusals or len(summary.configs) != 1 or len({_shape(workload) for workload in workloads}) != 1:
        return []
    if len(workloads) < 2 and summary.search is None and not was_running:
        return []
    return _points(summary)


def _points(summary: StudySummary) -> list[PointSummary]:
    return sorted(summary.points, key=lambda point: _level(summary, point))


def _level(summary: StudySummary, point: PointSummary) -> float:
    return level(summary.study.workload(point.point.workload))


def level(workload: Workload) -> float:
    """Requests per second, or requests in flight."""
    return mean_rate(workload.arrival) or float(workload.concurrency)


def _shape(workload: Workload) -> str:
    """All but how much of it: the kind of arrival stays."""
    content = workload.model_dump(exclude={"name", "concurrency", "requests", "duration", "arrival"})
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
    tokens = f"{show_length(workload.input_tokens)} tokens in, {show_length(workload.output_tokens)} tokens out"
    return say(f"{tokens}, {how}{length}", texts, ".")


def _table(summary: StudySummary) -> Table:
    """A narrow terminal has no room for intervals, nor for an offered rate beside the one that was asked for."""
    points = _points(summary)
    by_rate = summary.study.workloads[0].open_loop
    goodput = ["goodput"] if summary.study.objectives else []
    metrics = dict.fromkeys([*(RATE_METRICS if by_rate else STREAM_METRICS), tail_of(summary), "tpot_s", *goodput])
    title, unit = ("Rate", "req/s") if by_rate else ("In flight", Unit.NONE)
    return table(
        points,
        number_column(title, unit, lambda point: setting(_level(summary, point), unit)),
        words_column("Outcome", lambda point: counted(_verdicts(point)) or "not run"),
        *(
            metric_column(
                summary, metric, shown_from=WIDE if metric == "offered_rate" else 0, intervals_from=INTERVALS_FIT
            )
            for metric in metrics
        ),
        number_column("Errors", Unit.COUNT, _errors, shown_from=0 if any(map(_errors, points)) else WIDE),
        mark=lambda point: Mark.ALARM if any(word.startswith("fails") for word in _verdicts(point)) else None,
    )


def tail_of(summary: StudySummary) -> str:
    """The highest percentile of the time to first token for which every point has enough requests."""
    tails = [point.tails for point in summary.points]
    known = {metric: [of[metric] for of in tails if metric in of] for metric in TAILS}
    if not any(known.values()):  # of requests that were not kept, the mean over trials
        return TAILS[0]
    return next((metric for metric, of in known.items() if of and all(each.is_carried for each in of)), "ttft_p50_s")


def _errors(point: PointSummary) -> int:
    return sum(run.failed_requests for run in point.runs)


def _verdicts(point: PointSummary) -> list[str]:
    """One per trial. One that says nothing about the engine counts only where it met the objectives all the same."""
    runs = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES or run.holds] or point.runs
    return [_verdict(run.outcome, run.holds) for run in runs]


def _verdict(outcome: Outcome, holds: bool | None) -> str:
    """`meets`, `fails`, or the outcome where nothing was promised."""
    if holds is None or outcome not in (Outcome.OK, Outcome.CLIENT_BOUND):
        return outcome.value
    slow = ", slow client" if outcome is Outcome.CLIENT_BOUND else ""
    return f"{'meets' if holds else 'fails'}{slow}"


def sweep_answer(summary: StudySummary) -> list[Phrase]:
    """What the table says."""
    sentences = [_searched(summary, summary.search)] if summary.search else [_most_output(summary)]
    if summary.study.objectives and not summary.search:
        sentences.append(_highest_met(summary))
    flawed = [point for point in _points(summary) if _errors(point)]
    if flawed:
        causes = [group.failure.cause for point in flawed for group in point.failures]
        why = f": {causes[0]}" if causes else "."
        sentences.append(say("Requests failed on ", listing(names(point.point.workload for point in flawed)), why))
    return [
        *sentences,
        *cached_remarks(summary),
        *(say(note) for note in sorted({note for config in summary.configs for note in config.notes})),
    ]


def _searched(summary: StudySummary, found: RateAnswer) -> Phrase:
    limits = promise(summary)
    if found.rate is None and found.high is None:
        return say("No rate was tested against ", limits, ": ", _why_untested(summary))
    if found.rate is None:
        lowest = setting(found.high or 0.0, REQUESTS)
        said = say(limits, " is not met, not even at ", lowest, ", the lowest rate that was tried.")
        return say(said, _not_at_an_end(found, "lower"))
    if found.high is None:
        advice = "; --max-rate allows more" if found.stop is SearchStop.HIGHEST else ""
        said = say(limits, " is met even at ", setting(found.rate, REQUESTS), f", the highest rate tried{advice}.")
        return say(said, _not_at_an_end(found, "higher"))
    rate = Quantity(found.rate, REQUESTS, found.low, found.high)
    return say(
        "The highest rate that meets ", limits, ": ", strong(rate), f" ({percent(found.confidence)} CI). ", _end(found)
    )


def _why_untested(summary: StudySummary) -> str:
    """Trials that the machine spoiled say nothing about a rate."""
    runs = [run for point in summary.points for run in point.runs]
    why = f"none of {plural(len(runs), 'trial')} counts" if runs else "no trial was finished"
    return f"{why}. The same command with --into resumes the search."


def _not_at_an_end(found: RateAnswer, way: str) -> str:
    """Of a search that knows one side only, where it might have gone on."""
    if found.stop is SearchStop.TRIALS:
        return f" It has used all its trials; more --trials try {way} rates."
    return f" {_interrupted(found)}" if found.stop is None else ""


def _interrupted(found: RateAnswer) -> str:
    trials = plural(found.trials, "trial")
    return f"The search was interrupted after {trials}; the same command with --into resumes it."


def _end(found: RateAnswer) -> str | Phrase:
    """Why no more trials were run, of a search that knows both ends of its interval."""
    trials = plural(found.trials, "trial")
    if found.stop is None:
        return _interrupted(found)
    if found.stop is SearchStop.TRIALS and found.rate and found.low is not None and found.high is not None:
        precision = share((found.high - found.low) / 2 / found.rate)
        return say(f"All {trials} were used, and it is known to ± ", precision, "; more --trials narrow it.")
    return f"{trials} were enough." if found.stop is SearchStop.PRECISE else ""


def _most_output(summary: StudySummary) -> Phrase:
    known = [point for point in _points(summary) if "output_throughput" in point.metrics]
    if not known:
        return say("No point has a result.")
    best = max(known, key=lambda point: point.metrics["output_throughput"].value)
    output, ttft = _figure(summary, best, "output_throughput"), _figure(summary, best, tail_of(summary))
    time = f", with a {definition_of(summary, tail_of(summary)).label} of "
    return say("The most output: ", strong(output), " at ", _load(summary, best), time, ttft, ".")


def _load(summary: StudySummary, point: PointSummary) -> Quantity:
    by_rate = summary.study.workloads[0].open_loop
    return setting(_level(summary, point), REQUESTS if by_rate else "in flight")


def _figure(summary: StudySummary, point: PointSummary, metric: str) -> Quantity | None:
    return figure_of(point, metric, definition_of(summary, metric))


def _highest_met(summary: StudySummary) -> Phrase:
    limits = promise(summary)
    met = [point for point in _points(summary) if _meets(point)]
    if not met:
        return say("No point met ", limits, " in every trial.")
    at, goodput = _load(summary, met[-1]), _figure(summary, met[-1], "goodput")
    return say("The highest point that met ", limits, " in every trial: ", at, ", goodput ", goodput, ".")


def _meets(point: PointSummary) -> bool:
    judged = [run for run in point.runs if run.outcome not in NOT_THE_ENGINES]
    return bool(judged) and all(run.holds and run.outcome is Outcome.OK for run in judged)
