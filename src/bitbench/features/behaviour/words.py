"""Indistinguishable from the baseline or not, and how long texts stay the baseline's."""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.features.behaviour.chart import survival_figure
from bitbench.features.behaviour.types import Behaviour, Equivalence, Survival
from bitbench.reports.document.model import Block, Chart, Details, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import bullets, listing, names, paragraph, plural, say, small_print, strong
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import quantity
from bitbench.reports.sections.lead import MAX_NAMED, Lead
from bitbench.study.plan import Config

NATS = "nats"
SIGNIFICANT = 0.05
MOST_PAIRS = 28  # of eight configs; more would not be read


def behaviour_sentences(found: Behaviour, summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: what is indistinguishable from the unquantized model, and what is not."""
    verdicts = found.equivalence
    if not verdicts:
        return
    margin = _margin(summary)
    labels = Labels.of(summary, MAX_NAME)
    shown = {row.name: labels[row.config] for row in summary.quality}
    for name, found_equal in verdicts.items():
        if found_equal.within_floor:
            floor = f"{found_equal.floor}: {found_equal.floor_divergence:.2g} nats"
            yield say("Behaviour: the loss of ", Name(shown[name]), f" is within the noise floor ({floor}).")
    for verdict, words in (
        ("equivalent", f"equivalent to the unquantized model: within {margin:g} nats of its noise floor"),
        ("different", f"not equivalent to the unquantized model: more than {margin:g} nats beyond its noise floor"),
    ):
        alike = [shown[name] for name, judged in verdicts.items() if judged.verdict == verdict]
        if alike:
            yield say("Behaviour: ", listing(names(alike)), f" {'is' if len(alike) == 1 else 'are'} {words}.")


def behaviour_lead(found: Behaviour, summary: StudySummary) -> Lead | None:
    """Of a study of quality alone; None where nothing was held against a noise floor."""
    verdicts = found.equivalence
    if not verdicts:
        return None
    labels = Labels.of(summary, MAX_NAME)
    alike = [row for row in summary.quality if row.name in verdicts and verdicts[row.name].verdict == "equivalent"]
    different = sum(judged.verdict == "different" for judged in verdicts.values())
    verb = "differs" if different == 1 else "differ"
    others = f"{plural(different, 'variant')} of {len(verdicts)} {verb} by more than noise."
    if not alike:
        return Lead(say("No variant is shown to predict tokens as the unquantized model does."), (say(others),))
    shown = listing(names(labels[row.config] for row in alike))
    verdict = say(shown, f" {'is' if len(alike) == 1 else 'are'} indistinguishable from the unquantized model.")
    reasons = (*_texts(found, [row.config for row in alike], labels), *([say(others)] if different else []))
    return Lead(verdict, reasons)


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
    if (figure := survival_figure(found, labels)) is not None:
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
            "No noise floor was measured, so nothing is called equivalent; `noise_floor: true` under `quality`, a "
            "second start, or the unquantized model on a second engine gives one."
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
    rows = [row for row in summary.quality if row.name in verdicts or row.config in curves]

    def curve(row: ConfigQuality) -> Survival | None:
        return curves.get(row.config)

    def verdict(row: ConfigQuality) -> Equivalence | None:
        return verdicts.get(row.name)

    return table(
        rows,
        words_column("Config", lambda row: Name(labels[row.config])),
        number_column("Beyond the floor", NATS, lambda row: _excess(verdict(row))),
        words_column("Verdict", lambda row: _judged(verdict(row))),
        number_column("Tokens until half diverge", Unit.COUNT, lambda row: _median(curve(row))),
        words_column("Never diverged", lambda row: _same(curve(row))),
        drop_empty=True,
    )


def _judged(found: Equivalence | None) -> str | None:
    if found is None:
        return None
    return f"{found.verdict}, within the floor" if found.within_floor else found.verdict


def _excess(found: Equivalence | None) -> Quantity | None:
    return quantity(found.excess, NATS) if found else None


def _median(curve: Survival | None) -> Quantity | Phrase | None:
    if curve is None:
        return None
    if curve.median is None:
        return say(f"more than {max(step.at for step in curve.steps)}")
    return Quantity(curve.median, Unit.COUNT, curve.median_low, curve.median_high)


def _same(curve: Survival | None) -> str | None:
    return None if curve is None else f"{curve.watched - curve.ended} of {curve.watched} texts"


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
        "is asked for eight windows.",
    )
    yield say(
        strong("Verdict"),
        f": equivalent where the divergence lies within {_margin(summary):g} nats of the largest floor with the "
        "study's confidence, different where it certainly lies beyond, otherwise inconclusive. Within the floor: it "
        "does not significantly exceed the floor at all.",
    )
    yield say(
        strong("Tokens until half diverge"),
        ": greedy texts, the same beginnings for all; a text that is the baseline's to its end is censored there "
        "(Kaplan-Meier). Pairs are compared by log-rank tests, corrected for their number (Holm).",
    )
