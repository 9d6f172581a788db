"""Prepare an explanation: choose the baseline and the workload, and measure the roofline."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bitbench.analysis.ranking import get_model_group
from bitbench.feature import collect_offers
from bitbench.features.explain import computing
from bitbench.features.explain.computing import collect_speeds
from bitbench.features.explain.types import Explanation
from bitbench.machine.host import collect_host_facts, measure_busy_cores
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.lock import HostFacts
from bitbench.records.roof import MachineRoof
from bitbench.study.plan import Config, Plan
from bitbench.study.workload import Workload
from bitbench.util.errors import BitbenchError, CannotExplainError, UsageError

# A roofline that is measured next to other work is too low, and it would be kept in the folder.
TOO_BUSY_CORES = 0.5


def explain_variant(
    folder: StudyFolder, home: Path, *, variant: str, workload: str | None, against: str | None
) -> Explanation:
    """Return why a variant of a study is as fast as it is.

    Without `workload`, use the worst one. Without `against`, use the baseline.
    Raise UsageError for an unknown name and CannotExplainError without a result to explain.
    """
    records = folder.read()
    plan = records.plan
    config = _resolve_config(plan, variant)
    baseline = _resolve_config(plan, against) if against else _choose_baseline(plan, config)
    if baseline == config:
        raise UsageError(f"{config.name} is the baseline itself; name another one with --against")
    no_roof = ""
    if not records.roof:
        roof, no_roof = _measure_roof(folder, records.lock.host, home)
        records = replace(records, roof=roof)
    chosen = _choose_workload(records, config, baseline, workload)
    return computing.compute_explanation(records, config, baseline, chosen, no_roof=no_roof)


def _resolve_config(plan: Plan, name: str) -> Config:
    """Return the config with this name, or with this variant or recipe if only one has it.

    Raise CannotExplainError if the study refused the config, and UsageError if none or several fit.
    """
    refused = tuple(dict.fromkeys(refusal.point.config for refusal in plan.refusals))
    for candidates in (plan.configs, refused):
        matches = _list_matches(plan, candidates, name)
        if len(matches) > 1:
            names = ", ".join(config.name for config in matches)
            raise UsageError(f"{name} is ambiguous: {names}; give the whole name")
        if not matches:
            continue
        config = matches[0]
        if config in plan.configs:
            return config
        reasons = [refusal.reason for refusal in plan.refusals if refusal.point.config == config]
        raise CannotExplainError(f"{config.name} was not run: {reasons[0]}")
    names = ", ".join(config.name for config in plan.configs)
    raise UsageError(f"{name} is not a variant of this study; it has {names}")


def _list_matches(plan: Plan, candidates: Sequence[Config], name: str) -> list[Config]:
    """Return the candidates with this name, else with this variant, else with this recipe."""
    by_name = [config for config in candidates if config.name == name]
    if by_name:
        return by_name
    by_variant = [config for config in candidates if config.variant == name]
    if by_variant:
        return by_variant
    recipes = {variant.name: variant.recipe for variant in plan.variants}
    return [config for config in candidates if recipes.get(config.variant) == name]


def _choose_baseline(plan: Plan, config: Config) -> Config:
    """Return the config to compare with, preferably on the same engine.

    1. The variant of the model group's baseline, on the engine of `config`.
    2. An unquantized variant on that engine.
    3. The baseline of the model group.

    Raise UsageError if the study has none of these.
    """
    model_group = get_model_group(plan, config)
    default = model_group.baseline
    same_engine = []
    for other in model_group.plan.configs:
        if other.engine == config.engine and other != config:
            same_engine.append(other)
    for other in same_engine:
        if default and other.variant == default.variant:
            return other
    dense = {variant.name for variant in plan.variants if variant.is_dense}
    for other in same_engine:
        if other.variant in dense:
            return other
    if default is None:
        raise UsageError("this study has no baseline; name one with --against")
    return default


def _choose_workload(
    records: StudyRecords, config: Config, baseline: Config, name: str | None
) -> Workload:
    """Return the requested workload, or the one at which the config is worst.

    Raise UsageError for an unknown name and CannotExplainError if a result is missing.
    """
    study = records.plan.study
    speeds = collect_speeds(records, config, baseline)
    if name is not None and name in speeds:
        return study.workload(name)
    names = [workload.name for workload in study.workloads]
    if name is not None and name not in names:
        raise UsageError(f"{name} is not a workload of this study; it has {', '.join(names)}")
    if name is not None or not speeds:
        missing = f"at {name}" if name else "at any workload"
        raise CannotExplainError(
            f"{config.name} and {baseline.name} do not both have a result {missing}; "
            "`bitbench report` shows why"
        )
    return study.workload(min(speeds, key=lambda workload: speeds[workload].value))


def _measure_roof(
    folder: StudyFolder, host: HostFacts, home: Path
) -> tuple[MachineRoof | None, str]:
    """Measure the roofline of this machine and keep it in the folder.

    Return it and an empty text, or None and the reason why it cannot be measured.
    """
    reason = _explain_missing_roof(host, collect_host_facts())
    if reason is not None:
        return None, reason
    measure = next(iter(collect_offers("roof").values()), None)
    if measure is None:
        return None, "no feature that measures it is installed"
    try:
        # The writer refuses while the study runs, since a measurement would disturb the study.
        with folder.open_writer() as writer:
            roof: MachineRoof = measure.load()(home)
            writer.write_roof(roof)
    except BitbenchError as error:
        return None, str(error).rstrip(".")
    return roof, ""


def _explain_missing_roof(host: HostFacts, here: HostFacts) -> str | None:
    """Return why the roofline of the study's machine cannot be measured here and now, or None."""
    if host == HostFacts():
        return "the study does not record its machine"
    if host.accelerators:
        return "it ran on an accelerator; bitbench measures the roofline of CPUs only"
    # The study used no accelerator, so an accelerator of this machine makes no difference.
    if host.differences(here.model_copy(update={"accelerators": ()})):
        return "the study ran on another machine; run this command there once"
    busy = measure_busy_cores()
    if busy > TOO_BUSY_CORES:
        return (
            f"not measured: other work keeps {busy:.1f} cores busy; "
            "repeat this command when the machine is idle"
        )
    return None


def explain(
    folder: str | Path, variant: str, *, workload: str | None = None, against: str | None = None
) -> Explanation:
    """Explain a variant's speed: the expected gain, the measured gain, and the causes of the gap.

    Without `workload`, explain the worst one. Without `against`, compare with the baseline.
    """
    study_folder = StudyFolder.existing(Path(folder))
    return explain_variant(
        study_folder, get_default_home(), variant=variant, workload=workload, against=against
    )
