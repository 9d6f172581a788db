"""What each contender keeps of its baseline's quality, beside its speed and memory, for Markdown and terminal."""

from collections.abc import Callable, Iterator, Sequence

from bitbench.core.found.summary import ContenderQuality, QualityEstimate, StudySummary, TaskEstimate
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN, significant
from bitbench.report.document.numbers import mean, number, percent, scale_for, size_scale
from bitbench.report.document.text import MAX_NAME, code, escape, listing, table
from bitbench.report.labels import Labels

MAX_WORKLOADS = 3  # beside quality; all of them have tables of their own
MAX_ANSWER = 240  # characters of an answer in the table
KEYS = ("perplexity", "perplexity_rise", "kl_mean", "kl_p99", "top1_agreement")
FEW_KEYS = ("perplexity", "perplexity_rise", "kl_mean", "top1_agreement")  # on a narrow terminal

Quote = Callable[[str], str]


class QualityTable:
    """One row per contender: speed, memory, quality; quality alone where there is no room for more."""

    def __init__(self, summary: StudySummary, *, wide: bool = True) -> None:
        self._summary = summary
        self.wide = wide
        self.rows = summary.quality
        self._workloads = summary.study.workloads[:MAX_WORKLOADS] if wide else ()
        cells = [cell for cell in summary.cells if summary.headline in cell.metrics]
        self._speeds = {(cell.cell.contender, cell.cell.workload): cell.metrics[summary.headline] for cell in cells}
        self._speed_scale = scale_for(
            summary.definitions[summary.headline], [one.mean for one in self._speeds.values()]
        )
        self._memory = {one.contender: one.memory for one in summary.contenders}
        peaks = [one.peak_bytes.high for one in self._memory.values() if one.peak_bytes]
        self._size_scale = size_scale(peaks)

    def header(self) -> list[str]:
        summary = self._summary
        speed = summary.definitions[summary.headline].label
        return [
            "Contender",
            *(f"{speed}, {one.name} ({self._speed_scale.unit})" for one in self._workloads),
            *([f"Weights ({self._size_scale.unit})", f"Peak ({self._size_scale.unit})"] if self.wide else []),
            *(summary.quality_definitions[key].label for key in self._keys),
            *(["Answers"] if self._with_answers else []),
            "",
        ]

    def cells(self, row: ContenderQuality, *, intervals: bool) -> list[str]:
        speeds = (self._speeds.get((row.contender, one.name)) for one in self._workloads)
        memory = self._memory.get(row.contender)
        sizes = (
            memory.weight_bytes_stored if memory else None,
            memory.peak_bytes.high if memory and memory.peak_bytes else None,
        )
        return [
            *(mean(one, self._speed_scale) for one in speeds),
            *(UNKNOWN if size is None else significant(size / self._size_scale.factor) for size in sizes if self.wide),
            *(shown(key, row.estimates.get(key), interval=intervals) for key in self._keys),
            *([_equal(row)] if self._with_answers else []),
            mark(row),
        ]

    @property
    def _with_answers(self) -> bool:
        return self.wide and any(row.answers for row in self.rows)

    @property
    def _keys(self) -> tuple[str, ...]:
        return KEYS if self.wide else FEW_KEYS


def shown(key: str, estimate: QualityEstimate | None, *, interval: bool = True) -> str:
    """`33.77 [32.10, 35.52]`; shares and rises in per cent."""
    if estimate is None:
        return UNKNOWN
    factor = 100.0 if key in ("perplexity_rise", "top1_agreement") else 1.0
    unit, sign = (" %" if factor > 1 else ""), ("+" if key == "perplexity_rise" else "")
    half = (estimate.interval.high - estimate.interval.low) / 2 * factor if estimate.interval else None
    if key == "perplexity":
        half = None  # its interval is that of the text, which all contenders share: their differences are finer

    def one(value: float) -> str:
        if value == 0 or value == 1 == factor / 100:
            return f"{value * factor:g}"
        text = number(value * factor, half)
        return f"{sign}{text}" if value > 0 else text

    if not (interval and estimate.interval):
        return f"{one(estimate.value)}{unit}"
    return f"{one(estimate.value)} [{one(estimate.interval.low)}, {one(estimate.interval.high)}]{unit}"


def mark(row: ContenderQuality) -> str:
    if row.outcome is not Outcome.OK:
        return row.outcome.value
    if row.flagged:
        return "flagged"
    return "baseline" if row.baseline == row.contender else ""


def _equal(row: ContenderQuality) -> str:
    if row.equal_answers is None:
        return UNKNOWN
    loops = sum(one.repeats for one in row.answers)
    return f"{row.equal_answers} of {len(row.answers)}" + (f", {loops} in a loop" if loops else "")


