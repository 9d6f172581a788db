"""Two studies against each other: whether they may be compared, and then, paired by point, ratios, verdicts and the
limits that were set.

Every fact that moves figures must be the same, or be allowed by name.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bitbench.analysis.absolute import metric_estimates
from bitbench.analysis.changes import (
    Change,
    Changes,
    GateCondition,
    Pair,
    QualityChange,
    changes_between,
    changes_within,
    judge_gate,
    quality_changes,
    quality_pairs,
)
from bitbench.analysis.claims import tested_at
from bitbench.analysis.quality import DEFINITIONS as QUALITY_DEFINITIONS
from bitbench.analysis.quality import PERPLEXITY
from bitbench.analysis.results.comparison import (
    CACHED_ON_ONE_SIDE,
    CacheDifference,
    ChangeVerdict,
    ComparedPoint,
    Comparison,
    Difference,
    GateResult,
    Unpaired,
)
from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.trial import DEFINITIONS, cached_prompts
from bitbench.records.folder import StudyRecords
from bitbench.records.lock import TELLING_FACTS
from bitbench.records.trial import InstanceRecord, Outcome
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Point
from bitbench.study.secrets import is_secret
from bitbench.study.workload import Workload
from bitbench.util.errors import CannotCompareError

Shown = str | None  # None: not known
_DEFINITIONS = {**DEFINITIONS, PERPLEXITY: QUALITY_DEFINITIONS[PERPLEXITY]}


def study_differences(
    before: StudyRecords, after: StudyRecords, pairs: Iterable[tuple[Config, Config]]
) -> tuple[list[Difference], list[Fact]]:
    """What differs between the sides, for the configs that are compared; and what neither side knows."""
    found: list[Difference] = []
    unknown: dict[Fact, bool] = {}
    for fact, subject, first, second in _facts(before, after, list(pairs)):
        if first == second:
            unknown[fact] = unknown.get(fact, True) and first is None
            continue
        unknown[fact] = False
        found.append(
            Difference(
                fact=fact, subject=subject, before=first or "unknown", after=second or "unknown"
            )
        )
    return found, [fact for fact, is_unknown in unknown.items() if is_unknown]


def _facts(
    before: StudyRecords, after: StudyRecords, pairs: Sequence[tuple[Config, Config]]
) -> Iterator[tuple[Fact, str, Shown, Shown]]:
    yield Fact.TOOL, "", _compared_tool(before), _compared_tool(after)
    hosts = (before.lock.host, after.lock.host)
    differing = hosts[0].differences(hosts[1])
    for name in TELLING_FACTS:  # memory differs a little from boot to boot
        yield Fact.HOST, name, hosts[0].shown(name), hosts[name in differing].shown(name)
    packages = [side.lock.environments for side in (before, after)]
    for environment in packages[0].keys() & packages[1].keys():
        for package in sorted(packages[0][environment].keys() | packages[1][environment].keys()):
            first, second = (side[environment].get(package) for side in packages)
            yield Fact.ENVIRONMENT, f"{environment}: {package}", first, second
    for config, other in pairs:
        yield (
            Fact.KERNEL,
            other.name,
            _compared_kernels(before, config),
            _compared_kernels(after, other),
        )
        for fact, read in CONFIG_FACTS.items():
            yield fact, other.name, read(before, config), read(after, other)


def _compared_tool(side: StudyRecords) -> str:
    """With our version: the client is part of what is measured."""
    origin = side.plan.imported_from
    return origin.tool if origin else f"bitbench {side.lock.bitbench or ''}".strip()


def _of_instances(
    read: Callable[[InstanceRecord], Iterable[str]],
) -> Callable[[StudyRecords, Config], Shown]:
    """What the instances of a config say, each thing once."""

    def shown(side: StudyRecords, config: Config) -> Shown:
        said = (
            word for record in side.instances if record.config == config for word in read(record)
        )
        return ", ".join(sorted(set(said))) or None

    return shown


def _compared_kernels(side: StudyRecords, config: Config) -> Shown:
    """The kernel of each kind of layers, or the engine's words where it does not tell them apart."""
    return _CHOICES(side, config) or _WORDS(side, config)


_CHOICES = _of_instances(lambda record: (choice.shown for choice in record.facts.kernel_choices))
_WORDS = _of_instances(lambda record: record.facts.kernels)


