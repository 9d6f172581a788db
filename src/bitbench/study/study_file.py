"""Read a study file and say, for every mistake in it, the line, the field and what is allowed."""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bitbench.study.study import EngineAxes, KvCacheTypes, Study
from bitbench.util import yaml_file
from bitbench.util.errors import StudyFileError

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")


def study_schema() -> dict[str, Any]:
    """The JSON Schema of a study file, for editors."""
    schema = Study.model_json_schema(mode="validation")
    _allow_short_forms(schema)
    schema["required"].remove("name")  # that of the file
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "bitbench study", **schema}


def read_study(path: Path) -> tuple[Study, str]:
    """The checked study and its text, read once; raises StudyFileError with every mistake found. A text without a name
    gets that of its file as the last line, since it will be kept under another."""
    missing = f"no study file {path}; `bitbench init {path}` writes one to start from"
    text = yaml_file.read_text(path, missing=missing, error=StudyFileError)
    study = parse_study(text, name=str(path))
    if not yaml_file.line_of(text, ("name",))[1]:
        text = f"{text.rstrip()}\nname: {study.name}\n"
        parse_study(text, name=str(path))  # raises where nothing can follow it, as behind a closing brace
    return study, text


def with_line(error: StudyFileError, path: Path, text: str) -> StudyFileError:
    """The same error, with the line of the field that it is about: for what is found out after reading."""
    line, field = yaml_file.line_of(text, _as_written(error.location, text))
    return StudyFileError(f"{path}:{line}: {field}: {error}" if field else f"{path}: {error}")


class _Engines(BaseModel):
    """What of a study file decides how many setups each of its engines is."""

    engines: tuple[EngineAxes, ...]
    kv_cache: str | KvCacheTypes | None = None


def _as_written(location: tuple[int | str, ...], text: str) -> tuple[int | str, ...]:
    """A setup is counted after the lists of all engines are expanded; the file has fewer of them."""
    match location:
        case ("engines", int(number), *rest):
            written = yaml_file.parse(text, _Engines, name="", outline="", error=StudyFileError)
            entries = [place for place, axes in enumerate(written.engines) for _ in axes.setups(written.kv_cache)]
            return ("engines", entries[number], *rest)
    return location


def parse_study(text: str, *, name: str) -> Study:
    """`name` is that of its file, which is that of the study where the text gives none."""
    return yaml_file.parse(
        text,
        Study,
        name=name,
        outline="a study file is a mapping (`name: …`, `engines: …`, `workloads: …`)",
        error=StudyFileError,
        defaults={"name": _name_of(name)},
    )


def _name_of(file: str) -> str:
    """`a b.yaml` is the study a-b."""
    return _NOT_IN_A_NAME.sub("-", Path(file).stem).strip("-_.+") or "study"


def _allow_short_forms(schema: dict[str, Any]) -> None:
    """What validators accept besides the full form: a name for an engine, workload or arrival, a number for a range."""
    from bitbench.study.arrival import Arrival
    from bitbench.study.workload import BUILT_IN_WORKLOADS

    properties, definitions = schema["properties"], schema["$defs"]
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
    properties["engines"]["items"] = {"anyOf": [{"type": ["string", "null"]}, properties["engines"]["items"]]}
    properties["workloads"]["items"] = {
        "anyOf": [{"type": "string", "enum": list(BUILT_IN_WORKLOADS)}, properties["workloads"]["items"]]
    }
    for name in ("models", "recipes"):
        properties[name] = {"anyOf": [{"type": "string"}, properties[name]]}
    count = definitions["Count"]
    definitions["Count"] = {"anyOf": [{"type": "integer", "minimum": 1}, count]}
