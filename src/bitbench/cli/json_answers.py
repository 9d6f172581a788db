"""What a command prints with --json: one document, whatever happens, whose JSON Schema `bitbench schema` prints."""

import json
from typing import Any, Generic, Literal, TypeVar, cast

from bitbench import feature
from bitbench.analysis.results.comparison import Comparison
from bitbench.analysis.results.recommendation import Recommendation
from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.cli.choices import Described
from bitbench.cli.machine_check import Checkup
from bitbench.measure.plan import PlanAnswer
from bitbench.records.host import HostFacts, HostNoise
from bitbench.study.base import Record
from bitbench.study.objective import Objective
from bitbench.study.processor import Level
from bitbench.util.errors import UsageError
from bitbench.util.exit_codes import ExitCode
from bitbench.util.near_miss import did_you_mean

ANSWER_FORMAT: Literal[1] = 1  # 1: first published form

A = TypeVar("A")


class Printed(Record, Generic[A]):
    """`answer` is null where there is none, and `error` says why."""

    format: Literal[1] = ANSWER_FORMAT
    command: str
    exit_code: int
    meaning: str  # of the exit code
    error: str | None = None
    answer: A | None = None


class LoadAnswer(Record):
    """`search` is null for a sweep. Points are points: their figures, percentiles, trials and verdicts."""

    folder: str
    page: str
    objectives: tuple[Objective, ...]
    search: RateAnswer | None
    points: tuple[PointSummary, ...]
    notes: tuple[str, ...]


class DoctorEngine(Record):
    name: str
    is_ready: bool
    versions: dict[str, str]
    to_fix: str | None  # the command that installs it
    on_this_processor: tuple[str, ...] = ()  # what instructions that the processor lacks mean for it


class DoctorModel(Record):
    name: str
    path: str | None  # null: not downloaded
    to_fix: str | None


class DoctorAnswer(Record):
    host: HostFacts
    level: Level | None  # of the processor; null: not known, or engines run on an accelerator
    home: str
    free_bytes: int
    has_native_part: bool
    reads_cpu_energy: bool = False  # whether the processors' own counters can be read
    gpu_problems: tuple[str, ...] = ()  # what keeps engines from computing on the GPUs
    engines: tuple[DoctorEngine, ...]
    models: tuple[DoctorModel, ...]
    noise: HostNoise | None  # null with --quick


ANSWERS: dict[str, type[Printed[Any]]] = {
    Described.RECOMMEND: Printed[Recommendation],
    Described.COMPARE: Printed[Comparison],
    Described.LOAD: Printed[LoadAnswer],
    Described.PLAN: Printed[PlanAnswer],
    Described.DOCTOR: Printed[DoctorAnswer],
}


def has_answer(command: str) -> bool:
    return command in ANSWERS or command in feature.answers()


def answer_type(command: str) -> type[Printed[Any]]:
    """Of a command of the core, or of a feature; raises UsageError for others."""
    if command in ANSWERS:
        return ANSWERS[command]
    offers = feature.answers()
    if command not in offers:
        known = [*Described, *offers]
        raise UsageError(f"{command} has no JSON Schema; {did_you_mean(command, known)}known are {', '.join(known)}")
    return cast("type[Printed[Any]]", Printed[offers[command].load()])  # type: ignore[misc]


def answer_schema(command: str) -> dict[str, Any]:
    """Without a word about further fields: a later version may add some."""
    schema = answer_type(command).model_json_schema(mode="serialization")
    for definition in schema["$defs"].values():
        definition.pop("additionalProperties", None)
    title = f"bitbench {command} --json"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def answer_text(command: str, answer: Record, exit_code: ExitCode) -> str:
    return _text(answer_type(command)(command=command, exit_code=exit_code, meaning=exit_code.meaning, answer=answer))


def error_text(command: str, error: str, exit_code: ExitCode) -> str:
    return _text(answer_type(command)(command=command, exit_code=exit_code, meaning=exit_code.meaning, error=error))


def load_answer(folder: str, page: str, summary: StudySummary) -> LoadAnswer:
    return LoadAnswer(
        folder=folder,
        page=page,
        objectives=summary.study.objectives,
        search=summary.search,
        points=summary.points,
        notes=tuple(sorted({note for config in summary.configs for note in config.notes})),
    )


def doctor_answer(found: Checkup, noise: HostNoise | None) -> DoctorAnswer:
    return DoctorAnswer(
        host=found.host,
        level=found.level,
        home=str(found.home),
        free_bytes=found.free_bytes,
        has_native_part=found.has_native_part,
        reads_cpu_energy=found.reads_cpu_energy,
        gpu_problems=found.gpu_problems,
        engines=tuple(
            DoctorEngine(
                name=engine.name,
                is_ready=engine.is_ready,
                versions=dict(engine.versions or {}),
                to_fix=engine.to_fix,
                on_this_processor=engine.on_this_processor,
            )
            for engine in found.engines
        ),
        models=tuple(
            DoctorModel(
                name=model.name,
                path=None if model.path is None else str(model.path),
                to_fix=None if model.path else f"bitbench model get {model.name}",
            )
            for model in found.models
        ),
        noise=noise,
    )


def _text(printed: Printed[Any]) -> str:
    """In ASCII: names come from files and servers, and what they hold must not reach a terminal as it is."""
    return json.dumps(json.loads(printed.model_dump_json()), indent=2)
