"""Weights & Biases: a run per point, grouped by study. Without an address, offline files that `wandb sync` uploads."""

import os

import wandb

from bitbench.features.exports.content import ExportedPoint, ExportedStudy, ExportError

_PROJECT = "bitbench"


def export(study: ExportedStudy, url: str | None) -> str:
    mode = "online" if url else os.environ.get("WANDB_MODE", "offline")
    settings = wandb.Settings(silent=True, console="off", disable_git=True, **({"base_url": url} if url else {}))
    try:
        folders = [_write(study, point, mode, settings) for point in study.points]
    except (wandb.errors.Error, OSError) as error:
        raise ExportError(f"wandb did not take the figures: {' '.join(str(error).split())[:300]}") from error
    if mode == "offline":
        return "".join(f"wandb sync {folder}\n" for folder in folders)
    return f"wrote {len(folders)} runs to the project {_PROJECT}\n"


def _write(study: ExportedStudy, point: ExportedPoint, mode: str, settings: wandb.Settings) -> str:
    """The folder of the run."""
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        group=study.name,
        name=point.name,
        id=point.id,
        config={**study.facts, **point.labels, **point.facts},
        mode=mode,
        settings=settings,
        reinit="finish_previous",
    )
    run.log({figure.name + ending: value for figure in point.figures for ending, value in figure.bounds()})
    folder = str(run.settings.sync_dir)
    run.finish()
    return folder
