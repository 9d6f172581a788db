"""`vendor-rst`: speed and memory by model and engine in reStructuredText grid tables, and how a document becomes
such text.

Settings are a column, not footnotes; a point that did not run has its row and its reason; one block is printed once.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import TextWrapper

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.features.interop.markdown import QualityColumn
from bitbench.records.lock import HostFacts, Lock
from bitbench.reports.document import model as doc
from bitbench.reports.document.model import Block, Document, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import cells_with_units, percent, quantity, shown, starts_and_trials
from bitbench.reports.document.words import (
    ColumnOf,
    bullets,
    number_column,
    paragraph,
    plain_words,
    plural,
    say,
    table,
    words_column,
)
from bitbench.reports.labels import grouped
from bitbench.reports.sections.ranked import ranked_memory_metric, ranked_point_outcomes
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Point
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.study.workload import Workload, workload_length_text
from bitbench.util.units import UNKNOWN, show_bytes

WIDEST_TEXT = 44  # characters of a column of words


def rst(document: doc.Document, *, merged: int = 0) -> str:
    """Its title, paragraphs, lists and tables; `merged`: see `rst_grid_table`."""
    parts = [_heading(document.title, "="), *_blocks(document.answer, merged)]
    for section in document.sections:
        parts += [_heading(section.title, "-"), *_blocks(section.blocks, merged)]
    return "\n\n".join(parts) + "\n"


def _blocks(blocks: Sequence[doc.Block], merged: int) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Paragraph(phrase):
                yield _line(phrase)
            case doc.Bullets(items):
                yield "\n".join(f"-  {_line(item)}" for item in items)
            case doc.Table():
                titles, rows = cells_with_units(block, _line)
                yield rst_grid_table(titles, rows, merged=merged)


def _line(phrase: doc.Phrase) -> str:
    return escape_rst(
        "".join(shown(part) if isinstance(part, doc.Quantity) else doc.plain_text((part,)) for part in phrase)
    )


def escape_rst(text: str) -> str:
    """As it is, to a reader of the rendered page; nothing at all is what is not known."""
    words = plain_words(text)
    line = "".join(f"\\{char}" if _is_markup(words, place) else char for place, char in enumerate(words)) or UNKNOWN
    is_plain = line[0].isalnum() or line[0] in "\\–"
    return line if is_plain and not _begins_a_list(line) else f"\\{line}"


def _is_markup(line: str, place: int) -> bool:
    """A colon before a word makes a link of an address or a role, an @ in a word an address of mail."""
    match line[place]:
        case ":":
            return line[place + 1 : place + 2].strip() != ""
        case "@":
            return line[max(place - 1, 0) : place].strip() != ""
    return line[place] in "\\*`|_"


def _begins_a_list(line: str) -> bool:
    """`1.`, `a)` or `(iv)`."""
    first = line.split(maxsplit=1)[0]
    inner = first[1:-1] if first.startswith("(") and first.endswith(")") else first[:-1] if first[-1] in ".)" else ""
    return bool(inner) and all(char.isalnum() or char == "_" for char in inner)


def _heading(title: doc.Phrase, mark: str) -> str:
    text = _line(title)
    return f"{text}\n{mark * max(_width(text), 3)}"


def rst_grid_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, merged: int = 0) -> str:
    """Cells must be escaped already. The first `merged` columns of a row that repeat the one above are left out.

    A repeated cell is joined with the one above it, as long as all columns before it repeat too.
    """
    # An escape must not be cut off from what it escapes, so words stay whole.
    whole_words = TextWrapper(WIDEST_TEXT, break_long_words=False, break_on_hyphens=False)
    lines = [[whole_words.wrap(cell) or [""] for cell in row] for row in (header, *rows)]
    widths = [max(_width(part) for row in lines for part in row[column]) for column in range(len(header))]
    output = [_rule(widths, "-"), *_cells(lines[0], widths), _rule(widths, "=")]
    for number, row in enumerate(rows):
        repeated = 0
        if number:
            above = rows[number - 1]
            repeated = next((place for place in range(merged) if above[place] != row[place]), merged)
            output.append(_rule(widths, "-", open_columns=repeated))
        output += _cells([[""]] * repeated + lines[number + 1][repeated:], widths)
    return "\n".join([*output, _rule(widths, "-")])


def _rule(widths: Sequence[int], mark: str, open_columns: int = 0) -> str:
    parts = [(" " if column < open_columns else mark) * (width + 2) for column, width in enumerate(widths)]
    return f"+{'+'.join(parts)}+"


def _cells(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for number in range(max(len(cell) for cell in row)):
        parts = [cell[number] if number < len(cell) else "" for cell in row]
        padded = (f" {part}{' ' * (width - _width(part))} " for part, width in zip(parts, widths, strict=True))
        yield f"|{'|'.join(padded)}|"


def _width(text: str) -> int:
    """Columns that it takes, as docutils counts them: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


