"""Compare two studies, or configs of one study.

Two studies may be compared if every fact that moves the metrics is the same or is allowed by name.
A comparison has ratios and verdicts, paired by point, and checks the requested limits.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bitbench.analysis.absolute import estimate_metric
from bitbench.analysis.changes import (
    Change,
    Changes,
    GateCondition,
    Pair,
    QualityChange,
    collect_quality_changes,
    judge_gate,
    list_quality_pairs,
    make_changes_between_studies,
    make_changes_within_study,
)
from bitbench.analysis.claims import compute_holm_levels
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
from bitbench.analysis.trial import DEFINITIONS, find_cached_prompts
from bitbench.records.folder import StudyRecords
from bitbench.records.lock import TELLING_FACTS
from bitbench.records.trial import InstanceRecord, Outcome
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Point
from bitbench.study.secrets import is_secret
from bitbench.study.workload import Workload
from bitbench.util.errors import CannotCompareError

Shown = str | None  # None: unknown
_DEFINITIONS = {**DEFINITIONS, PERPLEXITY: QUALITY_DEFINITIONS[PERPLEXITY]}


def collect_study_differences(
    before: StudyRecords, after: StudyRecords, pairs: Iterable[tuple[Config, Config]]
) -> tuple[list[Difference], list[Fact]]:
    """Return the facts that differ between the sides, and the facts that neither side records.

    Facts of a config are checked for the configs that are compared.
    """
    differences: list[Difference] = []
    unknown: dict[Fact, bool] = {}
    for fact, subject, first, second in _iter_facts(before, after, list(pairs)):
        if first == second:
            unknown[fact] = unknown.get(fact, True) and first is None
            continue
        unknown[fact] = False
        differences.append(
            Difference(
                fact=fact, subject=subject, before=first or "unknown", after=second or "unknown"
            )
        )
    return differences, [fact for fact, is_unknown in unknown.items() if is_unknown]


def _iter_facts(
    before: StudyRecords, after: StudyRecords, pairs: Sequence[tuple[Config, Config]]
) -> Iterator[tuple[Fact, str, Shown, Shown]]:
    """Yield each fact with its subject and its text on both sides."""
    yield Fact.TOOL, "", _describe_tool(before), _describe_tool(after)
    host = before.lock.host
    differing = host.differences(after.lock.host)
    for name in TELLING_FACTS:
        # Memory differs a little from boot to boot, which is not a difference.
        other_host = after.lock.host if name in differing else host
        yield Fact.HOST, name, host.shown(name), other_host.shown(name)
    for environment in before.lock.environments.keys() & after.lock.environments.keys():
        packages = before.lock.environments[environment]
        other_packages = after.lock.environments[environment]
        for package in sorted(packages.keys() | other_packages.keys()):
            subject = f"{environment}: {package}"
            yield Fact.ENVIRONMENT, subject, packages.get(package), other_packages.get(package)
    for config, other in pairs:
        kernels = _describe_kernels(before, config)
        yield Fact.KERNEL, other.name, kernels, _describe_kernels(after, other)
        for fact, read in CONFIG_FACTS.items():
            yield fact, other.name, read(before, config), read(after, other)


def _describe_tool(records: StudyRecords) -> str:
    """Return the tool and its version. For bitbench, the client is part of the measurement."""
    origin = records.plan.imported_from
    return origin.tool if origin else f"bitbench {records.lock.bitbench or ''}".strip()


def _make_instance_reader(
    read: Callable[[InstanceRecord], Iterable[str]],
) -> Callable[[StudyRecords, Config], Shown]:
    """Return a function that lists the distinct texts `read` returns for a config's instances."""

    def describe(records: StudyRecords, config: Config) -> Shown:
        texts: set[str] = set()
        for record in records.instances:
            if record.config == config:
                texts.update(read(record))
        return ", ".join(sorted(texts)) or None

    return describe


def _describe_kernels(records: StudyRecords, config: Config) -> Shown:
    """Return the kernel of each kind of layer, or the engine's own text if it lists none."""
    return _CHOICES(records, config) or _WORDS(records, config)


_CHOICES = _make_instance_reader(
    lambda record: (choice.shown for choice in record.facts.kernel_choices)
)
_WORDS = _make_instance_reader(lambda record: record.facts.kernels)


def _describe_arguments(records: StudyRecords, config: Config) -> Shown:
    setup = records.plan.study.engine(config.engine)
    arguments: dict[str, object] = {}
    dtype = records.plan.chosen_dtypes.get(config)
    if dtype:
        arguments["dtype"] = dtype
    arguments.update(setup.settings)
    for name, value in setup.env.items():
        arguments[f"${name}"] = value
    # A key changes no metric, and neither does the port that a server listens on.
    if records.was_running(config):
        arguments.pop("url", None)
    public = [f"{name}={arguments[name]}" for name in sorted(arguments) if not is_secret(name)]
    if not public and records.plan.imported_from:
        return None
    return ", ".join(public) or "none"


