"""Turns until the first invalid JSON or tool call: which variants break sooner than the unquantized model."""

from collections.abc import Iterator

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.behaviour.chart import turns_figure
from bitbench.features.behaviour.types import Conversations, ConversationSurvival, Survival, TurnComparison
from bitbench.reports.document.model import Block, Chart, Details, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME, plain
from bitbench.reports.document.words import bullets, listing, names, plural, say, small_print, strong
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import quantity
from bitbench.study.plan import Config

TURNS = "turns"
LONGEST_EXAMPLE = 80  # characters of an answer that broke a conversation
VERDICTS = {
    "sooner": "breaks sooner",
    "later": "lasts longer",
    "no difference found": "no difference found",
    "inconclusive": "inconclusive",
}


def turns_sentences(found: Conversations, summary: StudySummary) -> Iterator[Phrase]:
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


def turns_section(found: Conversations, summary: StudySummary) -> Section:
    labels = Labels.of(summary, MAX_NAME)
    blocks: list[Block] = [*bullets(turns_sentences(found, summary)), _table(found.rows, labels)]
    if (figure := turns_figure(found, labels)) is not None:
        blocks.append(Chart(figure))
    blocks.append(_basis(found.rows[0]))
    blocks.append(Details("Why conversations broke", (_faults(found.rows, labels),)))
    blocks.append(Details("What the figures of turns mean", bullets(_definitions())))
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
        listing(names(labels[row.config] for row, _ in alike)),
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


def _table(rows: tuple[ConversationSurvival, ...], labels: Labels) -> Table:
    return table(
        rows,
        words_column("Config", lambda row: Name(labels[row.config])),
        number_column("Turns until half break", Unit.COUNT, lambda row: _median(row.survival)),
        words_column("Never broke", lambda row: _never(row.survival)),
        number_column("Valid turns", TURNS, lambda row: row.valid_turns),
        number_column("Fewer than unquantized", TURNS, lambda row: _fewer(row.against), intervals_from=0),
        words_column("p", lambda row: f"{row.against.p_value:.2g}" if row.against else None),
        words_column("Verdict", lambda row: VERDICTS[row.against.verdict] if row.against else _is_baseline(rows, row)),
        drop_empty=True,
    )


def _never(curve: Survival) -> str:
    return f"{curve.watched - curve.ended} of {curve.watched}"


def _is_baseline(rows: tuple[ConversationSurvival, ...], row: ConversationSurvival) -> str | None:
    baselines: set[Config] = {row.against.baseline for row in rows if row.against}
    return "unquantized" if row.config in baselines else None


def _median(curve: Survival) -> Quantity | Phrase:
    if curve.median is None:
        return say(f"more than {max(step.at for step in curve.steps)}")
    return Quantity(curve.median, Unit.COUNT, curve.median_low, curve.median_high)


def _fewer(against: TurnComparison | None) -> Quantity | None:
    return quantity(against.fewer, TURNS) if against else None


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
        words_column("Such an answer", lambda row: Name(plain(row[1].example, LONGEST_EXAMPLE) or "nothing")),
    )


def _definitions() -> Iterator[Phrase]:
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