DEVICE_COUNTS = ("gpus", "tensor-parallel-size", "tensor_parallel_size")  # how engines spell it, and imported tables
DECIMALS = 2  # as in such tables
MAX_CAUSE = 120
MAX_SETTINGS = 120
MERGED = 2  # columns of which a value that repeats is written once


@dataclass(frozen=True)
class _Group:
    """One table: a model on an engine at one batch size and output length."""

    model: str
    engine: str
    concurrency: str
    output: str
    is_batched: bool


@dataclass(frozen=True)
class _Row:
    point: Point
    workload: Workload
    setup: EngineSetup
    found: PointSummary | None
    reason: str  # why it has no figures

    def estimate(self, metric: str) -> Estimate | None:
        return self.found.metrics.get(metric) if self.found else None

    @property
    def group(self) -> _Group:
        model, _, quantization = self.point.config.variant.rpartition("/")
        is_known = "concurrency" not in self.workload.unknown and not self.workload.open_loop
        return _Group(
            model or quantization,
            self.setup.engine,
            str(self.workload.concurrency) if is_known else UNKNOWN,
            UNKNOWN if "output_tokens" in self.workload.unknown else workload_length_text(self.workload.output_tokens),
            is_batched=self.workload.open_loop or self.workload.concurrency > 1,
        )


def vendor_rst(of: StudyReport) -> str:
    summary, lock = of.summary, of.records.lock
    sections = [
        Section(
            say(f"{group.model} ({group.engine}), batch size {group.concurrency}, {group.output} tokens generated"),
            (_vendor_table(summary, lock, group, rows),),
        )
        for group, rows in grouped(_rows(summary), lambda row: row.group).items()
    ]
    description: list[Block] = [paragraph(summary.study.description)] if summary.study.description else []
    ran = "Imported; according to its source it was measured" if summary.imported_from else "Measured by bitbench"
    legend = (
        "Speed is output tokens per second, mean ± standard deviation of the trials; in brackets the "
        f"{percent(summary.study.measure.confidence)} interval of the mean. n is starts of the engine / trials. "
        f"{UNKNOWN} is unknown."
    )
    versions = dict.fromkeys(
        f"{summary.study.engine(config.config.engine).engine} {version}"
        for config in summary.configs
        for version in config.engine_versions
    )
    facts = bullets((*_machine(lock.host), *versions))
    opening = (*description, paragraph(f"{ran} on:"), *facts, paragraph(legend))
    return rst(Document(say(f"Speed Benchmark: {summary.study.name}"), opening, tuple(sections)), merged=MERGED)


def _machine(host: HostFacts) -> Iterator[str]:
    yield from (accelerator.name for accelerator in host.accelerators)
    if host.cpu_model:
        yield f"{host.cpu_model}{f', {host.cores} cores' if host.cores else ''}"
    elif not host.accelerators:
        yield f"machine: {UNKNOWN}"
    if host.memory_bytes:
        yield f"{show_bytes(host.memory_bytes)} of memory"


