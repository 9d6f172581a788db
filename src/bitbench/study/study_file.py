"""The study file: its reader, its writer, the template of `bitbench init`, and input checks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from bitbench.study.environment import Device
from bitbench.study.objective import Objective, Objectives
from bitbench.study.study import EngineAxes, Study
from bitbench.study.workload import Workload
from bitbench.util import yaml_file
from bitbench.util.errors import StudyFileError, UsageError
from bitbench.util.units import BY_HAND, format_exact_seconds

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")


def make_study_schema() -> dict[str, Any]:
    """Return the JSON Schema of a study file, for editors."""
    schema = Study.model_json_schema(mode="validation")
    _allow_short_forms(schema)
    schema["required"].remove("name")  # the default is the name of the file
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bitbench study",
        **schema,
    }


def read_study(path: Path) -> tuple[Study, str]:
    """Read a study file once, and return the checked study and its text.

    Raise StudyFileError with every mistake. A text without a name gets the file's name as its
    last line, since it will be kept under another file name.
    """
    missing = f"no study file {path}; `bitbench init {path}` writes one to start from"
    text = yaml_file.read_yaml_text(path, missing=missing, error=StudyFileError)
    study = parse_study(text, name=str(path))
    if not yaml_file.find_line(text, ("name",))[1]:
        text = f"{text.rstrip()}\nname: {study.name}\n"
        # Raises if nothing can follow the text, for example after a closing brace.
        parse_study(text, name=str(path))
    return study, text


class _Engines(BaseModel):
    """The part of a study file that decides how many setups each engine has."""

    engines: tuple[EngineAxes, ...]


def _locate_entry(location: tuple[int | str, ...], text: str) -> tuple[int | str, ...]:
    """Return the location of a setup in the file, where lists are not expanded."""
    match location:
        case ("engines", int(number), *rest):
            written = yaml_file.parse_yaml(
                text, _Engines, name="", outline="", error=StudyFileError
            )
            entries: list[int] = []
            for entry, axes in enumerate(written.engines):
                entries += [entry for _ in axes.iter_setups()]
            return ("engines", entries[number], *rest)
    return location


def parse_study(text: str, *, name: str) -> Study:
    """Parse a study. `name` is the file's name, which is the default name of the study."""
    return yaml_file.parse_yaml(
        text,
        Study,
        name=name,
        outline="a study file is a mapping (`name: …`, `engines: …`, `workloads: …`)",
        error=StudyFileError,
        defaults={"name": _make_study_name(name)},
    )


def _make_study_name(file: str) -> str:
    """Return the name of a study from the name of its file: `a b.yaml` becomes a-b."""
    return _NOT_IN_A_NAME.sub("-", Path(file).stem).strip("-_.+") or "study"


def _allow_short_forms(schema: dict[str, Any]) -> None:
    """Add the short forms that validators accept.

    They are a name for an engine, workload or arrival, and a number for a range.
    """
    from bitbench.study.workload import BUILT_IN_WORKLOADS, Arrival

    properties = schema["properties"]
    definitions = schema["$defs"]
    definitions["Workload"]["required"].remove("concurrency")  # an open loop needs none
    definitions["Workload"]["properties"]["arrival"] = {
        "anyOf": [
            {"type": "string", "enum": [Arrival.BATCH.value, Arrival.CLOSED_LOOP.value]},
            definitions["Workload"]["properties"]["arrival"],
        ]
    }
    definitions["EngineAxes"]["required"] = ["engine"]
    for name in ("engine", "name"):
        definitions["EngineAxes"]["properties"][name]["type"] = ["string", "null"]
    properties["engines"]["items"] = {
        "anyOf": [{"type": ["string", "null"]}, properties["engines"]["items"]]
    }
    properties["workloads"]["items"] = {
        "anyOf": [
            {"type": "string", "enum": list(BUILT_IN_WORKLOADS)},
            properties["workloads"]["items"],
        ]
    }
    for name in ("models", "recipes"):
        properties[name] = {"anyOf": [{"type": "string"}, properties[name]]}
    count = definitions["Count"]
    definitions["Count"] = {"anyOf": [{"type": "integer", "minimum": 1}, count]}


def format_study(study: Study) -> str:
    """Write a study as YAML. Reading it again gives an equal study."""
    content = study.model_dump(
        mode="json", exclude_defaults=True, exclude={"workloads", "objectives"}, context=BY_HAND
    )
    content = {"bitbench": study.bitbench, **content}
    if study.workloads:
        content["workloads"] = list(map(_format_workload, study.workloads))
    if study.objectives:
        content["objectives"] = {
            objective.name: format_exact_seconds(objective.limit) for objective in study.objectives
        }
    text: str = yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return text


def _format_workload(workload: Workload) -> dict[str, object]:
    """Return the content of a workload without defaults, but with the kind of its arrival."""
    content = workload.model_dump(
        mode="json", exclude_defaults=True, exclude={"arrival"}, context=BY_HAND
    )
    arrival = workload.arrival.model_dump(mode="json", context=BY_HAND)
    if len(arrival) == 1:
        arrival = arrival["kind"]
    content["arrival"] = arrival
    return content


