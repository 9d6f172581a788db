"""Sections and sentences about behaviour: equivalent within a margin or not, how long texts stay the baseline's, which
variants break conversations sooner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.features.behaviour.types import (
    Behaviour,
    Conversations,
    ConversationSurvival,
    Equivalence,
    Survival,
    TurnComparison,
)
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import MOST_SERIES, Layer, figure_channel, legend
from bitbench.reports.document.model import Block, Chart, Details, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import percent, quantity
from bitbench.reports.document.words import (
    MAX_NAME,
    bullets,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plain_words,
    plural,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.lead import MAX_NAMED, Lead
from bitbench.study.plan import Config

HEIGHT = 280


@dataclass(frozen=True)
class _Words:
    name: str
    title: str
    along: str  # the axis of time
    left: str  # what has not ended
    counted: str  # in a tooltip


TEXTS = _Words(
    name="survival",
    title="Greedy texts that are still the baseline's",
    along="tokens written",
    left="still the baseline's, more is better",
    counted="Tokens",
)
CONVERSATIONS = _Words(
    name="turns",
    title="Conversations without invalid JSON or tool call",
    along="turns",
    left="still valid, more is better",
    counted="Turns",
)


def _survival_figure(every: Sequence[Survival], labels: Labels, words: _Words) -> fig.Figure | None:
    curves = every[:MOST_SERIES]
    if not curves:
        return None
    rows = [row for curve in curves for row in _stair(curve, labels[curve.config])]
    left_out = len(every) - len(curves)
    return fig.layered_figure(
        words.name,
        words.title,
        (
            "A band is the interval of its curve.",
            f"Without {left_out} further configs, which are in the table." if left_out else "",
            labels.shared,
        ),
        _layers([labels[curve.config] for curve in curves], max(fig.figure_field_values(rows, "x")), words),
        rows,
        height=HEIGHT,
    )


def _stair(curve: Survival, label: str) -> list[fig.Row]:
    steps = [(0, 1.0, 1.0, 1.0), *((step.at, step.share, step.low, step.high) for step in curve.steps)]
    return [
        {"series": label, "x": at, "y": share, "y_low": low, "y_high": high, "shown": percent(share)}
        for at, share, low, high in steps
    ]


def _layers(names: list[str], longest: float, words: _Words) -> list[Layer]:
    colour = figure_channel("series:N", sort=names, legend=None if len(names) == 1 else legend())
    x = figure_channel("x:Q", title=words.along, scale={"domain": [0, max(longest, 1.0)], "nice": False})
    y = figure_channel(
        "y:Q",
        title=words.left,
        scale={"domain": [0, 1], "nice": False},
        axis={"format": "%"},
    )
    base = fig.figure_layer_where("isValid(datum.series)")
    return [
        base.mark("area", interpolate="step-after", opacity=0.12).encode(
            x=x, y=figure_channel("y_low:Q", title=words.left), y2="y_high", color=colour
        ),
        base.mark("line", interpolate="step-after", strokeWidth=2).encode(
            x=x, y=y, color=colour, tooltip=fig.tooltips(series="Config", x=words.counted, shown="Left")
        ),
    ]


NATS = "nats"
SIGNIFICANT = 0.05
MOST_PAIRS = 28  # of eight configs; more would not be read
JudgedRow = tuple[ConfigQuality, Equivalence]


def behaviour_sentences(found: Behaviour, summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: which variants are equivalent to their baseline within the margin."""
    labels = Labels.of(summary, MAX_NAME)
    for baseline, rows in _by_baseline(found, summary).items():
        of = _named_baseline(summary, baseline, labels)
        for verdict, words in (("equivalent", "equivalent"), ("different", "not equivalent")):
            alike = [row.config for row, judged in rows if judged.verdict == verdict]
            if alike:
                names = listing(name_phrases(labels[config] for config in alike))
                verb = "is" if len(alike) == 1 else "are"
                yield say("Behaviour: ", names, f" {verb} {words} to ", of, f" {_within(summary)}.")
        yield from _undecided_sentences(rows, labels)


