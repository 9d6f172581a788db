"""The recommendation from a study folder under limits, and the command that serves the config as it
was measured."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from bitbench.analysis.recommend import recommend as recommend_of
from bitbench.analysis.results.recommendation import Choice, Limits, Recommendation
from bitbench.api.inputs import ResultsInput, open_study_folder
from bitbench.engines import registry
from bitbench.engines.environments import environment_python, get_python_path
from bitbench.machine.workplace import get_default_home
from bitbench.planning.plan import complete_engine_setup, list_engine_loads
from bitbench.ports import Deployable, Launch
from bitbench.records.folder import StudyRecords
from bitbench.reports.write import StudyReport
from bitbench.study.hardware import Capability
from bitbench.study.plan import Config
from bitbench.study.secrets import hide_secret_options, is_secret
from bitbench.study.study_file import check_input, parse_objectives
from bitbench.study.variant import Variant
from bitbench.util.errors import EngineEnvironmentError, ModelError, StudyFileError
from bitbench.util.units import parse_bytes, parse_fraction

_HOME = "$BITBENCH_HOME"


def make_deployment_command(records: StudyRecords, config: Config, home: Path) -> tuple[str, ...]:
    """Return the quoted words of the shell command that serves a config, with keys hidden. It uses
    the engine's environment below `home` if that is installed. The result is empty if the engine
    has no such command, has nothing to load, or is unknown here."""
    plan = records.plan
    setup = plan.study.engine(config.engine)
    try:
        engine = registry.engine(setup.engine)
    except StudyFileError:
        return ()
    if not isinstance(engine, Deployable):
        return ()
    capabilities: list[Capability] = []
    for accelerator in records.lock.host.accelerators:
        if accelerator.compute_capability:
            capabilities.append(accelerator.compute_capability)
    variant = plan.variant(config.variant)
    launch = Launch(
        setup=complete_engine_setup(setup, engine),
        variant=variant,
        python=_find_interpreter(setup.environment(engine.environment), variant, home),
        log_file=Path(),
        loads=list_engine_loads(plan, setup),
        seed=0,
        dtype=plan.chosen_dtypes.get(config),
        capability=min(capabilities, default=None),
    )
    try:
        variables, words = engine.deployment(launch)
    except ModelError:
        return ()
    assignments: list[str] = []
    for name, value in variables.items():
        shown_value = "•••" if is_secret(name) else shlex.quote(value)
        assignments.append(f"{name}={shown_value}")
    return (*assignments, *map(_quote_word, hide_secret_options(words)))


def _find_interpreter(environment: str | None, variant: Variant, home: Path) -> Path | None:
    """Return the Python of an engine's environment, or None if it has none. Shared records write
    `$BITBENCH_HOME` for the home folder, and then the result begins with it too."""
    if environment is None:
        return None
    if variant.path is not None and variant.path.parts[0] == _HOME:
        return get_python_path(Path(_HOME) / "envs" / environment)
    try:
        return environment_python(environment, home)
    except EngineEnvironmentError:
        return None


def _quote_word(word: str) -> str:
    """Return the word quoted for a shell, which still expands `$BITBENCH_HOME` at its beginning."""
    inside = word.removeprefix(_HOME)
    return shlex.quote(word) if inside == word else f'"{_HOME}"{shlex.quote(inside)}'


def recommend(
    folder: ResultsInput,
    *,
    slo: str | Mapping[str, str | float] | None = None,
    max_memory: str | int | None = None,
    max_quality_loss: str | float | None = None,
    workloads: Sequence[str] = (),
    engines: Sequence[str] = (),
) -> Recommendation:
    """Return the fastest config that meets the limits, and the reasons against the others.

    Args:
        folder: The path of a study folder, or results.
        slo: Objectives: "ttft_p99=200ms", or names with limits in seconds.
        max_memory: The most memory, such as "4GB" or a number of bytes.
        max_quality_loss: The largest loss of quality, such as "1%" or a share of 1.
        workloads: The workloads to choose for, by default each of the study.
        engines: The engines to choose from, by default all.

    Returns:
        A choice for each workload, with the command that serves it. A config is chosen only if it
        meets the limits with confidence.

    Raises:
        BitbenchError: A limit cannot be understood, or a name is not in the study.

    Example:
        for choice in bitbench.recommend("out", slo="ttft_p99=300ms").choices:
            print(choice.workload, choice.chosen)
    """
    limits = _parse_limits(slo, max_memory, max_quality_loss)
    home = get_default_home()
    report = StudyReport(open_study_folder(folder), home)
    recommendation = recommend_of(report.summary, limits, workloads=workloads, engines=engines)
    choices: list[Choice] = []
    for choice in recommendation.choices:
        if choice.chosen:
            deploy = make_deployment_command(report.records, choice.chosen, home)
            choices.append(choice.model_copy(update={"deploy": deploy}))
        else:
            choices.append(choice)
    return recommendation.model_copy(update={"choices": tuple(choices)})


def _parse_limits(
    slo: str | Mapping[str, str | float] | None,
    max_memory: str | int | None,
    max_quality_loss: str | float | None,
) -> Limits:
    """Parse limits as a person writes them (`4GB`, `1%`), or as numbers: bytes, and a share of
    1."""
    memory_bytes = None
    if max_memory is not None:
        memory_bytes = check_input(lambda: parse_bytes(max_memory), about="--max-memory")
    quality_loss = None
    if max_quality_loss is not None:
        quality_loss = check_input(
            lambda: parse_fraction(max_quality_loss), about="--max-quality-loss"
        )
    return Limits(
        objectives=parse_objectives(slo),
        memory_bytes=memory_bytes,
        quality_loss=quality_loss,
    )