def _list_engine_version(record: InstanceRecord) -> list[str]:
    version = record.facts.engine_version
    return [] if version is None else [version]


def _list_prefix_caching(record: InstanceRecord) -> list[str]:
    if record.facts.prefix_caching is None:
        return []
    return ["on" if record.facts.prefix_caching else "off"]


CONFIG_FACTS: dict[Fact, Callable[[StudyRecords, Config], Shown]] = {
    Fact.ENGINE_VERSION: _make_instance_reader(_list_engine_version),
    Fact.ARGUMENTS: _describe_arguments,
    Fact.PREFIX_CACHING: _make_instance_reader(_list_prefix_caching),
    Fact.ARTIFACT: lambda records, config: records.plan.variant(config.variant).content_hash,
}


# Two sides that both used a cache, with shares that differ by this much, did not do the same work.
CACHE_SHARES_APART = 0.1
SHAPE = tuple(field for field in Workload.model_fields if field != "name")


def compare_studies(
    before: StudyRecords,
    after: StudyRecords,
    *,
    conditions: Sequence[GateCondition],
    allowed: Iterable[Fact],
) -> Comparison:
    """Compare points of the same config and workload in two studies.

    Raise CannotCompareError if a fact differs that is not allowed.
    """
    after_points = set(after.plan.points)
    after_configs = set(after.plan.configs)
    shared = [(config, config) for config in before.plan.configs if config in after_configs]
    points = []
    configs = []
    for point in before.plan.points:
        if point in after_points:
            points.append(Pair(point, point))
            configs.append((point.config, point.config))
    configs += list_quality_pairs((before, after), shared)
    configs = list(dict.fromkeys(configs))
    if not configs:
        raise CannotCompareError(
            f"{before.name} and {after.name} have no point in common: no config ran the same "
            "workload, or had its quality measured, in both; two searches choose their own rates, "
            "so compare the same --rate instead"
        )
    _refuse_other_shapes(before, after, {pair.after.workload for pair in points})
    facts = _collect_allowed_differences(before, after, configs, allowed)
    changes = make_changes_between_studies(before, after)
    cached = {}
    if Fact.PREFIX_CACHING not in set(allowed):
        cached = collect_cache_differences((before, after), points)
    comparison = _compare_points(
        (before, after), changes, points, configs, cached, conditions=conditions
    )
    return comparison.model_copy(update=facts)


def _collect_allowed_differences(
    before: StudyRecords,
    after: StudyRecords,
    configs: Sequence[tuple[Config, Config]],
    allowed: Iterable[Fact],
) -> dict[str, object]:
    """Return fields of a Comparison. Raise CannotCompareError if a difference is not allowed."""
    differences, unknown = collect_study_differences(before, after, configs)
    permitted_facts = set(allowed)
    _refuse_differences([other for other in differences if other.fact not in permitted_facts])
    permitted = [other.model_copy(update={"is_allowed": True}) for other in differences]
    return {"differences": tuple(permitted), "unknown_facts": tuple(unknown)}


def compare_within_study(
    records: StudyRecords,
    pairs: Sequence[tuple[Config, Config]],
    *,
    conditions: Sequence[GateCondition],
) -> Comparison:
    """Compare pairs (before, after) of configs of one study.

    The facts that differ between the configs are the question, so they are listed and never
    refused. Raise CannotCompareError if the pairs have neither a workload nor quality in common.
    """
    points = set(records.plan.points)
    paired = []
    for before, after in pairs:
        for workload in records.plan.study.workloads:
            pair = Pair(
                Point(config=before, workload=workload.name),
                Point(config=after, workload=workload.name),
            )
            if {pair.before, pair.after} <= points:
                paired.append(pair)
    sides = (records, records)
    if not paired and not list_quality_pairs(sides, pairs):
        raise CannotCompareError(
            f"the two have no workload in common in {records.name}, and no measured quality"
        )
    differences, unknown = collect_study_differences(records, records, pairs)
    cached = collect_cache_differences(sides, paired)
    comparison = _compare_points(
        sides, make_changes_within_study(records), paired, pairs, cached, conditions=conditions
    )
    return comparison.model_copy(
        update={
            "baseline": ", ".join(before.name for before, _ in pairs),
            "candidate": ", ".join(after.name for _, after in pairs),
            "differences": tuple(differences),
            "unknown_facts": tuple(unknown),
        }
    )


