"""A limit such as `output_throughput < -3%`, and whether a change exceeds it, meets it, or is inconclusive.

Several points may be asked at once, so each interval is made at the confidence 1 − (1 − c) / number (Bonferroni): the
chance that any of equal points is called broken stays below 1 − c. An interval that rests on one start knows nothing of
the next one, and decides nothing. Of a server that bitbench did not start no start is in question: it is judged by its
trials, and what is found does not cover a restart.
"""

import re
from dataclasses import dataclass
from math import log, sqrt

from bitbench.analysis.changes import Change, Pair
from bitbench.analysis.distributions import t_reach
from bitbench.analysis.quality import PERPLEXITY
from bitbench.analysis.results.comparison import GateResult, Replicate
from bitbench.analysis.results.estimate import Estimate, Verdict, check
from bitbench.analysis.trial import RECORDED
from bitbench.study.metrics import find
from bitbench.util.errors import UsageError
from bitbench.util.near_miss import did_you_mean

MOST_REPETITIONS = 1000  # beyond it nobody starts an engine again; the change equals the limit itself
FEWEST_STARTS = 3  # two give an interval so wide that it decides nothing
MAX_RATE = "max_rate"  # what a search for the highest rate finds: a figure of two searches, and of no trial
FEWEST_TRIALS = 3  # of a running server, on each side; as many as `bitbench load` makes of a point by default

_CONDITION = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?)\s*([0-9]*\.?[0-9]+)\s*(%?)\s*")


@dataclass(frozen=True)
class GateCondition:
    """Broken when the change of `metric`, relative to the baseline, is below (`<`) or above (`>`) `change`."""

    text: str
    metric: str
    is_below: bool
    change: float

    @property
    def limit(self) -> float:
        """As a ratio."""
        return 1 + self.change

    def check(self, ratio: Estimate) -> Verdict:
        return check(ratio, self.limit, at_least=self.is_below)

    def result(self, pair: Pair, ratio: Estimate | None, verdict: Verdict, reason: str = "") -> GateResult:
        return GateResult(
            condition=self.text,
            metric=self.metric,
            baseline=pair.before,
            candidate=pair.after,
            verdict=verdict,
            ratio=ratio,
            reason=reason,
        )


def parse_metric(name: str) -> str:
    """The column of a figure that every trial records, or perplexity; in any spelling of `study.metrics`."""
    if name == MAX_RATE:
        return MAX_RATE
    metric = find(name)
    if metric is None or metric.column not in (*RECORDED, PERPLEXITY):
        known = [*(figure.name for figure in RECORDED.values()), PERPLEXITY, MAX_RATE]
        raise UsageError(f"unknown figure {name}; {did_you_mean(name, known)}known are {', '.join(known)}")
    return metric.column


def parse_condition(text: str) -> GateCondition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(f'--fail-if {text!r} cannot be parsed; write it as "output_throughput < -3%" or "ttft > 5%"')
    name, sign, minus, amount, percent = match.groups()
    metric = parse_metric(name)
    if not percent and float(amount):
        shown = [f'"{name} {sign} {minus}{number:g}%"' for number in (float(amount), 100 * float(amount))]
        raise UsageError(f"--fail-if {text!r} needs a percent sign; write {' or '.join(shown)}")
    change = float(amount) / 100 * (-1 if minus == "-" else 1)
    if change <= -1:
        raise UsageError(f"--fail-if {text!r}: no figure can fall by 100 % or more")
    return GateCondition(" ".join(text.split()), metric, sign == "<", change)


def judge(condition: GateCondition, pair: Pair, change: Change, confidence: float, asked: int) -> GateResult:
    """`asked`: how many points and conditions are judged at once."""
    single = 1 - (1 - confidence) / asked
    ratio = change.ratio(single)
    if ratio is None:
        return condition.result(pair, None, Verdict.INCONCLUSIVE, "a ratio of these means is not defined")
    verdict, reason, needed = condition.check(ratio), "", None
    if (lacking := _lacking(change)) is not None or ratio.interval is None:
        verdict, reason = Verdict.INCONCLUSIVE, lacking or "too few trials for an interval"
        needed = FEWEST_TRIALS if change.unit is Replicate.TRIALS else FEWEST_STARTS
    elif verdict is Verdict.INCONCLUSIVE:
        needed = repetitions_needed(change, log(ratio.value) - log(condition.limit), single)
        reason = "the interval contains the limit" if needed else "the change equals the limit"
    judged = condition.result(pair, ratio, verdict, reason)
    return judged.model_copy(update={"needed": needed, "unit": change.unit})


def _lacking(change: Change) -> str | None:
    """Why so few repetitions decide nothing, whatever their interval is."""
    if change.unit is Replicate.TRIALS:
        return f"one side has fewer than {FEWEST_TRIALS} trials" if change.fewest < FEWEST_TRIALS else None
    return "one side has a single start, which does not cover a restart" if change.fewest < 2 else None


def repetitions_needed(change: Change, distance: float, confidence: float) -> int | None:
    """Of each side until the interval would leave the limit, if means and spread stay as they are.

    `distance` of the log ratio to the limit. None: more than MOST_REPETITIONS. The standard error of a mean falls with
    the root of their number.
    """
    variance = change.variance_of_one
    if variance is None:
        return None
    for count in range(change.fewest + 1, MOST_REPETITIONS + 1):
        quantile = t_reach(change.degrees_of_freedom(count), confidence)
        if quantile * sqrt(variance / count) < abs(distance):
            return count
    return None
