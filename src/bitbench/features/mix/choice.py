"""Which type for which tensors: what a group costs in each type, and the best choice under limits.

**Divergence** of a mix is predicted by adding up those of its groups, each measured alone. Small changes of the weights
that are independent of each other move the logits independently, and a KL divergence is quadratic in that movement, so
the expected divergences add. A kind of tensors that was measured as a whole in a type is divided among its groups as
their divergences in the smallest type are.

**Time** of a step is that of the model in one type, per weight: t = Σ weights of type · seconds per weight of type,
solved for the latter from one measured model per type. What a step takes whatever the types are is spread over the
weights, whose number is the same in every mix, so it is counted once in each.

**The choice** is a knapsack with one item per group, solved exactly (branch and bound).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bitbench.analysis.divergence import divergence
from bitbench.analysis.intervals import Resampler, sample, with_interval
from bitbench.analysis.quality import short_scores, window_means
from bitbench.analysis.results.estimate import Estimate, Finding, check
from bitbench.features.mix.asked import MixLimits
from bitbench.features.mix.types import GroupChoice, Option, Predicted, TensorGroup
from bitbench.records.quality import Condition
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Config
from bitbench.study.tensor_types import tensor_type
from bitbench.util.errors import UsageError

DIVERGENCE, TIME, BITS = "divergence", "time", "bits"
FRONT_POINTS = 16
_WORDS = {DIVERGENCE: "a divergence of {:.3g} nats", TIME: "a step of {:.3g} ms", BITS: "{:.3g} bits per weight"}


@dataclass(frozen=True)
class Measured:
    """The divergence that a swap caused: of one group, or of several of a kind at once."""

    groups: tuple[TensorGroup, ...]
    type: str
    divergence: Estimate


def options_of(
    groups: Sequence[TensorGroup], measured: Sequence[Measured], weight_s: Mapping[str, float]
) -> dict[TensorGroup, tuple[Option, ...]]:
    """Each group in each type that fits it."""
    alone = {(swap.groups[0], swap.type): swap.divergence for swap in measured if len(swap.groups) == 1}
    together = {(group, swap.type): swap for swap in measured if len(swap.groups) > 1 for group in swap.groups}

    def option(group: TensorGroup, type: str) -> Option:
        found = alone.get((group, type))
        value = found.value if found else _share(group, together[group, type], alone)
        return Option(
            type=type,
            divergence=value,
            interval=found.interval if found else None,
            is_measured=found is not None,
            step_s=group.weights * weight_s[type] if group.is_multiplied else 0.0,
            size_bytes=tensor_type(type).bytes_of(group.weights),
        )

    return {group: tuple(option(group, type) for type in group.types) for group in groups}


def _share(group: TensorGroup, whole: Measured, alone: Mapping[tuple[TensorGroup, str], Estimate]) -> float:
    """Of what a kind's swap caused, as in the smallest type; by weights where that causes nothing at all."""
    smallest = {member: alone[member, member.types[0]].value for member in whole.groups}
    if (total := sum(smallest.values())) > 0:
        return whole.divergence.value * smallest[group] / total
    return whole.divergence.value * group.weights / sum(member.weights for member in whole.groups)


def weight_times(models: Sequence[tuple[Mapping[TensorGroup, str], float]]) -> dict[str, float]:
    """Seconds per weight of each type, from models and what a step of each takes; none is below zero."""
    from scipy.optimize import nnls  # half a second to import

    counts = [weights_by_type(types) for types, _ in models]
    types = list(dict.fromkeys(type for count in counts for type in count))
    unit = max(max(count.values()) for count in counts)
    design = np.array([[count[type] / unit for type in types] for count in counts])
    found, _ = nnls(design, np.array([step_s for _, step_s in models]))
    return {type: float(value / unit) for type, value in zip(types, found, strict=True)}


def weights_by_type(types: Mapping[TensorGroup, str]) -> Counter[str]:
    """Of what is multiplied in a step."""
    counts: Counter[str] = Counter()
    for group, type in types.items():
        if group.is_multiplied:
            counts[type] += group.weights
    return counts


@dataclass(frozen=True)
class Ceilings:
    """What a mix may have at most, in predicted figures; None: not limited."""

    divergence: float | None = None
    step_s: float | None = None
    bits: float | None = None


def choose(options: Mapping[TensorGroup, Sequence[Option]], ceilings: Ceilings) -> tuple[GroupChoice, ...]:
    """The fastest mix where divergence is limited, else the one that diverges least. Raises UsageError where no mix is
    within the limits."""
    weights = sum(group.weights for group in options)
    costs = {
        DIVERGENCE: [[option.divergence for option in own] for own in options.values()],
        TIME: [[option.step_s for option in own] for own in options.values()],
        BITS: [[8 * option.size_bytes / weights for option in own] for own in options.values()],
    }
    limits = {
        name: limit
        for name, limit in ((DIVERGENCE, ceilings.divergence), (TIME, ceilings.step_s), (BITS, ceilings.bits))
        if limit is not None
    }
    aim = TIME if DIVERGENCE in limits else DIVERGENCE
    picked = _knapsack(costs[aim], [(costs[name], limit) for name, limit in limits.items()])
    if picked is None:
        raise UsageError(_why_none(costs, limits))
    return tuple(
        GroupChoice(group=group, options=tuple(own), chosen=own[place].type)
        for (group, own), place in zip(options.items(), picked, strict=True)
    )


