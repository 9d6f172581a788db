"""The study that `bitbench quality` runs, made from its options."""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from bitbench.core.asked.study import Study
from bitbench.core.base import Json
from bitbench.core.environment import Device
from bitbench.core.recorded.variant import is_dense
from bitbench.ground.errors import QualityError
from bitbench.planning.compatibility import look_up
from bitbench.planning.write_study import study_text
from bitbench.quantize.catalog import built_in_recipes

STUDY_FILE = "quality-study.yaml"


@dataclass(frozen=True)
class QualityOptions:
    """As given on the command line."""

    model: str
    recipes: tuple[str, ...]
    engine: str
    corpus: tuple[Path, ...]
    windows: int | None
    window_tokens: int | None
    top_tokens: int | None
    tasks: tuple[str, ...]
    task_samples: int | None
    answers: bool
    seed: int


def write_quality_study(options: QualityOptions, folder: Path, device: Device) -> Path:
    """The study file in the folder that its run fills; files that it names are relative to that folder."""
    study = quality_study(options, folder, device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STUDY_FILE
    path.write_text(study_text(study), encoding="utf-8")
    return path


def quality_study(options: QualityOptions, folder: Path, device: Device) -> Study:
    files = [os.path.relpath(path, folder) for path in options.corpus]
    tasks = [os.path.relpath(task, folder) if task.endswith((".yaml", ".yml")) else task for task in options.tasks]
    wanted: dict[str, Json] = {
        "corpus": files,
        "windows": options.windows,
        "window_tokens": options.window_tokens,
        "top_tokens": options.top_tokens,
        "tasks": tasks,
        "task_samples": options.task_samples,
        "answer_tokens": None if options.answers else 0,
    }
    try:
        return Study.model_validate(
            {
                "name": f"quality-{Path(options.model).name}",
                "models": [_model(options.model)],
                "recipes": list(dict.fromkeys([baseline_recipe(options.engine, device), *options.recipes])),
                "engines": [options.engine],
                "quality": {name: value for name, value in wanted.items() if value is not None},
                "seed": options.seed,
            }
        )
    except ValidationError as invalid:
        error = invalid.errors()[0]
        field = ".".join(str(part) for part in error["loc"])
        raise QualityError(f"{field}: {error['msg'].removeprefix('Value error, ')}") from None


def baseline_recipe(engine: str, device: Device) -> str:
    """The recipe that leaves a model unquantized in the kind of file that this engine reads."""
    dense = [recipe for recipe in built_in_recipes() if is_dense(recipe.form)]
    rows = {recipe.name: look_up(recipe.form, engine, device) for recipe in dense}
    return next((name for name, row in rows.items() if row is None or not row.refuse), dense[0].name)


def _model(model: str) -> str:
    """A folder keeps its meaning wherever the study file lies."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