def _undecided_sentences(rows: Sequence[JudgedRow], labels: Labels) -> Iterator[Phrase]:
    for lacks_mass, lack in ((False, "text"), (True, "probability mass")):
        alike = [
            row.config for row, judged in rows if judged.verdict == "inconclusive" and judged.lacks_mass is lacks_mass
        ]
        if alike:
            names = listing(name_phrases(labels[config] for config in alike))
            yield say("Behaviour: not enough ", lack, " to tell whether ", names, " is equivalent.")


def _by_baseline(found: Behaviour, summary: StudySummary) -> dict[Config, list[JudgedRow]]:
    rows: dict[Config, list[JudgedRow]] = {}
    for row in summary.quality:
        judged = found.equivalence.get(row.name)
        if judged is not None:
            rows.setdefault(judged.baseline, []).append((row, judged))
    return rows


def _named_baseline(summary: StudySummary, baseline: Config, labels: Labels) -> Phrase:
    """Return what variants are compared with: only weights without quantization are the unquantized model."""
    references = {config.config for config in summary.configs if config.is_reference}
    variants = {variant.variant for variant in references}
    return say("the unquantized model") if baseline.variant in variants else say(Name(labels[baseline]))


def _within(summary: StudySummary) -> str:
    return f"within the {_margin(summary):g}-nat margin"


def behaviour_lead(found: Behaviour, summary: StudySummary) -> Lead | None:
    """Answer a study of quality alone; None where nothing was judged."""
    judged_rows = [(row, found.equivalence[row.name]) for row in summary.quality if row.name in found.equivalence]
    if not judged_rows:
        return None
    labels = Labels.of(summary, MAX_NAME)
    baselines = dict.fromkeys(judged.baseline for _, judged in judged_rows)
    named = dict.fromkeys(_named_baseline(summary, baseline, labels) for baseline in baselines)
    of = listing(list(named), "or")
    alike = [row for row, judged in judged_rows if judged.verdict == "equivalent"]
    different = sum(judged.verdict == "different" for _, judged in judged_rows)
    open_ones = len(judged_rows) - len(alike) - different
    others = [*_others(different, is_rest=bool(alike) and not open_ones), *_open(open_ones)]
    if not alike:
        return Lead(say("No variant is shown to be equivalent to ", of, f" {_within(summary)}."), tuple(others))
    shown = listing(name_phrases(labels[row.config] for row in alike))
    verb = "is" if len(alike) == 1 else "are"
    verdict = say(shown, f" {verb} equivalent to ", of, f" {_within(summary)}.")
    return Lead(verdict, (*others, *_texts(found, [row.config for row in alike], labels)))


NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


def _others(different: int, *, is_rest: bool) -> Iterator[Phrase]:
    """`The other four are not.`"""
    count = NUMBERS.get(different, str(different))
    if different == 1:
        yield say("The other is not." if is_rest else "One is not equivalent.")
    elif different:
        yield say(f"The other {count} are not." if is_rest else f"{count.capitalize()} are not equivalent.")


def _open(count: int) -> Iterator[Phrase]:
    if count:
        verb = "is" if count == 1 else "are"
        yield say(f"{plural(count, 'variant')} {verb} inconclusive: not enough text or probability mass to tell.")


def _texts(found: Behaviour, alike: Sequence[Config], labels: Labels) -> Iterator[Phrase]:
    """What that does not mean: a text takes another way at its first token that differs."""
    curves = {curve.config: curve for curve in found.survival}
    known = [(config, curves[config]) for config in alike if config in curves]
    counts = [
        say(f"{curve.watched - curve.ended} of {plural(curve.watched, 'text')} of ", Name(labels[config]))
        for config, curve in known
    ]
    if counts:
        verb = "is" if len(known) == 1 and known[0][1].watched - known[0][1].ended == 1 else "are"
        yield say("Written greedily, ", listing(counts, most=MAX_NAMED), f" {verb} the unquantized model's to the end.")


