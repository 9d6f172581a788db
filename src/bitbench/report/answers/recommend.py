"""A recommendation: what to use on each workload, and why not the others."""

from collections.abc import Iterator

from bitbench.core.found.recommendation import Choice, Finding, Judged, Recommendation, Standing
from bitbench.ground.units import show_bytes
from bitbench.report.document.model import (
    Document,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Row,
    Section,
    Table,
    TableCell,
    Unit,
)
from bitbench.report.document.numbers import percent
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.document.words import (
    bullets,
    joined,
    listing,
    names,
    number_column,
    paragraph,
    say,
    strong,
    words_column,
)
from bitbench.report.labels import Labels
from bitbench.report.quantities import ROUGH, estimated, size, times, unit_of

MARKS = {Standing.MET: "✓", Standing.BROKEN: "✗", Standing.UNSURE: "?"}
VERDICTS = {Standing.MET: "meets", Standing.UNSURE: "inconclusive", Standing.BROKEN: "ruled out"}
MAX_CAUSE = 160
ROOM = 90  # characters of a terminal for the first four columns, with a contender's name, and one more
ROOM_OF_A_FIGURE = 14  # for each further one
ROOM_FOR_INTERVALS = 180


def recommendation_document(found: Recommendation) -> Document:
    return Document(
        say("What to run: ", found.study),
        (
            paragraph("Asked for: ", _asked(found), "."),
            *(Paragraph(_verdict(found, choice)) for choice in found.choices),
            *(Paragraph(words) for words in _on_every_workload(found)),
        ),
        (*(_section(found, choice) for choice in found.choices), *_what_to_know(found)),
    )


def _asked(found: Recommendation) -> Phrase:
    limits = found.limits
    asked = [f"{one.name} of at most {_limit('s', one.limit)}" for one in limits.objectives]
    if limits.memory_bytes is not None:
        asked.append(f"{found.memory_name} of at most {_limit('bytes', limits.memory_bytes)}")
    if limits.quality_loss is not None:
        asked.append(f"quality loss of at most {_limit('share', limits.quality_loss)}")
    goal = f"the {'highest' if found.headline.higher_is_better else 'lowest'} {found.headline.name}"
    return say(goal, " with ", listing(asked)) if asked else say(goal, ", without limits")


def _limit(unit: str, limit: float) -> str:
    """As a person would write it: 4 GB stays 4 GB, although figures are in MiB."""
    if unit == Unit.SHARE:
        return percent(limit)
    if unit == Unit.BYTES:
        return f"{limit / 1e9:g} GB" if limit >= 1e9 and limit % 1e8 == 0 else show_bytes(limit)
    return f"{limit:g} s" if limit >= 1 else f"{1000 * limit:g} ms"


def _verdict(found: Recommendation, choice: Choice) -> Phrase:
    if choice.chosen is not None:
        return say(_use(found, choice, choice.of(choice.chosen)), _ties(found, choice, choice.of(choice.chosen)))
    if choice.nearest is not None:
        return _none_meets(choice, choice.of(choice.nearest))
    return strong("No contender has a result on ", Name(choice.workload), ".")


def _use(found: Recommendation, choice: Choice, judged: Judged) -> Phrase:
    figure = estimated(judged.figure, found.headline)
    assert figure is not None  # what has no result is not chosen
    cost = say(" A million output tokens cost ", _cost(judged), ".") if judged.cost else ()
    failed = f" Caution: {judged.failed_trials} of its {judged.trials} trials failed." if judged.failed_trials else ""
    return say(
        strong("Use ", Name(judged.contender.name), " on ", Name(choice.workload), "."),
        f" Its {found.headline.name} is ",
        figure,
        _gain(found, judged),
        ".",
        cost,
        failed,
    )


def _gain(found: Recommendation, judged: Judged) -> Phrase:
    ratio = times(judged.ratio_to_baseline)
    if ratio is not None and found.baseline is not None:
        return say(", ", ratio, " that of the baseline ", Name(found.baseline.name))
    if judged.contender == found.baseline:
        return say("; it is the baseline itself")
    return say("; the baseline has no result here")


def _ties(found: Recommendation, choice: Choice, chosen: Judged) -> Phrase:
    if not choice.ties:
        return ()
    tied = [choice.of(one) for one in choice.ties]
    gain = "; its gain over the baseline is not significant" if found.baseline in choice.ties else ""
    known = [(one.memory.mean, one) for one in (chosen, *tied) if one.memory is not None]
    least: Phrase = ()
    if len(known) > 1:
        mean, smallest = min(known, key=lambda pair: pair[0])
        memory = Quantity(mean, Unit.BYTES, digits=ROUGH)
        least = say("; of these ", Name(smallest.contender.name), " takes the least memory (", memory, ")")
    return say(" Tied with ", listing(names(one.contender.name for one in tied)), gain, least, ".")


def _none_meets(choice: Choice, nearest: Judged) -> Phrase:
    limits = listing(list(dict.fromkeys(one.name for one in nearest.findings)))
    by = joined([_missed(one) for one in nearest.findings if one.standing is nearest.standing], "; ")
    where = say(" The nearest is ", Name(nearest.contender.name), ": ", by, ".")
    if nearest.standing is Standing.BROKEN:
        return say(strong("No contender meets ", limits, " on ", Name(choice.workload), "."), where)
    count = len(choice.with_standing[Standing.UNSURE])
    may = f" No contender is certain to meet it; {'one' if count == 1 else count} may."
    return say(strong("Inconclusive: ", limits, " on ", Name(choice.workload), "."), may, where)