def quality_sentences(summary: StudySummary, quote: Quote) -> list[str]:
    """For the answer above all tables: who lost too much, and who could not be measured."""
    sentences = [f"Quality: {quote(row.name)} is flagged: {row.reason}." for row in summary.quality if row.flagged]
    sentences += [
        f"Quality: {quote(row.name)} has no result ({row.outcome.value}): {row.cause}"
        for row in summary.quality
        if row.outcome is not Outcome.OK
    ]
    fine = [quote(row.name) for row in summary.quality if row.baseline not in (None, row.contender) and not mark(row)]
    if fine:
        limits = summary.study.quality
        assert limits is not None  # there are rows
        sentences.append(
            f"Quality: {listing(fine)} {'is' if len(fine) == 1 else 'are'} not surely beyond the limits (mean KL "
            f"divergence {limits.max_divergence:g} nats, perplexity +{percent(limits.max_perplexity_rise)})."
        )
    return sentences


def quality_section(summary: StudySummary) -> str:
    if summary.study.quality is None:
        return ""
    parts = ["## Quality", *_basis(summary)]
    if summary.quality:
        tables = QualityTable(summary)
        labels = Labels.of(summary, MAX_NAME)
        rows = [[code(labels[row.contender]), *tables.cells(row, intervals=True)] for row in tables.rows]
        parts += [table(tables.header(), rows), labels.in_words().strip()]
        parts.append(_definitions(summary))
    parts += [*_tasks(summary), *_refused(summary), *_answers(summary)]
    return "\n\n".join(part for part in parts if part)


def _basis(summary: StudySummary) -> Iterator[str]:
    known = next((row for row in summary.quality if row.outcome is Outcome.OK), None)
    if known is None:
        yield "No contender has a result."
        return
    yield (
        f"Text: {escape(known.corpus or UNKNOWN)}. {known.windows} windows, {known.tokens:,} scored tokens, the same "
        f"for all variants of a model. The divergence is from the {known.top_tokens} likeliest tokens of each side. A "
        "baseline is the unquantized variant on the same engine; each difference to it is paired, token by token, and "
        "its interval is from a bootstrap over windows."
    )


def _definitions(summary: StudySummary) -> str:
    lines = [f"- **{one.label}**: {one.definition}" for one in summary.quality_definitions.values()]
    limits = summary.study.quality
    if limits is not None:
        lines.append(
            "- **flagged**: a log-probability is no finite number, or the whole interval lies beyond a limit of the "
            f"study: mean KL divergence {limits.max_divergence:g} nats, perplexity "
            f"+{percent(limits.max_perplexity_rise)}."
        )
    if any(row.answers for row in summary.quality):
        lines.append(
            "- **Answers**: greedy answers to fixed questions that are the baseline's, token for token. *In a loop*: "
            "its end is one piece, four times or more and 16 tokens or more."
        )
    return "\n".join(lines)


def _tasks(summary: StudySummary) -> Iterator[str]:
    rows = [
        [code(row.name), code(one.task), escape(one.metric), *task_figures(one)]
        for row in summary.quality
        for one in row.tasks
    ]
    failures = [
        f"- {code(row.name)}, {code(one.task)}: {escape(one.cause)}"
        for row in summary.quality
        for one in row.task_failures
    ]
    if rows or failures:
        yield "### Tasks"
    if rows:
        yield "lm-eval; ± is one standard error, that of a difference as if the two were independent."
        yield table(["Contender", "Task", "Metric", "Value", "To the baseline", "Questions"], rows, left=(0, 1, 2))
    if failures:
        yield "Without a result:\n\n" + "\n".join(failures)


def task_figures(one: TaskEstimate) -> list[str]:
    return [
        _plus_minus(one.value, one.standard_error),
        UNKNOWN if one.difference is None else _plus_minus(one.difference, one.difference_error, sign="+"),
        UNKNOWN if one.samples is None else f"{one.samples:,}",
    ]


def _plus_minus(value: float, error: float | None, sign: str = "") -> str:
    return f"{value:{sign}.4f}" if error is None else f"{value:{sign}.4f} ± {error:.4f}"


def _refused(summary: StudySummary) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in summary.quality_refusals:
        reasons.setdefault(one.reason, []).append(code(one.contender.name))
    if reasons:
        yield "\n".join(f"- Not measured: {listing(names)}: {escape(reason)}" for reason, names in reasons.items())


def _answers(summary: StudySummary) -> Iterator[str]:
    rows: list[Sequence[str]] = []
    prompts = dict.fromkeys(one.prompt for row in summary.quality for one in row.answers)
    for prompt in prompts:
        for row in summary.quality:
            answer = next((one for one in row.answers if one.prompt == prompt), None)
            if answer is None:
                continue
            is_other = row.baseline != row.contender and answer.baseline_text is not None
            same = is_other and answer.first_difference is None
            differs = [f"from token {answer.first_difference}"] if answer.first_difference is not None else []
            remarks = [*differs, *(["in a loop"] if answer.repeats else [])]
            text = "*as the baseline*" if same else escape(answer.text, MAX_ANSWER)
            rows.append([escape(prompt), code(row.name), text, ", ".join(remarks)])
    if rows:
        yield "### Answers side by side"
        yield table(["Question", "Contender", "Answer", "Differs"], rows, left=(0, 1, 2, 3))
