"""A study, expanded into cells; the meaningless ones set aside with the reason."""

from collections.abc import Callable, Iterator, Mapping

from bitbench.core.cell import Cell, Contender, Expectation, Plan, Refusal, Verdict
from bitbench.core.ports import Engine
from bitbench.core.study import EngineSetup, Study
from bitbench.core.variant import NO_MODEL, Variant
from bitbench.errors import RecipeError, StudyFileError
from bitbench.planning.compatibility import Device, Row, look_up


def expand(study: Study, engines: Mapping[str, Engine], resolve: Callable[[str, str], Variant], device: Device) -> Plan:
    """Every model × recipe × engine × workload. `resolve(model, recipe)` finds the variant on disk."""
    _check_names(study, engines)
    _check_shapes(study)
    with_model = list(_variants(study, resolve))
    without = Variant(name=NO_MODEL, model=NO_MODEL, recipe=NO_MODEL)
    cells, refusals, expectations = [], [], []
    for setup in study.engines:
        engine = engines[setup.engine]
        for variant in with_model if engine.needs_model else [without]:
            contender = Contender(variant=variant.name, engine=setup.name)
            row = _known(variant, setup, device)
            for workload in study.workloads:
                cell = Cell(contender=contender, workload=workload.name)
                reason = row.why if row and row.refuse else engine.refuse(setup, variant, workload) or variant.refusal
                if reason is not None:
                    refusals.append(Refusal(cell=cell, reason=reason))
                elif variant.failure is not None:
                    refusals.append(Refusal(cell=cell, reason=variant.failure, was_tried=True))
                else:
                    cells.append(cell)
            if row and not row.refuse and row.verdict is not Verdict.RUNS:
                expectations.append(Expectation(contender=contender, verdict=row.verdict, why=row.why))
    used = {cell.contender.variant for cell in cells} | {refusal.cell.contender.variant for refusal in refusals}
    variants = tuple(variant for variant in (*with_model, without) if variant.name in used)
    tried = {cell.contender for cell in cells}
    plan = Plan(
        study=study,
        variants=variants,
        cells=tuple(cells),
        refusals=tuple(refusals),
        expectations=tuple(one for one in expectations if one.contender in tried),
    )
    _check_baseline(plan)
    return plan


def _known(variant: Variant, setup: EngineSetup, device: Device) -> Row | None:
    return look_up(variant.form, setup.engine, device, variant.at_load) if variant.form else None


def _variants(study: Study, resolve: Callable[[str, str], Variant]) -> Iterator[Variant]:
    for model in study.models:
        for index, recipe in enumerate(study.recipes):
            try:
                yield resolve(model, recipe)
            except RecipeError as error:
                raise StudyFileError(str(error), ("recipes", index)) from error


def _check_names(study: Study, engines: Mapping[str, Engine]) -> None:
    needs_model = [setup.name for setup in study.engines if engines[setup.engine].needs_model]
    if needs_model and not study.models:
        raise StudyFileError(
            f"{', '.join(needs_model)} needs a model; add `models: [smollm2-135m]` or a folder", ("engines",)
        )
    unused = [setup for setup in study.engines if not engines[setup.engine].needs_model]
    if study.models and len(unused) == len(study.engines):
        raise StudyFileError("none of the engines of this study runs a model; leave `models` out", ("models",))


def _check_shapes(study: Study) -> None:
    for index, workload in enumerate(study.workloads):
        if workload.unknown:
            raise StudyFileError(
                f"{workload.name} was imported without {', '.join(workload.unknown)}; it can be reported, not run",
                ("workloads", index),
            )


def _check_baseline(plan: Plan) -> None:
    wanted = plan.study.baseline
    if wanted is None:
        return
    contenders = dict.fromkeys([*plan.contenders, *(refusal.cell.contender for refusal in plan.refusals)])
    matching = [contender for contender in contenders if wanted in (contender.name, contender.engine)]
    if not matching:
        names = ", ".join(f"`{contender.name}`" for contender in contenders)
        raise StudyFileError(f"{wanted!r} is not a contender of this study; they are {names}", ("baseline",))
    if len(matching) > 1:
        names = ", ".join(f"`{contender.name}`" for contender in matching)
        raise StudyFileError(f"{wanted!r} could be {names}; give the whole name", ("baseline",))


def launch_size(plan: Plan, setup: EngineSetup) -> tuple[int, int]:
    """The longest context and the most requests in flight that an instance of this setup will see."""
    names = {cell.workload for cell in plan.cells if cell.contender.engine == setup.name}
    workloads = [plan.study.workload(name) for name in names]
    return max(w.context_tokens for w in workloads), max(w.concurrency for w in workloads)