def behaviour_section(found: Behaviour, summary: StudySummary) -> Section:
    labels = Labels.of(summary, MAX_NAME)
    blocks = [*_floors(found), _table(found, summary, labels)]
    if (figure := _survival_figure(found.survival, labels, TEXTS)) is not None:
        blocks.append(Chart(figure))
    blocks += _pairs(found, labels)
    blocks.append(Details("What the figures of behaviour mean", bullets(_definitions(summary))))
    return Section(say("Behaviour"), tuple(blocks), in_terminal=True)


def _margin(summary: StudySummary) -> float:
    assert summary.study.quality is not None  # nothing was found otherwise
    return summary.study.quality.equivalence_margin


def _floors(found: Behaviour) -> Iterator[Block]:
    if not found.floors:
        yield small_print(
            "No noise floor was measured, so nothing is judged equivalent or different. `noise_floor: true` under "
            "`quality` or a second start gives one."
        )
        return
    yield paragraph("Each against itself, the noise floor:")
    yield table(
        found.floors,
        words_column("Config", lambda floor: Name(floor.config.name)),
        words_column("What was changed", lambda floor: floor.changed),
        number_column("KL mean", NATS, lambda floor: quantity(floor.divergence, NATS)),
    )


def _table(found: Behaviour, summary: StudySummary, labels: Labels) -> Table:
    curves = {curve.config: curve for curve in found.survival}
    verdicts = found.equivalence
    rows = [(row.config, verdicts.get(row.name), curves.get(row.config)) for row in summary.quality]
    return table(
        [(config, verdict, curve) for config, verdict, curve in rows if verdict or curve],
        words_column("Config", lambda row: Name(labels[row[0]])),
        number_column("Beyond the floor", NATS, lambda row: quantity(row[1].excess, NATS) if row[1] else None),
        words_column("Verdict", lambda row: row[1].verdict if row[1] else None),
        number_column("Tokens until half diverge", Unit.COUNT, lambda row: _median(row[2]) if row[2] else None),
        words_column("Never diverged", lambda row: f"{_never(row[2])} texts" if row[2] else None),
        drop_empty=True,
    )


def _median(curve: Survival) -> Quantity | Phrase:
    if curve.median is None:
        return say(f"more than {max(step.at for step in curve.steps)}")
    return Quantity(curve.median, Unit.COUNT, curve.median_low, curve.median_high)


def _pairs(found: Behaviour, labels: Labels) -> Iterator[Block]:
    """Those that are told apart; the rest in one sentence."""
    pairs = found.pairs
    apart = [pair for pair in pairs if pair.p_value < SIGNIFICANT]
    if not pairs:
        return
    places = {curve.config: _rank(curve) for curve in found.survival}

    def ordered(first: Config, second: Config) -> Phrase:
        longer, shorter = sorted((first, second), key=lambda config: places[config], reverse=True)
        return say(Name(labels[longer]), " stays the baseline's longer than ", Name(labels[shorter]))

    told = [say(ordered(pair.one, pair.other), f" (log-rank, p = {pair.p_value:.2g}).") for pair in apart[:MOST_PAIRS]]
    more = [say(f"{len(apart) - MOST_PAIRS} more pairs differ significantly.")] if len(apart) > MOST_PAIRS else []
    yield from bullets([*told, *more])
    if len(apart) < len(pairs):
        alike = f"{len(pairs) - len(apart)} of {plural(len(pairs), 'pair')}"
        yield small_print(f"For {alike} the difference in how long they last is not significant.")


def _rank(curve: Survival) -> float:
    """The area under a curve: how many tokens a text stays the baseline's, of those that were watched."""
    area, height, place = 0.0, 1.0, 0
    for step in curve.steps:
        area += height * (step.at - place)
        height, place = step.share, step.at
    return area