def _arguments(side: StudyRecords, config: Config) -> Shown:
    setup = side.plan.study.engine(config.engine)
    dtype = side.plan.chosen_dtypes.get(config)
    environment = {f"${name}": value for name, value in setup.env.items()}
    given = {**({"dtype": dtype} if dtype else {}), **setup.settings, **environment}
    chosen = {
        name: value for name, value in given.items() if not is_secret(name)
    }  # a key changes no figure
    if side.was_running(config):
        chosen.pop("url", None)  # nor does the port that a server listens on
    if not chosen and side.plan.imported_from:
        return None
    return ", ".join(f"{name}={value}" for name, value in sorted(chosen.items())) or "none"


CONFIG_FACTS: dict[Fact, Callable[[StudyRecords, Config], Shown]] = {
    Fact.ENGINE_VERSION: _of_instances(
        lambda record: (
            [record.facts.engine_version] if record.facts.engine_version is not None else []
        )
    ),
    Fact.ARGUMENTS: _arguments,
    Fact.PREFIX_CACHING: _of_instances(
        lambda record: (
            []
            if record.facts.prefix_caching is None
            else ["on" if record.facts.prefix_caching else "off"]
        )
    ),
    Fact.ARTIFACT: lambda side, config: side.plan.variant(config.variant).content_hash,
}


CACHE_SHARES_APART = (
    0.1  # of two sides that both used a cache: with such shares they did not do the same work
)
SHAPE = tuple(field for field in Workload.model_fields if field != "name")


def compare_studies(
    before: StudyRecords,
    after: StudyRecords,
    *,
    conditions: Sequence[GateCondition],
    allowed: Iterable[Fact],
) -> Comparison:
    """Compare points of the same config and workload. Raises CannotCompareError where a fact differs that is not
    allowed."""
    common = [point for point in before.plan.points if point in set(after.plan.points)]
    shared = [
        (config, config) for config in before.plan.configs if config in set(after.plan.configs)
    ]
    configs = list(dict.fromkeys([*((point.config, point.config) for point in common),
                                     *quality_pairs((before, after), shared)]))  # fmt: skip
    if not configs:
        raise CannotCompareError(
            f"{before.name} and {after.name} have no point in common: no config ran the same workload, or had "
            f"its quality measured, in both; two searches choose their own rates, so compare the same --rate instead"
        )
    _refuse_other_shapes(before, after, {point.workload for point in common})
    facts = _allowed_differences(before, after, configs, allowed)
    points, changes = [Pair(point, point) for point in common], changes_between(before, after)
    is_allowed = Fact.PREFIX_CACHING in set(allowed)
    cached = {} if is_allowed else study_cache_differences((before, after), points)
    compared = _compared((before, after), changes, points, configs, cached, conditions=conditions)
    return compared.model_copy(update=facts)


def _allowed_differences(
    before: StudyRecords,
    after: StudyRecords,
    configs: Sequence[tuple[Config, Config]],
    allowed: Iterable[Fact],
) -> dict[str, object]:
    """Fields of a Comparison. Raises CannotCompareError."""
    found, unknown = study_differences(before, after, configs)
    found = [
        difference.model_copy(update={"is_allowed": difference.fact in set(allowed)})
        for difference in found
    ]
    _refuse_differences([difference for difference in found if not difference.is_allowed])
    return {"differences": tuple(found), "unknown_facts": tuple(unknown)}


def compare_within_study(
    side: StudyRecords,
    pairs: Sequence[tuple[Config, Config]],
    *,
    conditions: Sequence[GateCondition],
) -> Comparison:
    """(before, after) within one study: what differs between them is the question, and is only named."""
    points = set(side.plan.points)
    paired = [
        Pair(
            Point(config=before, workload=workload.name),
            Point(config=after, workload=workload.name),
        )
        for before, after in pairs
        for workload in side.plan.study.workloads
        if {
            Point(config=before, workload=workload.name),
            Point(config=after, workload=workload.name),
        }
        <= points
    ]
    if not paired and not quality_pairs((side, side), pairs):
        raise CannotCompareError(
            f"the two have no workload in common in {side.name}, and no measured quality"
        )
    found, unknown = study_differences(side, side, pairs)
    changes, cached = changes_within(side), study_cache_differences((side, side), paired)
    compared = _compared((side, side), changes, paired, pairs, cached, conditions=conditions)
    return compared.model_copy(
        update={
            "baseline": ", ".join(before.name for before, _ in pairs),
            "candidate": ", ".join(other.name for _, other in pairs),
            "differences": tuple(found),
            "unknown_facts": tuple(unknown),
        }
    )


