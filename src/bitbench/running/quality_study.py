"""Makes and runs the study that the options of `bitbench quality` describe."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bitbench.machine.workplace import Workplace
from bitbench.models import library
from bitbench.planning.compatibility import find_baseline_recipe
from bitbench.planning.plan import describe_random_weights_refusal
from bitbench.ports import Observer
from bitbench.quantize.catalog import is_recipe_file_name
from bitbench.records.folder import StudyFolder
from bitbench.running.runner import measure_study
from bitbench.study.base import Json
from bitbench.study.environment import Device
from bitbench.study.quality import is_study_task_file
from bitbench.study.study import Study
from bitbench.study.study_file import StudySource, check_input, format_study
from bitbench.util.errors import QualityError
from bitbench.util.files import SafeFolder

STUDY_FILE = "quality-study.yaml"


@dataclass(frozen=True)
class QualityOptions:
    """The options of a quality study.

    None has the meaning of a study file without that field.
    """

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
    workplace: Workplace, options: QualityOptions, into: Path | None, observer: Observer
) -> StudyFolder:
    """Run the parts of a quality study that its folder still lacks.

    The study file is written to that folder, and its paths are relative to the folder. Raise
    QualityError for a model of random weights.
    """
    if library.look_up_model(options.model, workplace.home).facts.random_weights:
        raise QualityError(describe_random_weights_refusal(options.model))
    folder = into or Path(f"quality-{Path(options.model).name}")
    study = quality_study(options, folder, workplace.device)
    text = format_study(study)
    source = StudySource(study, text, folder, SafeFolder(folder).write(STUDY_FILE, text))
    return measure_study(source, folder, observer, workplace)


def quality_study(options: QualityOptions, folder: Path, device: Device) -> Study:
    """Return the study that these options describe, with paths relative to `folder`."""
    tasks: list[Json] = []
    for task in options.tasks:
        path = os.path.relpath(task, folder) if is_study_task_file(task) else task
        tasks.append(path)
    recipes: list[Json] = [find_baseline_recipe(options.engine, device)]
    for recipe in options.recipes:
        is_file = is_recipe_file_name(recipe)
        path = os.path.relpath(Path(recipe).expanduser(), folder) if is_file else recipe
        recipes.append(path)
    answer_tokens = None if options.answers else 0
    quality: dict[str, Json] = {
        "corpus": [os.path.relpath(path, folder) for path in options.corpus],
        "windows": options.windows,
        "window_tokens": options.window_tokens,
        "tasks": tasks,
        "answer_tokens": answer_tokens,
    }
    content: dict[str, Json] = {
        "name": re.sub(r"[^A-Za-z0-9_.+-]+", "-", f"quality-{Path(options.model).name}")[:80],
        "models": [_resolve_model(options.model)],
        "recipes": list(dict.fromkeys(recipes)),
        "engines": [options.engine],
        "quality": {name: value for name, value in quality.items() if value is not None},
        "seed": options.seed,
    }
    return check_input(lambda: Study.model_validate(content))


def _resolve_model(model: str) -> str:
    """Return the model, as an absolute path if it is a folder: the study file may be elsewhere."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