Costs = Sequence[Sequence[float]]  # of each group, of each of its types


def _knapsack(aim: Costs, limited: Sequence[tuple[Costs, float]]) -> list[int] | None:
    """One place per group, the least in sum of those within every limit; None where no choice is."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import

    sizes = [len(own) for own in aim]
    ends = np.cumsum([0, *sizes])
    one_each = np.zeros((len(sizes), ends[-1]))
    for row, (first, after) in enumerate(pairwise(ends)):
        one_each[row, first:after] = 1
    constraints = [LinearConstraint(one_each, 1, 1)]
    for costs, limit in limited:
        scale = max(abs(limit), 1e-300)  # so that the solver's tolerance means the same for all
        constraints.append(LinearConstraint(_flat(costs)[np.newaxis] / scale, -np.inf, limit / scale))
    flat = _flat(aim)
    found = milp(
        flat / max(float(flat.max()), 1e-300),
        integrality=np.ones(ends[-1]),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return [int(np.argmax(found.x[first:after])) for first, after in pairwise(ends)]


def _flat(costs: Costs) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([cost for own in costs for cost in own], dtype=np.float64)


def _why_none(costs: Mapping[str, Costs], limits: Mapping[str, float]) -> str:
    for name, limit in limits.items():
        least = sum(min(own) for own in costs[name])
        if least > limit:
            return f"no mix of these types has {_said(name, limit)}: the least is {_said(name, least)}; add other types"
    both = " and ".join(_said(name, limit) for name, limit in limits.items())
    return f"no mix of these types has {both} at once; add other types, or lift a limit"


def _said(name: str, value: float) -> str:
    return _WORDS[name].format(1000 * value if name == TIME else value)


def predict(options: Mapping[TensorGroup, Sequence[Option]], types: Mapping[TensorGroup, str]) -> Predicted:
    """By adding up."""
    chosen = [next(option for option in options[group] if option.type == type) for group, type in types.items()]
    return Predicted(
        divergence=sum(option.divergence for option in chosen),
        step_s=sum(option.step_s for option in chosen),
        bits=8 * sum(option.size_bytes for option in chosen) / sum(group.weights for group in types),
    )


def front(options: Mapping[TensorGroup, Sequence[Option]]) -> tuple[Predicted, ...]:
    """The mixes that diverge least at each speed, from the fastest of all to the one that diverges least of all."""
    best = predict(options, types_of(choose(options, Ceilings())))
    fastest_s = sum(min(option.step_s for option in own) for own in options.values())
    steps_s = np.linspace(fastest_s * (1 + 1e-9), max(best.step_s, fastest_s * (1 + 1e-9)), FRONT_POINTS)
    found = [predict(options, types_of(choose(options, Ceilings(step_s=float(step_s))))) for step_s in steps_s]
    return tuple(dict.fromkeys(found))


def types_of(choices: Sequence[GroupChoice]) -> dict[TensorGroup, str]:
    return {choice.group: choice.chosen for choice in choices}


def divergence_difference(records: StudyRecords, mix: Config, reference: Config, baseline: Config) -> Estimate | None:
    """Divergence of `mix` from the baseline less that of `reference`, window by window; None where one has none."""
    last = {record.config: record for record in records.quality if record.condition is Condition.ALONE}
    if any(config not in last or last[config].scores_file is None for config in (mix, reference, baseline)):
        return None
    dense, mixed, other = (short_scores(records, last[config]) for config in (baseline, mix, reference))
    worse = window_means(dense.window, divergence(dense, mixed) - divergence(dense, other))
    resampler = Resampler(np.random.default_rng(records.study.seed))
    return with_interval(
        sample([worse.tolist()], resampler), records.study.measure.confidence, lambda difference: difference
    )


def judge_speed(limit: str, speed: Estimate | None) -> Finding:
    """`speed`: the mix's / that of the recipe that is the limit."""
    verdict = check(speed, 1.0, at_least=True)
    return Finding(name=f"speed of {limit}", unit="×", limit=1.0, estimate=speed, verdict=verdict)


def judge_divergence(limit: float, found: Estimate | None) -> Finding:
    return Finding(name="divergence", unit="nats", limit=limit, estimate=found, verdict=check(found, limit))


def judge_difference(limit: str, difference: Estimate | None) -> Finding:
    """`difference`: the mix's divergence less that of the recipe that is the limit."""
    return judge_divergence(0.0, difference).model_copy(update={"name": f"divergence beyond that of {limit}"})


def judge_bits(limit: float, bits: float) -> Finding:
    """As stored: there is no doubt about it."""
    verdict = check(Estimate(value=bits, low=bits, high=bits), limit)
    return Finding(name="bits per weight", unit="", limit=limit, estimate=Estimate(value=bits), verdict=verdict)


def ceilings_of(
    limits: MixLimits, reserve: float, steps_s: Mapping[str, float], divergences: Mapping[str, float]
) -> Ceilings:
    """`steps_s` and `divergences`: as measured, of the recipes that are limits. What is predicted keeps a reserve."""
    divergence_limit = limits.divergence
    if isinstance(divergence_limit, str):
        divergence_limit = divergences[divergence_limit]
    return Ceilings(
        divergence=None if divergence_limit is None else (1 - reserve) * divergence_limit,
        step_s=None if limits.speed is None else (1 - reserve) * steps_s[limits.speed],
        bits=limits.bits,
    )
