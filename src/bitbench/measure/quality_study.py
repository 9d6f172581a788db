"""The study that `bitbench quality` runs, made from its options."""

import os
from dataclasses import dataclass
from pathlib import Path

from bitbench.measure import runner
from bitbench.measure.compatibility import look_up
from bitbench.measure.expand import no_quality_of_random_weights
from bitbench.measure.trust import trust_in
from bitbench.measure.workplace import Workplace
from bitbench.models import library
from bitbench.ports import Observer
from bitbench.quantize.catalog import built_in_recipes
from bitbench.records.folder import StudyFolder
from bitbench.study.base import Json
from bitbench.study.checked import checked
from bitbench.study.environment import Device
from bitbench.study.quality import is_task_file
from bitbench.study.source import StudySource
from bitbench.study.study import Study
from bitbench.study.variant import is_dense
from bitbench.study.write_study import study_text
from bitbench.util.errors import QualityError
from bitbench.util.safe_files import SafeFolder

STUDY_FILE = "quality-study.yaml"


@dataclass(frozen=True)
class QualityOptions:
    """Whose quality is measured, and on what. None: what a study file without that field means."""

    model: str
    recipes: tuple[str, ...]
    engine: str = "transformers"
    corpus: tuple[Path, ...] = ()
    windows: int | None = None
    window_tokens: int | None = None
    tasks: tuple[str, ...] = ()
    answers: bool = True
    seed: int = 0


def run_quality(at: Workplace, options: QualityOptions, into: Path | None, observer: Observer) -> StudyFolder:
    """Run what is left of it. Its study file lies in the folder that is filled, and files that it names are relative
    to that folder. Raises QualityError for a shape, whose weights are random."""
    if library.look_up(options.model, at.home).facts.random_weights:
        raise QualityError(no_quality_of_random_weights(options.model))
    folder = into or Path(f"quality-{Path(options.model).name}")
    study = quality_study(options, folder, at.device)
    text = study_text(study)
    source = StudySource(study, text, folder, SafeFolder(folder).write(STUDY_FILE, text))
    trust_in(source, at.home).give()  # all of it was given as an option
    return runner.measure_study(source, folder, observer, at)


def quality_study(options: QualityOptions, folder: Path, device: Device) -> Study:
    files = [os.path.relpath(path, folder) for path in options.corpus]
    tasks = [os.path.relpath(task, folder) if is_task_file(task) else task for task in options.tasks]
    wanted: dict[str, Json] = {
        "corpus": files,
        "windows": options.windows,
        "window_tokens": options.window_tokens,
        "tasks": tasks,
        "answer_tokens": None if options.answers else 0,
    }
    content: dict[str, Json] = {
        "name": f"quality-{Path(options.model).name}",
        "models": [_model(options.model)],
        "recipes": list(dict.fromkeys([baseline_recipe(options.engine, device), *options.recipes])),
        "engines": [options.engine],
        "quality": {name: value for name, value in wanted.items() if value is not None},
        "seed": options.seed,
    }
    return checked(lambda: Study.model_validate(content))


def baseline_recipe(engine: str, device: Device) -> str:
    """The recipe that leaves a model unquantized in the kind of file that this engine reads."""
    dense = [recipe for recipe in built_in_recipes() if is_dense(recipe.form)]
    rows = {recipe.name: look_up(recipe.form, engine, device) for recipe in dense}
    return next((name for name, row in rows.items() if row is None or not row.refuse), dense[0].name)


def _model(model: str) -> str:
    """A folder keeps its meaning wherever the study file lies."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