def _on_every_workload(found: Recommendation) -> Iterator[Phrase]:
    if len(found.choices) < 2:
        return
    if found.for_all:
        verb = "is" if len(found.for_all) == 1 else "are each"
        chosen = listing(names(one.name for one in found.for_all))
        yield say("One for all workloads: ", chosen, f" {verb} the choice, or tied with it, on every one.")
    elif found.exit_code == 0:
        yield say("No single contender is the choice, or tied with it, on every workload.")


def _section(found: Recommendation, choice: Choice) -> Section:
    blocks = [*bullets((*_better_but_open(choice), *_ruled_out(choice)))]
    if any(one.figure for one in choice.judged):
        labels = Labels((one.contender for one in choice.judged), MAX_NAME)
        shared = [paragraph(labels.shared)] if labels.shared else []
        return Section(say(Name(choice.workload)), (*shared, _table(found, choice, labels), *blocks), in_terminal=True)
    return Section(say(Name(choice.workload)), tuple(blocks), in_terminal=True)


def _better_but_open(choice: Choice) -> Iterator[Phrase]:
    """Ahead of the chosen one, but not known to meet the limits: worth more trials."""
    if choice.chosen is None:
        return
    places = [one.contender for one in choice.judged]
    for one in choice.judged[: places.index(choice.chosen)]:
        if one.standing is Standing.UNSURE:
            open_ones = [_missed(finding) for finding in one.findings if finding.standing is Standing.UNSURE]
            name = Name(one.contender.name)
            yield say(
                name, " may be better; whether it meets the limits is inconclusive: ", joined(open_ones, "; "), "."
            )


def _ruled_out(choice: Choice) -> Iterator[Phrase]:
    """One line per reason: several without a result may share one."""
    reasons: dict[Phrase, list[str]] = {}
    for one in choice.with_standing[Standing.BROKEN]:
        if one.figure is None:
            reason = say(f"no result ({plain(one.why_no_result, MAX_CAUSE)})")
        elif one.contender == choice.nearest:  # the verdict says why
            continue
        else:
            reason = joined([_missed(each) for each in one.findings if each.standing is Standing.BROKEN], "; ")
        reasons.setdefault(reason, []).append(one.contender.name)
    for reason, contenders in reasons.items():
        yield say("Ruled out: ", listing(names(contenders)), ": ", reason, ".")


def _missed(finding: Finding) -> Phrase:
    if finding.value is None:
        return say(f"{finding.name}: {finding.reason}")
    why = f" ({finding.reason})" if finding.reason else ""
    return say(f"{finding.name} ", _value(finding), f" against {_limit(finding.unit, finding.limit)}{why}")


def _value(finding: Finding, note: str = "") -> Quantity:
    about = f"({finding.note})" if finding.note else ""
    notes = " ".join(part for part in (about, note) if part)
    return Quantity(finding.value, finding.unit, finding.low, finding.high, note=notes)


def _cost(judged: Judged) -> Quantity:
    cost = judged.cost
    return Quantity(cost.mean, Unit.NONE, cost.low, cost.high, digits=ROUGH) if cost else Quantity(None)


def _table(found: Recommendation, choice: Choice, labels: Labels) -> Table:
    """A column per limit, then memory, where that is no limit, and cost."""
    measured = [one for one in choice.judged if one.figure is not None]
    asked = measured[0].findings
    more = [(one.name, one.unit) for one in asked]
    has_memory = all(one.name != "memory" for one in asked) and any(one.memory for one in measured)
    if has_memory:
        more.append(("Memory", Unit.BYTES))
    if found.price_per_hour is not None:
        more.append(("Cost/Mtok", Unit.NONE))
    columns = (
        words_column("Verdict"),
        words_column("Contender"),
        number_column(found.headline.label, unit_of(found.headline)),
        number_column("vs. baseline", Unit.RATIO, intervals_from=0),
        *(
            number_column(*one, shown_from=ROOM + place * ROOM_OF_A_FIGURE, intervals_from=ROOM_FOR_INTERVALS)
            for place, one in enumerate(more)
        ),
    )
    rows = []
    for one in choice.judged:
        cells: list[TableCell] = [
            say(_standing(choice, one)),
            say(Name(labels[one.contender])),
            estimated(one.figure, found.headline),
            say("baseline") if one.contender == found.baseline else times(one.ratio_to_baseline),
        ]
        cells += [_value(own, MARKS[own.standing]) for own in one.findings] or [None] * len(asked)
        if has_memory:
            cells.append(size(one.memory.mean if one.memory else None))
        if found.price_per_hour is not None:
            cells.append(_cost(one))
        rows.append(Row(tuple(cells), Mark.BEST if one.contender == choice.chosen else None))
    return Table(columns, tuple(rows))


def _standing(choice: Choice, judged: Judged) -> str:
    if judged.contender == choice.chosen:
        return "use this"
    if judged.contender in choice.ties:
        return "tied with it"
    return "no result" if judged.figure is None else VERDICTS[judged.standing]


def _what_to_know(found: Recommendation) -> tuple[Section, ...]:
    symbols = (
        "✓ the whole interval meets the limit, ✗ the whole interval is beyond it, ? inconclusive. Only ✓ counts as "
        "met, only ✗ rules out."
    )
    has_limits = any(one.findings for choice in found.choices for one in choice.judged)
    notes = [*([symbols] if has_limits else []), *found.notes]
    return (Section(say("What to know"), bullets(notes), in_terminal=True),) if notes else ()