@dataclass(frozen=True)
class StudySource:
    """A study with its text, and the folder that its file names are relative to."""

    study: Study
    text: str  # written to the study folder as study.yaml
    folder: Path
    file: Path | None = None

    @classmethod
    def of(cls, study: "Path | Study | StudySource", folder: Path = Path()) -> "StudySource":
        """Make the source of a study file or of a study that was made in Python.

        `folder` is used only for a study made in Python. A file is read only here, so that the
        text that a person sees, allows, runs and keeps is the same.
        """
        if isinstance(study, StudySource):
            return study
        if isinstance(study, Study):
            return cls(study, format_study(study), folder)
        return cls(*read_study(study), study.parent, study)

    def replace_budget(self, budget_s: float | None) -> "StudySource":
        """Return the same study with another budget. Its file does not change."""
        if budget_s is None:
            return self
        measure = self.study.measure.replace_budget(budget_s)
        return replace(self, study=self.study.model_copy(update={"measure": measure}))

    def locate_error(self, error: StudyFileError) -> StudyFileError:
        """Return the error with the line of its field, for errors found after reading."""
        if self.file is None:
            return error
        line, field = yaml_file.find_line(self.text, _locate_entry(error.location, self.text))
        if not field:
            return StudyFileError(f"{self.file}: {error}")
        return StudyFileError(f"{self.file}:{line}: {field}: {error}")


_EAGER = """\
    args: {enforce-eager: true} # no compilation, which takes minutes on a CPU; on a GPU it would cost speed
"""  # noqa: E501


def format_starter(device: Device) -> str:
    """Return a first study file. Only on a CPU it sets eager mode, which disables CUDA graphs."""
    eager = ""
    if device == "cpu":
        eager = _EAGER
    return _STARTER.replace("EAGER\n", eager)


_STARTER = """\
# A bitbench study: one question, asked of models × recipes × engines × workloads.
# `bitbench plan FILE` shows what it would run; `bitbench run FILE` runs it, or resumes it.
bitbench: 1                     # version of this format
name: my-study                  # the results go to a folder of this name; default: the name of the file

# The model: a name from `bitbench model list`, or a folder with a Hugging Face checkpoint.
models: [smollm2-135m]
# What is compared: the unquantized checkpoint, 8-bit weights and activations, 4-bit weights. Variants are created by
# `bitbench run`; `bitbench recipes` lists the others.
recipes: [bf16, w8a8-rtn, w4a16-rtn]

# The engines. Each runs in its own environment: `bitbench env create vllm`.
engines:
  - engine: vllm
EAGER
    # args: {dtype: float16}    # as the engine spells them; they are recorded with the results. `dtype` is bfloat16, or
                                # float32 on a processor that would emulate it, unless it is given here
  # - transformers              # bf16, VPTQ and torchao; others run unquantized there, and are refused
  # - llamacpp                  # needs recipes of GGUF files, such as gguf-q4_k_m

# The workloads. Built in: interactive, decode_bound, prefill_bound, long_context, medium_batch, base,
# high_concurrency. Or a shape of your own:
workloads:
  - interactive                 # 1 request at a time, 128 tokens in, 64 out
  - name: chat-8
    concurrency: 8
    input_tokens: 256
    output_tokens: 64
    arrival: closed_loop        # batch: all at once; closed_loop: each stream sends its next when the last ended
    requests: 16                # per trial
  # - name: poisson-5             # an open loop; docs/workloads.md has more kinds
  #   input_tokens: {min: 64, max: 512}
  #   output_tokens: 64
  #   arrival: {kind: poisson, rate: 5}
  #   duration: 60s

# How long. Starts and rounds are planned from the budget; a config that is already decided is dropped, and the study
# ends early once everything is decided. `starts: 3` and `trials: 4` instead ask for a fixed number.
measure:
  budget: 10m                   # wall time
  # equal_within: 10%           # a difference that is known to be smaller than this is answered: equal

# quality: {windows: 8}           # what each variant loses; docs/quality.md

limits:
  start: 10m                    # from start to ready
  stall: 2m                     # without a token
  # memory: 8GiB                # what one instance may use

baseline: smollm2-135m/bf16 @ vllm  # what the others are compared to
seed: 1
"""  # noqa: E501


T = TypeVar("T")


def check_input(make: Callable[[], T], *, about: str = "") -> T:
    """Return the result of `make`. Raise UsageError with its first mistake instead of ValueError.

    `about` is the user's name of the value, such as an option. The default is the wrong field.
    """
    try:
        return make()
    except ValidationError as invalid:
        first = invalid.errors()[0]
        about = about or ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
    except ValueError as problem:
        message = str(problem)
    if about:
        message = f"{about}: {message}"
    raise UsageError(message)


def parse_objectives(
    given: str | Mapping[str, str | float] | None, *, about: str = "--slo"
) -> tuple[Objective, ...]:
    """Parse objectives from `ttft_p99=200ms,tpot_p99=20ms`, or from names and limits in seconds.

    Raise UsageError if they are wrong. None gives no objectives.
    """
    if given is None:
        return ()
    return check_input(
        lambda: TypeAdapter[tuple[Objective, ...]](Objectives).validate_python(given), about=about
    )
