"""Gathers what `bitbench explain` and `bitbench.explain` rest on: a study folder, the model's shape, and what the
machine can do at most."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bitbench.analysis.ranking import ranking_model_group
from bitbench.feature import offered
from bitbench.features.explain import computing
from bitbench.features.explain.computing import speeds_to_explain
from bitbench.features.explain.types import Explanation
from bitbench.machine.host import collect_host_facts, cores_in_use
from bitbench.machine.workplace import default_home
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.lock import HostFacts
from bitbench.records.roof import MachineRoof
from bitbench.study.plan import Config, Plan
from bitbench.study.workload import Workload
from bitbench.util.errors import BitbenchError, CannotExplainError, UsageError

TOO_BUSY_CORES = 0.5  # a roof that is measured beside other work is too low, and would be kept


def explain_variant(
    folder: StudyFolder, home: Path, *, variant: str, workload: str | None, against: str | None
) -> Explanation:
    """Raises UsageError where a name fits nothing, CannotExplainError where nothing was measured."""
    records = folder.read()
    config = _config(records.plan, variant)
    baseline = _config(records.plan, against) if against else _baseline(records.plan, config)
    if baseline == config:
        raise UsageError(f"{config.name} is the baseline itself; name another one with --against")
    roof, no_roof = (
        (records.roof, "") if records.roof else _measure_roof(folder, records.lock.host, home)
    )
    records = replace(records, roof=roof)
    chosen = _workload(records, config, baseline, workload)
    return computing.compute_explanation(records, config, baseline, chosen, no_roof=no_roof)


def _config(plan: Plan, name: str) -> Config:
    """By its whole name, its variant or the recipe in it, as long as that is one."""
    for everyone in (
        plan.configs,
        tuple(dict.fromkeys(refusal.point.config for refusal in plan.refusals)),
    ):
        found = _matching(plan, everyone, name)
        if len(found) > 1:
            raise UsageError(
                f"{name} is ambiguous: {', '.join(config.name for config in found)}; give the whole name"
            )
        if found and found[0] in plan.configs:
            return found[0]
        if found:
            reason = next(
                refusal.reason for refusal in plan.refusals if refusal.point.config == found[0]
            )
            raise CannotExplainError(f"{found[0].name} was not run: {reason}")
    raise UsageError(
        f"{name} is not a variant of this study; it has {', '.join(config.name for config in plan.configs)}"
    )


def _matching(plan: Plan, everyone: Sequence[Config], name: str) -> list[Config]:
    recipes = {variant.name: variant.recipe for variant in plan.variants}
    by_name = [config for config in everyone if config.name == name]
    by_variant = [config for config in everyone if config.variant == name]
    return (
        by_name
        or by_variant
        or [config for config in everyone if recipes.get(config.variant) == name]
    )


def _baseline(plan: Plan, config: Config) -> Config:
    """On the engine of the config: the variant of its model's baseline, or one that is not quantized; else that of
    the study."""
    field = ranking_model_group(plan, config)
    chosen = field.baseline
    same_engine = [
        other for other in field.plan.configs if other.engine == config.engine and other != config
    ]
    dense = {variant.name for variant in plan.variants if variant.is_dense}
    wanted = [other for other in same_engine if chosen and other.variant == chosen.variant]
    found = next(
        iter([*wanted, *(other for other in same_engine if other.variant in dense)]), chosen
    )
    if found is None:
        raise UsageError("this study has no baseline; name one with --against")
    return found


def _workload(of: StudyRecords, config: Config, baseline: Config, name: str | None) -> Workload:
    """The one that is named, or where the config does worst against the baseline."""
    speeds = speeds_to_explain(of, config, baseline)
    if name is not None and name in speeds:
        return of.plan.study.workload(name)
    if name is not None and name not in [workload.name for workload in of.plan.study.workloads]:
        all_names = ", ".join(workload.name for workload in of.plan.study.workloads)
        raise UsageError(f"{name} is not a workload of this study; it has {all_names}")
    if name is not None or not speeds:
        where = f"at {name}" if name else "at any workload"
        raise CannotExplainError(
            f"{config.name} and {baseline.name} do not both have a result {where}; `bitbench report` shows why"
        )
    return of.plan.study.workload(min(speeds, key=lambda workload: speeds[workload].value))


def _measure_roof(
    folder: StudyFolder, host: HostFacts, home: Path
) -> tuple[MachineRoof | None, str]:
    """Measured now and kept in the folder; or why there is none."""
    here = collect_host_facts()
    if (reason := _why_no_roof(host, here)) is not None:
        return None, reason
    measure = next(iter(offered("roof").values()), None)
    if measure is None:
        return None, "no feature that measures it is installed"
    try:
        with (
            folder.writing() as writer
        ):  # refused while the study runs, which a measurement would disturb
            roof: MachineRoof = measure.load()(home)
            writer.write_roof(roof)
    except BitbenchError as error:
        return None, str(error).rstrip(".")
    return roof, ""


def _why_no_roof(host: HostFacts, here: HostFacts) -> str | None:
    if host == HostFacts():
        return "the study does not record its machine"
    if host.accelerators:
        return "it ran on an accelerator; bitbench measures the roofline of CPUs only"
    if host.differences(
        here.model_copy(update={"accelerators": ()})
    ):  # none was used: the study has none
        return "the study ran on another machine; run this command there once"
    if (busy := cores_in_use()) > TOO_BUSY_CORES:
        return f"not measured: other work keeps {busy:.1f} cores busy; repeat this command when the machine is idle"
    return None


def explain(
    folder: str | Path, variant: str, *, workload: str | None = None, against: str | None = None
) -> Explanation:
    """Explain a variant's speed: the expected gain, the measured gain, and where the gap comes from."""
    place = StudyFolder.existing(Path(folder))
    return explain_variant(
        place, default_home(), variant=variant, workload=workload, against=against
    )