def _compared(
    sides: tuple[StudyRecords, StudyRecords],
    changes: Changes,
    pairs: Sequence[Pair],
    configs: Sequence[tuple[Config, Config]],
    cached: Mapping[Pair, CacheDifference],
    *,
    conditions: Sequence[GateCondition],
) -> Comparison:
    before, after = sides
    measure = before.plan.study.measure
    changes = replace(changes, quality=quality_changes(sides, configs))
    named = [condition.metric for condition in conditions]
    if pairs:
        named.insert(0, METRICS[measure.metric].column)
    wanted = [metric for metric in dict.fromkeys(named) if metric != PERPLEXITY]
    pairs_of: dict[str, Sequence[Pair]] = {
        **dict.fromkeys(wanted, pairs),
        PERPLEXITY: list(changes.quality),
    }
    asked = _asked(pairs_of, changes, conditions)
    found = [
        point
        for metric, own in pairs_of.items()
        for point in compared_points(own, changes, metric, measure.confidence, undecided=cached)
    ]
    gates = tuple(_gates(asked, changes, measure.confidence, cached))
    has_quality = PERPLEXITY in {
        *(point.metric for point in found),
        *(gate.metric for gate in gates),
    }
    return Comparison(
        baseline=before.name,
        candidate=after.name,
        confidence=measure.confidence,
        definitions={
            metric: _DEFINITIONS[metric]
            for metric in (*wanted, *([PERPLEXITY] if has_quality else []))
        },
        points=tuple(found),
        unpaired=(
            *(_unpaired(sides, changes, pairs, wanted[0]) if wanted else ()),
            *(lost for lost in changes.quality.values() if isinstance(lost, Unpaired)),
        ),
        cached=tuple(cached.values()),
        gates=gates,
    )


def study_cache_differences(
    sides: tuple[StudyRecords, StudyRecords], pairs: Sequence[Pair]
) -> dict[Pair, CacheDifference]:
    """The pairs of which one side had its prompts answered from a cache and the other had not, or far less."""
    found = {}
    for pair in pairs:
        before, after = cached_prompts(sides[0], pair.before), cached_prompts(sides[1], pair.after)
        shares = (before.share if before else 0.0, after.share if after else 0.0)
        if (before is None) != (after is None) or abs(shares[0] - shares[1]) >= CACHE_SHARES_APART:
            found[pair] = CacheDifference(point=pair.after, before=shares[0], after=shares[1])
    return found


def compared_points(
    pairs: Sequence[Pair],
    changes: Changes,
    metric: str,
    confidence: float,
    undecided: Container[Pair] = (),
) -> list[ComparedPoint]:
    """The pairs that have this figure on both sides, with a verdict that is corrected for all of them; without one
    where they are `undecided`."""
    both = [(pair, change) for pair in pairs if (change := changes.find(pair, metric)) is not None]
    ratios = [_gain(change, confidence, metric) for _, change in both]
    levels = tested_at([_p_value(ratio) for ratio in ratios], 1 - confidence)
    known = (
        []
        if metric == PERPLEXITY
        else [metric_estimates(side, metric, confidence) for side in changes.samples]
    )
    found = []
    for (pair, change), ratio, level in zip(both, ratios, levels, strict=True):
        corrected = _gain(change, 1 - level, metric)
        if isinstance(change, QualityChange):
            before, after = change.perplexities
        else:
            before, after = known[0][pair.before], known[1][pair.after]
        found.append(
            ComparedPoint(
                baseline=pair.before,
                candidate=pair.after,
                metric=metric,
                before=before,
                after=after,
                ratio=ratio,
                verdict=ChangeVerdict.UNKNOWN if pair in undecided else _verdict(corrected, metric),
                corrected=corrected,
            )
        )
    return found


def _gain(change: Change | QualityChange, confidence: float, metric: str) -> Estimate | None:
    """Return the ratio that is above 1 where the candidate is better."""
    ratio = change.ratio(confidence)
    if ratio is None or _DEFINITIONS[metric].higher_is_better or ratio.value == 0:
        return ratio
    return ratio.inverse


def _p_value(ratio: Estimate | None) -> float:
    return 1.0 if ratio is None or ratio.p_value is None else ratio.p_value


# A smaller rise is no loss that anybody would act on; it keeps another order of summation from being called worse.
SMALLEST_RISE = 0.001


