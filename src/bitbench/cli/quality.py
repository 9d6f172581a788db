"""`bitbench quality MODEL`: what recipes cost in quality, without measuring speed."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.parsing import words


def quality(
    model: Annotated[str, typer.Argument(help="a name from `bitbench model list`, or a folder", metavar="MODEL")],
    *,
    recipes: Annotated[
        str, typer.Option(metavar="A,B,…", help="Compared with bf16 (on llamacpp gguf-bf16), which is added.")
    ],
    engine: Annotated[str, typer.Option(help="transformers, vllm or llamacpp: what runs them.")] = "transformers",
    corpus: Annotated[
        list[Path] | None, typer.Option(help="Text or JSONL to score; may be repeated [default: text of Python's own].")
    ] = None,
    windows: Annotated[int | None, typer.Option(min=2, help="Pieces of the corpus [default: 32].")] = None,
    window_tokens: Annotated[int | None, typer.Option(min=8, help="Tokens of a piece [default: 256].")] = None,
    top_tokens: Annotated[
        int | None, typer.Option(min=1, help="Likeliest tokens that are kept, for the divergence [default: 32].")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B.yaml,…", help="Tasks of lm-eval: names, or YAML files.")
    ] = None,
    task_samples: Annotated[int | None, typer.Option(min=1, help="So many questions of each task.")] = None,
    answers: Annotated[bool, typer.Option(help="Also compare greedy answers to fixed questions.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Order follows from it.")] = 0,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Folder to fill [default: quality-MODEL].")
    ] = None,
) -> None:
    """Measure what compression costs in quality: perplexity, divergence, answers, tasks.

    A study of quality alone: fills a folder like a study's and reports; the same command goes on with an interrupted
    one.
    """
    from rich.console import Console

    from bitbench.cli.outcome import show_outcome
    from bitbench.cli.progress import RunDisplay
    from bitbench.lab.quality_study import QualityOptions, run_quality
    from bitbench.lab.study import Lab

    options = QualityOptions(
        model=model,
        recipes=words(recipes),
        engine=engine,
        corpus=tuple(corpus or ()),
        windows=windows,
        window_tokens=window_tokens,
        top_tokens=top_tokens,
        tasks=words(tasks),
        task_samples=task_samples,
        answers=answers,
        seed=seed,
    )
    lab, console = Lab(), Console()
    with RunDisplay(console) as display:
        folder = run_quality(lab, options, into, display)
    show_outcome(lab, folder, console)
