"""Markdown with one section per configuration and the single runs of each model in it:

## Configuration: batch_size=32, input_len=256, output_len=32
#### w8a8_smooth_ptq_base
  - `w8a8_smooth_ptq_base_run1`:
    - Output Throughput: 4932.02 tok/s

The tables of means above them are left alone: they follow from the runs.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

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


@dataclass
class _Run:
    name: str
    figures: dict[str, float | None] = field(default_factory=dict)


@dataclass
class _Model:
    name: str
    runs: list[_Run] = field(default_factory=list)


@dataclass
class _Configuration:
    concurrency: int
    input_tokens: int
    output_tokens: int
    models: list[_Model] = field(default_factory=list)


def has_vendor_runs(text: str) -> bool:
    return any(_CONFIGURATION.match(line) for line in text.split("\n"))


def read(text: str) -> Reading:
    configurations = [configuration for configuration in _configurations(text) if configuration.models]
    return Reading(
        runs=[run for configuration in configurations for run in _runs(configuration)],
        notes=[
            *_repeated_names(configurations),
            "The file names neither engine nor machine.",
            "Its figures are rounded to two decimals: equal latencies may differ by less than that.",
        ],
    )


def _configurations(text: str) -> list[_Configuration]:
    """The ranking at the end repeats the configurations one level deeper; the pattern leaves it out."""
    found: list[_Configuration] = []
    is_known = False  # what follows a heading that is not understood is of no configuration
    for line in text.split("\n"):
        if match := _CONFIGURATION.match(line):
            concurrency, tokens_in, tokens_out = (int(part) for part in match.groups())
            found.append(_Configuration(concurrency, tokens_in, tokens_out))
            is_known = True
        elif line.startswith("## "):
            is_known = False
        elif not is_known:
            continue
        elif match := _MODEL.match(line):
            found[-1].models.append(_Model(match.group(1).strip(" `")))
        elif found[-1].models and (match := _RUN.match(line)):
            found[-1].models[-1].runs.append(_Run(match.group(1)))
        elif found[-1].models and found[-1].models[-1].runs and (match := _FIGURE.match(line)):
            found[-1].models[-1].runs[-1].figures[_FIELDS[match.group(1)]] = imported_figure(match.group(2))
    return found


def _runs(configuration: _Configuration) -> Iterator[ImportedRun]:
    ending = _common_ending([model.name for model in configuration.models])
    shape = imported_workload(
        concurrency=configuration.concurrency,
        input_tokens=configuration.input_tokens,
        output_tokens=configuration.output_tokens,
        name=imported_name(ending, "") or None,
    )
    engine = EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE)
    for model in configuration.models:
        variant = model.name.removesuffix(ending)
        for run in model.runs:
            yield ImportedRun(variant, engine, shape, TrialMetrics(**run.figures), requests=configuration.concurrency)


def _common_ending(names: list[str]) -> str:
    """`_base` of w8a8_smooth_ptq_base and original_base: what all names of a configuration have behind the model's."""
    if len(set(names)) < 2:
        return ""
    tails = [name.split("_") for name in names]
    shared = 0
    while all(len(tail) > shared + 1 for tail in tails) and len({tail[-1 - shared] for tail in tails}) == 1:
        shared += 1
    return "".join(f"_{word}" for word in tails[0][len(tails[0]) - shared :])


def _repeated_names(configurations: list[_Configuration]) -> list[str]:
    repeated = [
        name
        for configuration in configurations
        for model in configuration.models
        for name, count in Counter(run.name for run in model.runs).items()
        if count > 1
    ]
    if not repeated:
        return []
    examples = ", ".join(repeated[:SHOWN_REPEATS])
    return [
        f"Names of runs repeat ({len(repeated)} of them, such as {examples}); all runs are kept and renumbered in "
        f"file order."
    ]