def _verdict(gain: Estimate | None, metric: str) -> ChangeVerdict:
    """Of a ratio whose whole interval lies above or below 1."""
    if gain is None or gain.interval is None:
        return ChangeVerdict.UNKNOWN
    words = (ChangeVerdict.FASTER, ChangeVerdict.SLOWER)
    if metric == PERPLEXITY:
        words = (ChangeVerdict.BETTER, ChangeVerdict.WORSE)
    elif _DEFINITIONS[metric].unit == "bytes":
        words = (ChangeVerdict.LESS, ChangeVerdict.MORE)
    margin = SMALLEST_RISE if metric == PERPLEXITY else 0.0
    if gain.is_above(1 + margin):
        return words[0]
    return words[1] if gain.is_below(1 - margin) else ChangeVerdict.UNDECIDED


def _asked(
    pairs_of: Mapping[str, Sequence[Pair]], changes: Changes, conditions: Sequence[GateCondition]
) -> list[tuple[GateCondition, Pair]]:
    """A point without a figure on one side cannot be judged; without one on either it is not asked.

    Unless that is so of all points: a limit that nothing was held against was not kept.
    """
    asked: list[tuple[GateCondition, Pair]] = []
    for condition in conditions:
        metric = condition.metric
        pairs = pairs_of[metric]
        if not pairs and metric == PERPLEXITY:
            raise CannotCompareError(
                "a limit on perplexity needs studies that measured quality; neither did"
            )
        if not pairs:  # else a limit that nothing is held against would be kept
            raise CannotCompareError(f"a limit on {metric} needs a workload that both ran")
        known = [
            pair for pair in pairs if changes.before(pair, metric) or changes.after(pair, metric)
        ]
        asked += [(condition, pair) for pair in known or pairs]
    return asked


def _gates(
    asked: Sequence[tuple[GateCondition, Pair]],
    changes: Changes,
    confidence: float,
    cached: Container[Pair],
) -> Iterator[GateResult]:
    for condition, pair in asked:
        change = changes.find(pair, condition.metric)
        if change is not None:
            judged = judge_gate(condition, pair, change, confidence, len(asked))
            unsure = {"verdict": Verdict.INCONCLUSIVE, "reason": CACHED_ON_ONE_SIDE}
            yield judged.model_copy(update=unsure) if pair in cached else judged
        else:
            yield condition.result(
                pair, None, Verdict.INCONCLUSIVE, changes.why_missing(pair, condition.metric)
            )


def _unpaired(
    sides: tuple[StudyRecords, StudyRecords], changes: Changes, pairs: Sequence[Pair], metric: str
) -> list[Unpaired]:
    found = []
    for pair in pairs:
        before, after = changes.before(pair, metric), changes.after(pair, metric)
        if before and not after:
            found.append(_without_result(sides[1], pair.after, was_lost=True))
        elif after and not before:
            found.append(_without_result(sides[0], pair.before, was_lost=False))
        elif not before:
            found.append(
                Unpaired(point=pair.after, reason="has no result on either side", was_lost=False)
            )
    if sides[0] is sides[1]:
        return found
    paired = {point for pair in pairs for point in (pair.before, pair.after)}
    for side, other_name in ((sides[0], sides[1].name), (sides[1], sides[0].name)):
        found += [
            Unpaired(point=point, reason=f"is not in {other_name}", was_lost=False)
            for point in side.plan.points
            if point not in paired
        ]
    return found


def _without_result(side: StudyRecords, point: Point, *, was_lost: bool) -> Unpaired:
    outcomes = sorted(
        {trial.outcome.value for trial in side.trials if trial.point == point} - {Outcome.OK.value}
    )
    reason = f"has no result in {side.name}" + (f" ({', '.join(outcomes)})" if outcomes else "")
    return Unpaired(point=point, reason=reason, was_lost=was_lost)


def _refuse_other_shapes(
    before: StudyRecords, after: StudyRecords, workloads: Iterable[str]
) -> None:
    for name in sorted(workloads):
        own, other = before.plan.study.workload(name), after.plan.study.workload(name)
        differing = [part for part in SHAPE if getattr(own, part) != getattr(other, part)]
        if differing:
            raise CannotCompareError(
                f"workload {name} is not the same: "
                + "; ".join(
                    f"{part} {getattr(own, part)} and {getattr(other, part)}" for part in differing
                )
            )


def _refuse_differences(found: Sequence[Difference]) -> None:
    if not found:
        return
    facts = dict.fromkeys(difference.fact for difference in found)
    said = "; ".join(
        f"{other.fact.value}{f' ({other.subject})' if other.subject else ''}: {other.before} and {other.after}"
        for other in found
    )
    allow = " ".join(f"--allow {fact.value}" for fact in facts)
    raise CannotCompareError(
        f"not comparable, this differs: {said}; to compare all the same, add {allow}"
    )