def _rows(summary: StudySummary) -> list[_Row]:
    """All points that were asked for, by input length and then in the order of the study."""
    found = {point.point: point for point in summary.points}
    reasons = {
        refusal.point: f"{'not made' if refusal.was_tried else 'refused'}: {refusal.reason}"
        for refusal in summary.refusals
    }
    rows = [
        _Row(
            point,
            summary.study.workload(point.workload),
            summary.study.engine(point.config.engine),
            found.get(point),
            _why_not(found[point]) if point in found else reasons[point],
        )
        for point in dict.fromkeys([*found, *reasons])
    ]
    order = list(dict.fromkeys(row.point.config for row in rows))

    def place(row: _Row) -> tuple[float, int]:
        tokens = row.workload.input_tokens
        return tokens if isinstance(tokens, int) else float("inf"), order.index(row.point.config)

    return sorted(rows, key=place)


def _why_not(found: PointSummary) -> str:
    if "output_throughput" in found.metrics:
        return ""
    cause = next((group.failure.cause for group in found.failures), "")
    return f"{ranked_point_outcomes(found)}: {cause}" if found.failures else "not run"


def _vendor_table(summary: StudySummary, lock: Lock, group: _Group, rows: Sequence[_Row]) -> Table:
    memory, quality = ranked_memory_metric(summary), QualityColumn(summary)
    where = "Device" if memory.startswith("device") else "Host"
    batched = [_mean("Requests/s", "request_throughput"), _mean("All tokens/s", "overall_throughput")]
    of_quality: list[ColumnOf[_Row]] = []
    if quality.title:
        of_quality.append(number_column(quality.title, quality.unit, lambda row: quality.of(row.point.config)))
    return table(
        rows,
        words_column("Model", lambda _: group.model),
        words_column("Input Length", _length),
        words_column("Quantization", lambda row: row.point.config.variant.rpartition("/")[2]),
        words_column("Devices", lambda row: _devices(row.setup, lock)),
        number_column("Speed", "tokens/s", _speed),
        *(batched if group.is_batched else []),
        _mean(f"{where} memory", memory, "GB", 1e9),
        *of_quality,
        words_column(
            "n", lambda row: starts_and_trials(speed) if (speed := row.estimate("output_throughput")) else None
        ),
        words_column("Settings", lambda row: plain_words(_settings(summary, row.setup), MAX_SETTINGS)),
        words_column("Note", lambda row: plain_words(row.reason or _remarks(row.found), MAX_CAUSE)),
    )


def _length(row: _Row) -> str:
    return UNKNOWN if "input_tokens" in row.workload.unknown else workload_length_text(row.workload.input_tokens)


def _mean(title: str, metric: str, unit: str = Unit.NONE, factor: float = 1.0) -> ColumnOf[_Row]:
    def figure(row: _Row) -> float | None:
        estimate = row.estimate(metric)
        return estimate.value / factor if estimate else None

    return number_column(title, unit, figure, decimals=DECIMALS)


def _speed(row: _Row) -> Quantity | None:
    estimate = row.estimate("output_throughput")
    known = quantity(estimate, "tokens/s")
    return None if known is None else replace(known, decimals=DECIMALS)


def _devices(setup: EngineSetup, lock: Lock) -> str | None:
    """As many as its arguments say; one where the machine has some; else the processor."""
    counts = [str(setup.args[name]) for name in DEVICE_COUNTS if name in setup.args]
    if counts or lock.host.accelerators:
        return counts[0] if counts else "1"
    return "CPU" if lock.host.cpu_model else None


def _settings(summary: StudySummary, setup: EngineSetup) -> str:
    chosen = {name: value for name, value in {**setup.settings, **setup.env}.items() if name not in DEVICE_COUNTS}
    shown = [f"{name}={'•••' if is_secret(name) else value}" for name, value in chosen.items()]
    is_named = setup.name != setup.engine and summary.imported_from is None
    return f"{f'{setup.name}: ' if is_named else ''}{' '.join(shown) or 'default'}"


def _remarks(found: PointSummary | None) -> str:
    """Of a point with figures."""
    flagged = {outlier.trial_id for outlier in found.outliers} if found else ()
    failed = ranked_point_outcomes(found) if found else ""
    notes = [f"{plural(len(flagged), 'outlier')} flagged"] if flagged else []
    return "; ".join([*notes, *([f"besides: {failed}"] if failed else [])])
