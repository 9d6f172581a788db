"""Everything that a study uses beyond measuring, gathered from its fields; `measure.trust` decides about it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from bitbench.measure.kv_cache import as_arguments
from bitbench.models import library
from bitbench.models.catalog import CATALOG
from bitbench.models.folder import has_code
from bitbench.models.hub_reference import parse_reference
from bitbench.ports import Engine
from bitbench.quality.tasks import task_files
from bitbench.quantize import catalog
from bitbench.study.study import EngineSetup, Study
from bitbench.study.use import Use, UseKind
from bitbench.util.child_environment import runs_code

SENT = "its text is sent to the engines"
_WITH_CODE = "a model with Python code, which an engine may run"


def uses_of(study: Study, folder: Path, engines: Mapping[str, Engine], home: Path) -> tuple[Use, ...]:
    """Each once, in the order of the file. `folder` is the study file's: what lies in there came with it. `home` is
    where models were downloaded to."""
    found: list[Use] = []
    for index, setup in enumerate(study.engines):
        engine = engines[setup.engine]
        found += [*engine.uses(as_arguments(setup, engine, index)), *_variables(setup)]
    found += [*_texts(study, folder), *_tasks(study, folder), *_recipes(study, folder), *_models(study, home)]
    return tuple(dict.fromkeys(found))


def _variables(setup: EngineSetup) -> Iterator[Use]:
    for name, value in setup.env.items():
        purpose = f"runs code in {setup.name}" if runs_code(name) else f"set for {setup.name}"
        yield Use(UseKind.VARIABLE, f"{name}={value}", purpose, asks=True)


def _texts(study: Study, folder: Path) -> Iterator[Use]:
    for workload in study.workloads:
        for _, name in workload.files:
            yield _file(folder / name, folder, SENT if workload.text else "decides when requests are sent")
    for name in study.quality.corpus if study.quality else ():
        yield _file(folder / name, folder, SENT)


def _tasks(study: Study, folder: Path) -> Iterator[Use]:
    """lm-eval's task files name functions and templates, which it runs."""
    for name in task_files(study.quality) if study.quality else ():
        yield Use(UseKind.FILE, str((folder / name).resolve()), "runs code in lm-eval", asks=True)


def _recipes(study: Study, folder: Path) -> Iterator[Use]:
    for reference in study.recipes:
        if catalog.is_file_name(reference):
            yield _file(folder / Path(reference).expanduser(), folder, "says how models are compressed")
            if source := catalog.find(reference, folder).calibration.source:
                yield _file(source, folder, "its text is what compression is calibrated with")


def _models(study: Study, home: Path) -> Iterator[Use]:
    for model in (*study.models, *(variant.checkpoint for variant in study.variants)):
        if model not in CATALOG and library.source_of(model) is None:
            yield _model(model, home)


def _model(model: str, home: Path) -> Use:
    """Only a person downloads one of a hub, with `bitbench model get`: it is shown, not asked about."""
    path = Path(model).expanduser()
    named = None if path.exists() else parse_reference(model)
    if named is not None:
        downloaded = library.find_on_hub(model, home)
        contains = downloaded is not None and has_code(downloaded.path)
        return Use(
            UseKind.URL, named.url, _WITH_CODE if contains else "a model of a hub, loaded by engines", asks=contains
        )
    contains = has_code(path.resolve())
    purpose = _WITH_CODE if contains else "a model, loaded by engines"
    return Use(UseKind.FILE, str(path.resolve()), purpose, asks=contains)


def _file(path: Path, folder: Path, purpose: str) -> Use:
    """By where it really is: a link out of the folder is not in the folder."""
    place = path.resolve()
    return Use(UseKind.FILE, str(place), purpose, asks=not place.is_relative_to(folder.resolve()))
