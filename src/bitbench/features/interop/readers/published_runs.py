"""Markdown with one section per configuration and the single runs of each model in it:

## Configuration: batch_size=32, input_len=256, output_len=32
#### w8a8_smooth_ptq_base
  - `w8a8_smooth_ptq_base_run1`:
    - Output Throughput: 4932.02 tok/s

The tables of means above them are left alone: they follow from the runs.
"""

import re
from collections import Counter
from itertools import takewhile

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

_SECTION = re.compile(r"^## ", re.MULTILINE)  # the ranking at the end repeats them one level deeper
_CONFIGURATION = re.compile(r"Configuration: batch_size=(\d+), input_len=(\d+), output_len=(\d+)")
_MODEL = re.compile(r"^#### ", re.MULTILINE)
# The statistics of a model look like the figures of a run, but are indented less.
_RUN = re.compile(r"^ +- `(.+)`:\s*\n((?: {4}- .+\n?)*)", re.MULTILINE)
_FIGURE = re.compile(r"^ {4}- (.+?): (.+)", re.MULTILINE)
_FIELDS = {
    "Latency": "latency_s",
    "Output Throughput": "output_throughput",
    "Overall Throughput": "overall_throughput",
    "Input Throughput": "input_throughput",
}
SHOWN_REPEATS = 2  # examples in a note


def matches(text: str) -> bool:
    return any(map(_CONFIGURATION.match, _SECTION.split(text)))


def read(text: str) -> Reading:
    reading, repeated = Reading(), list[str]()
    engine = EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE)
    for section in _SECTION.split(text):
        if (match := _CONFIGURATION.match(section)) is None:
            continue
        concurrency, tokens_in, tokens_out = map(int, match.groups())
        models = [
            (block.partition("\n")[0].strip(" `"), _RUN.findall(block))
            for block in _MODEL.split(section)[1:]
        ]
        ending = _common_ending([model for model, _ in models])
        name = imported_name(ending, "") or None
        shape = imported_workload(
            concurrency=concurrency, input_tokens=tokens_in, output_tokens=tokens_out, name=name
        )
        for model, runs in models:
            repeated += [
                name for name, count in Counter(name for name, _ in runs).items() if count > 1
            ]
            metrics = [_metrics(figures) for _, figures in runs]
            variant = model.removesuffix(ending)
            reading.runs += [
                ImportedRun(variant, engine, shape, figures, requests=concurrency)
                for figures in metrics
            ]
    if repeated:
        examples = ", ".join(repeated[:SHOWN_REPEATS])
        reading.notes.append(
            f"Names of runs repeat ({len(repeated)} of them, such as {examples}); all runs are kept and renumbered in "
            f"file order."
        )
    reading.notes += [
        "The file names neither engine nor machine.",
        "Its figures are rounded to two decimals: equal latencies may differ by less than that.",
    ]
    return reading


def _metrics(figures: str) -> TrialMetrics:
    known = {
        _FIELDS[title]: imported_figure(figure)
        for title, figure in _FIGURE.findall(figures)
        if title in _FIELDS
    }
    return TrialMetrics(**known)


def _common_ending(names: list[str]) -> str:
    """`_base` of w8a8_smooth_ptq_base and original_base: what all names of a configuration have behind the model's."""
    if len(set(names)) < 2:
        return ""
    endings = [
        name.split("_")[:0:-1] for name in names
    ]  # words from the last one on, without the first
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*endings, strict=False))
    return "".join(f"_{words[0]}" for words in reversed(list(shared)))
