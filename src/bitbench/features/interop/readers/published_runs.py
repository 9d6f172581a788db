"""Read Markdown with one section per configuration and the single runs of each model in it:

## Configuration: batch_size=32, input_len=256, output_len=32
#### w8a8_smooth_ptq_base
  - `w8a8_smooth_ptq_base_run1`:
    - Output Throughput: 4932.02 tok/s

The tables of means above the runs are skipped, because they follow from the runs.
"""

import re
from collections import Counter
from itertools import takewhile

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    make_imported_workload,
    make_valid_name,
    parse_metric,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.plan import UNKNOWN_ENGINE
from bitbench.study.study import EngineSetup

_SECTION = re.compile(
    r"^## ", re.MULTILINE
)  # the ranking at the end repeats the titles one level deeper
_CONFIGURATION = re.compile(r"Configuration: batch_size=(\d+), input_len=(\d+), output_len=(\d+)")
_MODEL = re.compile(r"^#### ", re.MULTILINE)
# The statistics of a model look like the metrics of a run, but are indented less.
_RUN = re.compile(r"^ +- `(.+)`:\s*\n((?: {4}- .+\n?)*)", re.MULTILINE)
_FIGURE = re.compile(r"^ {4}- (.+?): (.+)", re.MULTILINE)
_FIELDS = {
    "Latency": "latency_s",
    "Output Throughput": "output_throughput",
    "Overall Throughput": "overall_throughput",
    "Input Throughput": "input_throughput",
}
SHOWN_REPEATS = 2  # examples in a note


def is_recognized(text: str) -> bool:
    """Return True if the text has this form."""
    return any(map(_CONFIGURATION.match, _SECTION.split(text)))


def read(text: str) -> Reading:
    """Return all runs in file order."""
    reading = Reading()
    repeated: list[str] = []
    for section in _SECTION.split(text):
        match = _CONFIGURATION.match(section)
        if match is not None:
            _read_section(section, match, reading, repeated)
    if repeated:
        examples = ", ".join(repeated[:SHOWN_REPEATS])
        reading.notes.append(
            f"Names of runs repeat ({len(repeated)} of them, such as {examples}); all runs are "
            "kept and renumbered in file order."
        )
    reading.notes += [
        "The file names neither engine nor machine.",
        "Its figures are rounded to two decimals: equal latencies may differ by less than that.",
    ]
    return reading


def _read_section(
    section: str, configuration: re.Match[str], reading: Reading, repeated: list[str]
) -> None:
    """Append the runs of one configuration, and the names of runs that repeat."""
    concurrency, tokens_in, tokens_out = map(int, configuration.groups())
    runs_by_model = []
    for block in _MODEL.split(section)[1:]:
        model = block.partition("\n")[0].strip(" `")
        runs_by_model.append((model, _RUN.findall(block)))
    ending = _find_common_ending([model for model, _ in runs_by_model])
    engine = EngineSetup(name=UNKNOWN_ENGINE, engine=UNKNOWN_ENGINE)
    shape = make_imported_workload(
        concurrency=concurrency,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        name=make_valid_name(ending, "") or None,
    )
    for model, runs in runs_by_model:
        counts = Counter(name for name, _ in runs)
        repeated += [name for name, count in counts.items() if count > 1]
        variant = model.removesuffix(ending)
        for _, lines in runs:
            run = ImportedRun(variant, engine, shape, _parse_metrics(lines), requests=concurrency)
            reading.runs.append(run)


def _parse_metrics(lines: str) -> TrialMetrics:
    values = {}
    for title, value in _FIGURE.findall(lines):
        if title in _FIELDS:
            values[_FIELDS[title]] = parse_metric(value)
    return TrialMetrics(**values)


def _find_common_ending(names: list[str]) -> str:
    """Return the last words that all names share, such as `_base`.

    It is the ending of w8a8_smooth_ptq_base and original_base. The first word is never part of it.
    """
    if len(set(names)) < 2:
        return ""
    reversed_words = [name.split("_")[:0:-1] for name in names]
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*reversed_words, strict=False))
    return "".join(f"_{words[0]}" for words in reversed(list(shared)))