def _compare_points(
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
    changes = replace(changes, quality=collect_quality_changes(sides, configs))
    pairs_of: dict[str, Sequence[Pair]] = {}
    if pairs:
        pairs_of[METRICS[measure.metric].column] = pairs
    for condition in conditions:
        pairs_of[condition.metric] = pairs
    pairs_of.pop(PERPLEXITY, None)
    metrics = list(pairs_of)
    pairs_of[PERPLEXITY] = list(changes.quality)
    questions = _list_gate_questions(pairs_of, changes, conditions)
    points: list[ComparedPoint] = []
    for metric, metric_pairs in pairs_of.items():
        points += list_compared_points(
            metric_pairs, changes, metric, measure.confidence, undecided=cached
        )
    gates = tuple(_iter_gate_results(questions, changes, measure.confidence, cached))
    unpaired: list[Unpaired] = []
    if metrics:
        unpaired += _list_unpaired(sides, changes, pairs, metrics[0])
    unpaired += [lost for lost in changes.quality.values() if isinstance(lost, Unpaired)]
    compared = {point.metric for point in points} | {gate.metric for gate in gates}
    if PERPLEXITY in compared:
        metrics.append(PERPLEXITY)
    return Comparison(
        baseline=before.name,
        candidate=after.name,
        confidence=measure.confidence,
        definitions={metric: _DEFINITIONS[metric] for metric in metrics},
        points=tuple(points),
        unpaired=tuple(unpaired),
        cached=tuple(cached.values()),
        gates=gates,
    )


def collect_cache_differences(
    sides: tuple[StudyRecords, StudyRecords], pairs: Sequence[Pair]
) -> dict[Pair, CacheDifference]:
    """Return the pairs of which a prefix cache answered one side only, or far more of it."""
    differences = {}
    for pair in pairs:
        before = find_cached_prompts(sides[0], pair.before)
        after = find_cached_prompts(sides[1], pair.after)
        before_share = before.share if before else 0.0
        after_share = after.share if after else 0.0
        is_apart = abs(before_share - after_share) >= CACHE_SHARES_APART
        if is_apart or (before is None) != (after is None):
            differences[pair] = CacheDifference(
                point=pair.after, before=before_share, after=after_share
            )
    return differences


def list_compared_points(
    pairs: Sequence[Pair],
    changes: Changes,
    metric: str,
    confidence: float,
    undecided: Container[Pair] = (),
) -> list[ComparedPoint]:
    """Return the pairs that have this metric on both sides, each with its verdict.

    Verdicts are corrected for all pairs together. A pair in `undecided` gets the verdict UNKNOWN.
    """
    measured = []
    for pair in pairs:
        change = changes.find(pair, metric)
        if change is not None:
            measured.append((pair, change))
    ratios = [_compute_gain(change, confidence, metric) for _, change in measured]
    levels = compute_holm_levels([_get_p_value(ratio) for ratio in ratios], 1 - confidence)
    estimates = []
    if metric != PERPLEXITY:
        estimates = [estimate_metric(side, metric, confidence) for side in changes.samples]
    points = []
    for (pair, change), ratio, level in zip(measured, ratios, levels, strict=True):
        corrected = _compute_gain(change, 1 - level, metric)
        if isinstance(change, QualityChange):
            before, after = change.perplexities
        else:
            before = estimates[0][pair.before]
            after = estimates[1][pair.after]
        verdict = ChangeVerdict.UNKNOWN
        if pair not in undecided:
            verdict = _choose_verdict(corrected, metric)
        points.append(
            ComparedPoint(
                baseline=pair.before,
                candidate=pair.after,
                metric=metric,
                before=before,
                after=after,
                ratio=ratio,
                verdict=verdict,
                corrected=corrected,
            )
        )
    return points


def _compute_gain(
    change: Change | QualityChange, confidence: float, metric: str
) -> Estimate | None:
    """Return the ratio that is above 1 if the candidate is better."""
    ratio = change.ratio(confidence)
    if ratio is None or _DEFINITIONS[metric].higher_is_better or ratio.value == 0:
        return ratio
    return ratio.inverse


def _get_p_value(ratio: Estimate | None) -> float:
    return 1.0 if ratio is None or ratio.p_value is None else ratio.p_value


# A smaller rise is not a loss that anybody would act on. The margin keeps a different order of
# summation from being called worse.
SMALLEST_RISE = 0.001


def _choose_verdict(gain: Estimate | None, metric: str) -> ChangeVerdict:
    """Return a verdict other than UNDECIDED only if the whole interval lies above or below 1."""
    if gain is None or gain.interval is None:
        return ChangeVerdict.UNKNOWN
    margin = 0.0
    verdicts = (ChangeVerdict.FASTER, ChangeVerdict.SLOWER)
    if metric == PERPLEXITY:
        margin = SMALLEST_RISE
        verdicts = (ChangeVerdict.BETTER, ChangeVerdict.WORSE)
    elif _DEFINITIONS[metric].unit == "bytes":
        verdicts = (ChangeVerdict.LESS, ChangeVerdict.MORE)
    if gain.is_above(1 + margin):
        return verdicts[0]
    return verdicts[1] if gain.is_below(1 - margin) else ChangeVerdict.UNDECIDED


def _list_gate_questions(
    pairs_of: Mapping[str, Sequence[Pair]], changes: Changes, conditions: Sequence[GateCondition]
) -> list[tuple[GateCondition, Pair]]:
    """Return the conditions and the points that each is judged on.

    A point that has the metric on one side cannot be judged. A point that has it on neither side is
    left out, unless that is true of all points: a limit that is not checked does not hold.
    """
    questions: list[tuple[GateCondition, Pair]] = []
    for condition in conditions:
        metric = condition.metric
        pairs = pairs_of[metric]
        if not pairs and metric == PERPLEXITY:
            raise CannotCompareError(
                "a limit on perplexity needs studies that measured quality; neither did"
            )
        if not pairs:  # without an error, a limit that is never checked would hold
            raise CannotCompareError(f"a limit on {metric} needs a workload that both ran")
        measured = [
            pair for pair in pairs if changes.before(pair, metric) or changes.after(pair, metric)
        ]
        questions += [(condition, pair) for pair in measured or pairs]
    return questions


def _iter_gate_results(
    questions: Sequence[tuple[GateCondition, Pair]],
    changes: Changes,
    confidence: float,
    cached: Container[Pair],
) -> Iterator[GateResult]:
    for condition, pair in questions:
        change = changes.find(pair, condition.metric)
        if change is None:
            reason = changes.explain_missing(pair, condition.metric)
            yield condition.result(pair, None, Verdict.INCONCLUSIVE, reason)
            continue
        result = judge_gate(condition, pair, change, confidence, len(questions))
        if pair in cached:
            unsure = {"verdict": Verdict.INCONCLUSIVE, "reason": CACHED_ON_ONE_SIDE}
            result = result.model_copy(update=unsure)
        yield result


def _list_unpaired(
    sides: tuple[StudyRecords, StudyRecords], changes: Changes, pairs: Sequence[Pair], metric: str
) -> list[Unpaired]:
    unpaired = []
    paired: set[Point] = set()
    for pair in pairs:
        paired.update((pair.before, pair.after))
        before = changes.before(pair, metric)
        after = changes.after(pair, metric)
        if before and not after:
            unpaired.append(_make_unpaired(sides[1], pair.after, was_lost=True))
        elif after and not before:
            unpaired.append(_make_unpaired(sides[0], pair.before, was_lost=False))
        elif not before:
            unpaired.append(
                Unpaired(point=pair.after, reason="has no result on either side", was_lost=False)
            )
    if sides[0] is sides[1]:
        return unpaired
    for records, other_name in ((sides[0], sides[1].name), (sides[1], sides[0].name)):
        for point in records.plan.points:
            if point not in paired:
                reason = f"is not in {other_name}"
                unpaired.append(Unpaired(point=point, reason=reason, was_lost=False))
    return unpaired


def _make_unpaired(records: StudyRecords, point: Point, *, was_lost: bool) -> Unpaired:
    outcomes = {trial.outcome.value for trial in records.trials if trial.point == point}
    failures = sorted(outcomes - {Outcome.OK.value})
    reason = f"has no result in {records.name}"
    if failures:
        reason += f" ({', '.join(failures)})"
    return Unpaired(point=point, reason=reason, was_lost=was_lost)


def _refuse_other_shapes(
    before: StudyRecords, after: StudyRecords, workloads: Iterable[str]
) -> None:
    """Raise CannotCompareError if a workload of the same name has another shape."""
    for name in sorted(workloads):
        workload = before.plan.study.workload(name)
        other = after.plan.study.workload(name)
        differing = []
        for part in SHAPE:
            value = getattr(workload, part)
            other_value = getattr(other, part)
            if value != other_value:
                differing.append(f"{part} {value} and {other_value}")
        if differing:
            raise CannotCompareError(f"workload {name} is not the same: {'; '.join(differing)}")


def _refuse_differences(differences: Sequence[Difference]) -> None:
    """Raise CannotCompareError if there are differences."""
    if not differences:
        return
    messages = []
    for difference in differences:
        subject = f" ({difference.subject})" if difference.subject else ""
        values = f"{difference.before} and {difference.after}"
        messages.append(f"{difference.fact.value}{subject}: {values}")
    options = dict.fromkeys(f"--allow {difference.fact.value}" for difference in differences)
    raise CannotCompareError(
        f"not comparable, this differs: {'; '.join(messages)}; "
        f"to compare all the same, add {' '.join(options)}"
    )
