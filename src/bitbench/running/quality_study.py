"""The study that the options of `bitbench quality` ask for."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bitbench.machine.workplace import Workplace
from bitbench.models import library
from bitbench.planning.compatibility import baseline_recipe
from bitbench.planning.plan import no_quality_of_random_weights
from bitbench.ports import Observer
from bitbench.quantize.catalog import is_recipe_file_name
from bitbench.records.folder import StudyFolder
from bitbench.running.runner import measure_study
from bitbench.study.base import Json
from bitbench.study.environment import Device
from bitbench.study.quality import is_study_task_file
from bitbench.study.study import Study
from bitbench.study.study_file import StudySource, checked, study_file_text
from bitbench.util.errors import (
    QualityError,
)
from bitbench.util.files import SafeFolder

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


def measure_quality_study(
    at: Workplace, options: QualityOptions, into: Path | None, observer: Observer
) -> StudyFolder:
    """Run what is left of it. Its study file lies in the folder that is filled, and files that it names are relative
    to that folder. Raises QualityError for a shape, whose weights are random."""
    if library.look_up_model(options.model, at.home).facts.random_weights:
        raise QualityError(no_quality_of_random_weights(options.model))
    folder = into or Path(f"quality-{Path(options.model).name}")
    study = quality_study(options, folder, at.device)
    text = study_file_text(study)
    source = StudySource(study, text, folder, SafeFolder(folder).write(STUDY_FILE, text))
    return measure_study(source, folder, observer, at)


def quality_study(options: QualityOptions, folder: Path, device: Device) -> Study:
    files = [os.path.relpath(path, folder) for path in options.corpus]
    tasks = [
        os.path.relpath(task, folder) if is_study_task_file(task) else task
        for task in options.tasks
    ]
    recipes = [
        os.path.relpath(Path(name).expanduser(), folder) if is_recipe_file_name(name) else name
        for name in options.recipes
    ]
    wanted: dict[str, Json] = {
        "corpus": files,
        "windows": options.windows,
        "window_tokens": options.window_tokens,
        "tasks": tasks,
        "answer_tokens": None if options.answers else 0,
    }
    content: dict[str, Json] = {
        "name": re.sub(r"[^A-Za-z0-9_.+-]+", "-", f"quality-{Path(options.model).name}")[:80],
        "models": [_model(options.model)],
        "recipes": list(dict.fromkeys([baseline_recipe(options.engine, device), *recipes])),
        "engines": [options.engine],
        "quality": {name: value for name, value in wanted.items() if value is not None},
        "seed": options.seed,
    }
    return checked(lambda: Study.model_validate(content))


def _model(model: str) -> str:
    """A folder keeps its meaning wherever the study file lies."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
