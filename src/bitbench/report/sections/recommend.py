"""A recommendation in words and one table per workload: text for a terminal, Markdown for a document."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.found.recommendation import Choice, Cost, Finding, Judged, Recommendation, Standing
from bitbench.core.found.summary import Estimate
from bitbench.ground.units import UNKNOWN, show_bytes, significant
from bitbench.report.document.numbers import (
    Scale,
    mean,
    mean_and_interval,
    number,
    percent,
    scale_for,
    size_scale,
    times,
)
from bitbench.report.document.text import MAX_NAME, code, escape, listing, plain, table
from bitbench.report.labels import Labels

Quote = Callable[[str], str]
MARKS = {Standing.MET: "✓", Standing.BROKEN: "✗", Standing.UNSURE: "?"}
MAX_CAUSE = 160


@dataclass(frozen=True)
class _Columns:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0, 1)


def markdown_recommendation(found: Recommendation) -> str:
    parts = [f"# What to run: {escape(found.study)}", f"Asked for: {escape(_asked(found))}."]
    for choice in found.choices:
        columns = _columns(found, choice, code, brief=False)
        parts += [
            f"## {code(choice.workload)}",
            "\n".join(f"- {sentence}" for sentence in _answer(found, choice, code, escape)),
        ]
        if any(one.figure for one in choice.judged):
            parts.append(table(columns.header, columns.rows, left=columns.words))
    if closing := list(_closing(found, code)):
        parts += ["## What to know", "\n".join(f"- {sentence}" for sentence in closing)]
    return "\n\n".join(parts) + "\n"


def render_recommendation(found: Recommendation, console: Console) -> None:
    def name(text: str) -> str:
        return plain(text, MAX_NAME)

    console.print(Text(f"Asked for: {plain(_asked(found))}.", style="dim"))
    for choice in found.choices:
        columns = _columns(found, choice, name, brief=True)
        shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for place, title in enumerate(columns.header):
            is_text = place in columns.words
            shown.add_column(
                Text(title.replace(" (", "\n(").replace(" ≤ ", "\n≤ ")),
                justify="left" if is_text else "right",
                overflow="fold",
                no_wrap=place == 0 or not is_text,
            )
        for judged, row in zip(choice.judged, columns.rows, strict=True):
            shown.add_row(*(Text(cell) for cell in row), style="bold" if judged.contender == choice.chosen else None)
        console.print()
        console.print(Text(name(choice.workload), style="bold"))
        if any(one.figure for one in choice.judged):
            console.print(shown)
        for sentence in _answer(found, choice, name, plain):
            console.print(Text(f"• {sentence}"))
    if closing := list(_closing(found, name)):
        console.print()
    for sentence in closing:
        console.print(Text(f"• {sentence}"))


def _asked(found: Recommendation) -> str:
    limits = found.limits
    asked = [f"{one.name} of at most {_shown_limit('s', one.limit)}" for one in limits.objectives]
    if limits.memory_bytes is not None:
        asked.append(f"{found.memory_name} of at most {_shown_limit('bytes', limits.memory_bytes)}")
    if limits.quality_loss is not None:
        asked.append(f"quality loss of at most {_shown_limit('share', limits.quality_loss)}")
    goal = f"the {'highest' if found.headline.higher_is_better else 'lowest'} {found.headline.name}"
    return f"{goal} with {listing(asked)}" if asked else f"{goal}, without limits"


def _answer(found: Recommendation, choice: Choice, quote: Quote, text: Quote) -> Iterator[str]:
    if all(one.figure is None for one in choice.judged):
        yield "No contender has a result here."
    elif choice.chosen is not None:
        yield _take(found, choice.of(choice.chosen), quote)
        yield from _ties(found, choice, quote)
    elif choice.nearest is not None:
        yield _none_meets(choice, choice.of(choice.nearest), quote, text)
    yield from _better_but_open(choice, quote)
    yield from _ruled_out(choice, quote, text)


def _take(found: Recommendation, judged: Judged, quote: Quote) -> str:
    gain = "it is the baseline itself"
    if judged.ratio_to_baseline is not None and found.baseline is not None:
        gain = f"{times(judged.ratio_to_baseline)} the baseline {quote(found.baseline.name)}"
    elif judged.contender != found.baseline:
        gain = "the baseline has no result here"
    cost = "" if judged.cost is None else f"; {_cost(judged.cost)} per million output tokens"
    failed = ""
    if judged.failed_trials:
        failed = f" Caution: {judged.failed_trials} of its {judged.trials} trials failed."
    return (
        f"Run {quote(judged.contender.name)}: {found.headline.name} {_figure(found, judged.figure)}, {gain}{cost}."
        f"{failed}"
    )


def _ties(found: Recommendation, choice: Choice, quote: Quote) -> Iterator[str]:
    if not choice.ties:
        return
    tied = [choice.of(one) for one in choice.ties]
    names = listing([quote(one.contender.name) for one in tied])
    sentence = f"Not told apart from it with these trials: {names}"
    if found.baseline in choice.ties:
        sentence += ", so a gain over the baseline is not sure"
    known = [one for one in (choice.of(choice.chosen), *tied) if one.memory is not None] if choice.chosen else []
    if len(known) > 1:
        least = min(known, key=lambda one: one.memory.mean if one.memory else 0.0)
        sentence += f"; of these {quote(least.contender.name)} takes the least memory ({_memory(least)})"
    yield f"{sentence}."


def _none_meets(choice: Choice, nearest: Judged, quote: Quote, text: Quote) -> str:
    names = listing(list(dict.fromkeys(one.name for one in nearest.findings)))
    missed = [one for one in nearest.findings if one.standing is not Standing.MET]
    if nearest.standing is Standing.BROKEN:
        broken = [one for one in missed if one.standing is Standing.BROKEN]
        return (
            f"None of the measured contenders meets {names}; the nearest is {quote(nearest.contender.name)}: "
            f"{'; '.join(_missed(one, text) for one in broken)}."
        )
    count = len(choice.with_standing[Standing.UNSURE])
    may = "one may" if count == 1 else f"{count} may"
    return (
        f"None of the measured contenders surely meets {names}; {may}. The nearest is "
        f"{quote(nearest.contender.name)}: {'; '.join(_missed(one, text) for one in missed)}."
    )


def _better_but_open(choice: Choice, quote: Quote) -> Iterator[str]:
    """Ahead of the chosen one, but not known to keep the limits: worth more trials."""
    if choice.chosen is None:
        return
    places = [one.contender for one in choice.judged]
    ahead = [one for one in choice.judged[: places.index(choice.chosen)] if one.standing is Standing.UNSURE]
    for one in ahead:
        open_ones = [finding for finding in one.findings if finding.standing is Standing.UNSURE]
        yield (
            f"{quote(one.contender.name)} may be better, but it cannot be told whether it keeps the limits: "
            f"{'; '.join(_missed(finding, plain) for finding in open_ones)}."
        )


def _ruled_out(choice: Choice, quote: Quote, text: Quote) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in choice.with_standing[Standing.BROKEN]:
        if one.figure is None:
            reason = f"no result ({text(plain(one.why_no_result, MAX_CAUSE))})"
            reasons.setdefault(reason, []).append(quote(one.contender.name))
        elif one.contender != choice.nearest:
            broken = [finding for finding in one.findings if finding.standing is Standing.BROKEN]
            reasons["; ".join(_missed(finding, text) for finding in broken)] = [quote(one.contender.name)]
    for reason, names in reasons.items():
        yield f"Ruled out: {listing(names)}: {reason}."


def _missed(finding: Finding, text: Quote) -> str:
    if finding.value is None:
        return f"{finding.name}: {text(finding.reason)}"
    why = f" ({text(finding.reason)})" if finding.reason else ""
    return f"{finding.name} {_in_words(finding)} against {_limit(finding)}{why}"


def _in_words(finding: Finding, *, brief: bool = False) -> str:
    assert finding.value is not None
    scale = _scale(finding)
    ends = [finding.interval.low, finding.interval.high] if finding.interval else []
    half = (ends[1] - ends[0]) / 2 / scale.factor if ends else None
    if brief:
        return f"{significant(finding.value / scale.factor)} {scale.unit}"
    value = number(finding.value / scale.factor, half)
    shown = f" [{', '.join(number(end / scale.factor, half) for end in ends)}]" if ends else ""
    return f"{value}{shown} {scale.unit}"


def _scale(finding: Finding) -> Scale:
    if finding.unit == "bytes":
        return size_scale([finding.value or finding.limit])
    if finding.unit == "share":
        return Scale("%", 0.01)
    small = (finding.value or finding.limit) < 1
    return Scale("ms", 1e-3) if small else Scale("s")


def _limit(finding: Finding) -> str:
    return _shown_limit(finding.unit, finding.limit)


def _shown_limit(unit: str, limit: float) -> str:
    """As a person would write it: 4 GB stays 4 GB, although figures are in MiB."""
    if unit == "share":
        return percent(limit)
    if unit == "bytes":
        return f"{limit / 1e9:g} GB" if limit >= 1e9 and limit % 1e8 == 0 else show_bytes(limit)
    return f"{limit:g} s" if limit >= 1 else f"{1000 * limit:g} ms"


def _columns(found: Recommendation, choice: Choice, quote: Quote, *, brief: bool) -> _Columns:
    """`brief`: without all intervals but that of the ratio, for which a terminal has no room."""
    measured = [one for one in choice.judged if one.figure is not None]
    findings = measured[0].findings if measured else ()
    scale = scale_for(found.headline, [one.figure.mean for one in measured if one.figure])
    has_memory = all(one.name != "memory" for one in findings) and any(one.memory for one in measured)
    header = ["Verdict", "Contender", f"{found.headline.label} ({scale.unit})", "vs. baseline"]
    header += [f"{one.name} ≤ {_limit(one)}" for one in findings]
    header += ["Memory (MiB)"] if has_memory else []
    header += ["Cost per Mtok"] if found.price_per_hour is not None else []
    labels = Labels((one.contender for one in choice.judged), MAX_NAME)
    rows = []
    for one in choice.judged:
        ratio = "baseline" if one.contender == found.baseline else times(one.ratio_to_baseline)
        figure = mean(one.figure, scale) if brief else mean_and_interval(one.figure, scale)
        row = [_verdict(choice, one), quote(labels[one.contender]), figure, ratio]
        row += [_held(own, brief=brief) for own in one.findings] or [UNKNOWN] * len(findings)
        row += [_memory(one).removesuffix(" MiB")] if has_memory else []
        row += [_cost(one.cost, brief=brief)] if found.price_per_hour is not None else []
        rows.append(tuple(row))
    return _Columns(tuple(header), tuple(rows))


def _held(finding: Finding, *, brief: bool) -> str:
    value = UNKNOWN if finding.value is None else _in_words(finding, brief=brief)
    return f"{value} {MARKS[finding.standing]}"


def _verdict(choice: Choice, judged: Judged) -> str:
    if judged.contender == choice.chosen:
        return "run this"
    if judged.contender in choice.ties:
        return "tie with it"
    if judged.figure is None:
        return "no result"
    return {Standing.MET: "meets", Standing.UNSURE: "cannot tell", Standing.BROKEN: "ruled out"}[judged.standing]


def _memory(judged: Judged) -> str:
    return UNKNOWN if judged.memory is None else f"{significant(judged.memory.mean / 2**20)} MiB"


def _figure(found: Recommendation, estimate: Estimate | None) -> str:
    scale = scale_for(found.headline, [estimate.mean] if estimate else [])
    return f"{mean_and_interval(estimate, scale)} {scale.unit}"


def _cost(cost: Cost | None, *, brief: bool = False) -> str:
    if cost is None:
        return UNKNOWN
    if brief or cost.low is None or cost.high is None:
        return significant(cost.mean)
    return f"{significant(cost.mean)} [{significant(cost.low)}, {significant(cost.high)}]"


def _closing(found: Recommendation, quote: Quote) -> Iterator[str]:
    if len(found.choices) > 1:
        if found.for_all:
            names = listing([quote(one.name) for one in found.for_all])
            verb = "is" if len(found.for_all) == 1 else "are each"
            yield f"One for all workloads: {names} {verb} the choice, or a tie with it, on every one."
        elif found.exit_code == 0:
            yield "No single contender is the choice, or a tie with it, on every workload."
    yield from _symbols(found)
    yield from found.notes


def _symbols(found: Recommendation) -> Iterator[str]:
    if any(one.findings for choice in found.choices for one in choice.judged):
        yield (
            "✓ the whole interval keeps the limit, ✗ the whole interval lies beyond it, ? it cannot be told: only ✓ "
            "counts as met, only ✗ rules out."
        )
