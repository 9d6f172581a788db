"""`bitbench quality MODEL`: the quality that recipes lose, without measuring speed."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.options import parse_words_option
from bitbench.cli.outcome import end_with_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import Workplace
from bitbench.running.quality_study import QualityOptions, measure_quality_study


def quality(
    model: Annotated[
        str, typer.Argument(help="A name from `bitbench model list`, or a folder.", metavar="MODEL")
    ],
    *,
    recipes: Annotated[
        str,
        typer.Option(
            metavar="A,B,…", help="Compared with bf16 (gguf-bf16 on llamacpp), which is added."
        ),
    ],
    engine: Annotated[
        str, typer.Option(help="The engine: transformers, vllm, sglang, llamacpp or openvino.")
    ] = "transformers",
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text or JSONL to score; may be repeated [default: Python's own docs and code]."
        ),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(min=2, help="Windows of the corpus [default: 32].")
    ] = None,
    window_tokens: Annotated[
        int | None, typer.Option(min=8, help="Tokens per window [default: 256].")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B.yaml,…", help="builtin (needles), or lm-eval's: names or YAML files."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order.")] = 0,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Results folder [default: quality-MODEL]."),
    ] = None,
) -> None:
    """Measure the quality that recipes lose, without timing.

    Measures perplexity, KL divergence, greedy answers and tasks. Fills a study folder and reports;
    the same command resumes an interrupted one.
    """
    options = QualityOptions(
        model=model,
        recipes=parse_words_option(recipes),
        engine=engine,
        corpus=tuple(corpus or ()),
        windows=windows,
        window_tokens=window_tokens,
        tasks=parse_words_option(tasks),
        seed=seed,
    )
    workplace = Workplace()
    console = Terminal()
    with RunDisplay(console) as display:
        folder = measure_quality_study(workplace, options, into, display)
    end_with_outcome(folder, workplace.home, console)
