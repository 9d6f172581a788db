"""Markdown with one section per configuration and the single runs of each model in it:

## Configuration: batch_size=32, input_len=256, output_len=32
#### w8a8_smooth_ptq_base
  - `w8a8_smooth_ptq_base_run1`:
    - Output Throughput: 4932.02 tok/s

The tables of means above them are left alone: they follow from the runs.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_figure,
    imported_name,
    imported_workload,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.plan import UNKNOWN_ENGINE
from bitbench.study.study import EngineSetup

_CONFIGURATION = re.compile(r"^## Configuration: batch_size=(\d+), input_len=(\d+), output_len=(\d+)")
_MODEL = re.compile(r"^#### (.+)")
# The statistics of a model look like the figures of a run, but are indented less.
_RUN = re.compile(r"^\s+- `(.+)`:\s*$")
_FIGURE = re.compile(r"^ {4}- (Latency|Output Throughput|Overall Throughput|Input Throughput): (.+)")
_FIELDS = {
    "Latency": "latency_s",
    "Output Throughput": "output_throughput",
    "Overall Throughput": "overall_throughput",
    "Input Throughput": "input_throughput",
}
SHOWN_REPEATS = 2  # examples in a note


@dataclass(frozen=True)
class _Run:
    shape: tuple[int, ...]  # batch size, input and output length
    configuration: int  # the number of its heading in the file
    model: str
    name: str
    figures: dict[str, float | None] = field(default_factory=dict)


def has_vendor_runs(text: str) -> bool:
    return any(_CONFIGURATION.match(line) for line in text.split("\n"))


def read(text: str) -> Reading:
    runs = _runs(text)
    reading = Reading(notes=_repeated_names(runs))
    for _, alike in groupby(runs, key=lambda run: run.configuration):
        reading.runs += _imported(list(alike))
    reading.notes += [
        "The file names neither engine nor machine.",
        "Its figures are rounded to two decimals: equal latencies may differ by less than that.",
    ]
    return reading


def _runs(text: str) -> list[_Run]:
    """The ranking at the end repeats the configurations one level deeper; the pattern leaves it out."""
    runs: list[_Run] = []
    shape: tuple[int, ...] = ()  # empty below a heading that is not understood
    model = ""
    configuration = 0
    for number, line in enumerate(text.split("\n")):
        if line.startswith("## "):
            match = _CONFIGURATION.match(line)
            shape, model, configuration = tuple(map(int, match.groups())) if match else (), "", number
        elif match := _MODEL.match(line):
            model = match[1].strip(" `")
        elif shape and model and (match := _RUN.match(line)):
            runs.append(_Run(shape, configuration, model, match[1]))
        elif shape and runs and (match := _FIGURE.match(line)):
            runs[-1].figures[_FIELDS[match[1]]] = imported_figure(match[2])
    return runs


def _imported(runs: list[_Run]) -> list[ImportedRun]:
    """Those of one configuration."""
    concurrency, tokens_in, tokens_out = runs[0].shape
    ending = _common_ending([run.model for run in runs])
    name = imported_name(ending, "") or None
    shape = imported_workload(concurrency=concurrency, input_tokens=tokens_in, output_tokens=tokens_out, name=name)
    engine = EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE)
    return [
        ImportedRun(run.model.removesuffix(ending), engine, shape, TrialMetrics(**run.figures), requests=concurrency)
        for run in runs
    ]


def _common_ending(names: list[str]) -> str:
    """`_base` of w8a8_smooth_ptq_base and original_base: what all names of a configuration have behind the model's."""
    if len(set(names)) < 2:
        return ""
    endings = [name.split("_")[:0:-1] for name in names]  # words from the last one on, without the first
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*endings, strict=False))
    return "".join(f"_{words[0]}" for words in reversed(list(shared)))


def _repeated_names(runs: list[_Run]) -> list[str]:
    counts = Counter((run.configuration, run.model, run.name) for run in runs)
    repeated = [name for (_, _, name), count in counts.items() if count > 1]
    if not repeated:
        return []
    examples = ", ".join(repeated[:SHOWN_REPEATS])
    return [
        f"Names of runs repeat ({len(repeated)} of them, such as {examples}); all runs are kept and renumbered in "
        f"file order."
    ]