def _definitions(summary: StudySummary) -> Iterator[Phrase]:
    yield say(
        strong("Noise floor"),
        ": the mean KL divergence of a config from itself when only what should not matter is changed. Another start "
        "is asked for eight windows. The floor that counts is the baseline's on its own engine: another start, else "
        "several requests at once, else 0.",
    )
    yield say(
        strong("Verdict"),
        f": equivalent if the divergence exceeds that floor by less than {_margin(summary):g} nats with the study's "
        "confidence, whatever the missing probability mass may add. Different if it certainly exceeds it by more. "
        "Otherwise inconclusive: not enough text, or not enough probability mass, to tell.",
    )
    yield say(
        strong("Tokens until half diverge"),
        ": greedy texts, the same beginnings for all; a text that is the baseline's to its end is censored there "
        "(Kaplan-Meier). Pairs are compared by log-rank tests, corrected for their number (Holm).",
    )


TURNS = "turns"
LONGEST_EXAMPLE = 80  # characters of an answer that broke a conversation
VERDICTS = {
    "sooner": "breaks sooner",
    "later": "lasts longer",
    "no difference found": "no difference found",
    "inconclusive": "inconclusive",
}


def turn_behaviour_sentences(found: Conversations, summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: which variants break sooner than the unquantized model, and which do not."""
    labels = Labels.of(summary, MAX_NAME)
    by_config = {row.config: row for row in found.rows}
    compared = [(row, row.against) for row in found.rows if row.against is not None]
    for row, against in compared:
        if against.verdict in ("sooner", "later"):
            yield _apart(row, against, by_config[against.baseline], labels)
    untold = [(row, against) for row, against in compared if against.verdict == "no difference found"]
    for row, against in untold:
        if _looks_worse(against):
            yield _may_be_chance(row, against, len(compared), labels)
    if alike := [(row, against) for row, against in untold if not _looks_worse(against)]:
        yield _alike(alike, labels)
    for baseline in dict.fromkeys(against.baseline for _, against in compared):
        told = [against.verdict for _, against in compared if against.baseline == baseline]
        if told[0] == "inconclusive":
            yield _untold(by_config[baseline], labels)


def turn_behaviour_section(found: Conversations, summary: StudySummary) -> Section:
    labels = Labels.of(summary, MAX_NAME)
    blocks: list[Block] = [*bullets(turn_behaviour_sentences(found, summary)), _turn_table(found.rows, labels)]
    if (figure := _survival_figure([row.survival for row in found.rows], labels, CONVERSATIONS)) is not None:
        blocks.append(Chart(figure))
    blocks.append(_basis(found.rows[0]))
    blocks.append(Details("Why conversations broke", (_faults(found.rows, labels),)))
    blocks.append(Details("What the figures of turns mean", bullets(_turn_definitions())))
    return Section(say("Turns until invalid JSON"), tuple(blocks), in_terminal=True)


def _begin(row: ConversationSurvival) -> str:
    return f"JSON and tool calls over {plural(row.turns, 'turn')}: "


def _apart(
    row: ConversationSurvival, against: TurnComparison, baseline: ConversationSurvival, labels: Labels
) -> Phrase:
    words = "breaks sooner than" if against.verdict == "sooner" else "lasts longer than"
    return say(
        _begin(row),
        Name(labels[row.config]),
        f" {words} the unquantized model: {_half(row)} (unquantized: {_half(baseline)}; p = {against.p_value:.2g}).",
    )


def _half(row: ConversationSurvival) -> str:
    curve = row.survival
    if curve.median is None:
        return f"{_never(curve)} conversations valid to the end"
    return f"half of the conversations broken by turn {curve.median}"


def _looks_worse(against: TurnComparison) -> bool:
    """By itself; among several variants one may look so by chance."""
    return against.fewer.is_above(0)


def _may_be_chance(row: ConversationSurvival, against: TurnComparison, variants: int, labels: Labels) -> Phrase:
    lost = quantity(against.fewer, TURNS)
    among = f"one of {variants} variants may look so by chance" if variants > 1 else "it may be chance"
    return say(
        _begin(row),
        Name(labels[row.config]),
        " looks worse than the unquantized model, ",
        lost,
        f" of {row.turns} fewer, but {among} (p = {against.p_value:.2g}).",
    )


def _alike(alike: list[tuple[ConversationSurvival, TurnComparison]], labels: Labels) -> Phrase:
    first, _ = alike[0]
    most = max((against.fewer.interval.high for _, against in alike if against.fewer.interval), default=0.0)
    bound = f"at most {most:.1f} of {plural(first.turns, 'turn')} fewer" if most > 0 else "the same turn in each"
    return say(
        _begin(first),
        f"no difference found in {first.survival.watched} conversations between the unquantized model and ",
        listing(name_phrases(labels[row.config] for row, _ in alike)),
        f" ({bound}).",
    )


def _untold(baseline: ConversationSurvival, labels: Labels) -> Phrase:
    curve = baseline.survival
    first = next((step.share for step in curve.steps if step.at == 1), 1.0)
    broken = round((1 - first) * curve.watched)
    return say(
        _begin(baseline),
        "inconclusive, nothing can be said about quantization. The unquantized model ",
        Name(labels[baseline.config]),
        f" itself breaks {broken} of {curve.watched} conversations in their first turn; a larger model can tell.",
    )


def _turn_table(rows: tuple[ConversationSurvival, ...], labels: Labels) -> Table:
    return table(
        rows,
        words_column("Config", lambda row: Name(labels[row.config])),
        number_column("Turns until half break", Unit.COUNT, lambda row: _median(row.survival)),
        words_column("Never broke", lambda row: _never(row.survival)),
        number_column("Valid turns", TURNS, lambda row: row.valid_turns),
        number_column(
            "Fewer than unquantized",
            TURNS,
            lambda row: quantity(row.against.fewer, TURNS) if row.against else None,
            intervals_from=0,
        ),
        words_column("p", lambda row: f"{row.against.p_value:.2g}" if row.against else None),
        words_column("Verdict", lambda row: VERDICTS[row.against.verdict] if row.against else _is_baseline(rows, row)),
        drop_empty=True,
    )


def _never(curve: Survival) -> str:
    return f"{curve.watched - curve.ended} of {curve.watched}"


def _is_baseline(rows: tuple[ConversationSurvival, ...], row: ConversationSurvival) -> str | None:
    baselines: set[Config] = {row.against.baseline for row in rows if row.against}
    return "unquantized" if row.config in baselines else None


def _basis(first: ConversationSurvival) -> Block:
    return small_print(
        f"{first.survival.watched} scripted conversations of {plural(first.turns, 'turn')}, half of them extractions, "
        "half tool calls, each with two examples; greedy answers of one line. The turns before are in the prompt with "
        "the script's own answers, so that every config is asked the same. A conversation ends at its first fault."
    )


def _faults(rows: tuple[ConversationSurvival, ...], labels: Labels) -> Table:
    return table(
        [(row, fault) for row in rows for fault in row.faults],
        words_column("Config", lambda row: Name(labels[row[0].config])),
        words_column("Fault", lambda row: row[1].fault),
        number_column("Conversations", Unit.COUNT, lambda row: row[1].conversations),
        words_column("Such an answer", lambda row: Name(plain_words(row[1].example, LONGEST_EXAMPLE) or "nothing")),
    )


def _turn_definitions() -> Iterator[Phrase]:
    yield say(
        strong("Turns until half break"),
        ": a conversation breaks at its first answer that is not the JSON object or tool call that was asked for: not "
        "JSON, a key too few or too many, a value of the wrong kind, an unknown tool. Whether values are right is not "
        "judged. One without a fault is censored at its last turn (Kaplan-Meier).",
    )
    yield say(
        strong("Fewer than unquantized"),
        ": valid turns that are lost of a conversation, mean over the same conversations on both sides.",
    )
    yield say(
        strong("p"),
        ": log-rank test against the unquantized model on the same engine, corrected for the number of variants "
        "(Holm). It does not use that conversations are the same on both sides, so it misses some differences.",
    )
    yield say(
        strong("Verdict"),
        ": no difference found does not prove that there is none; the upper end of the turns lost bounds it. "
        "Inconclusive: fewer than a quarter of the unquantized model's own conversations survive their first turn.",
    )
