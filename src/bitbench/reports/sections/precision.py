"""How exact the ratios are, where their noise comes from, and what one more block would cost and bring."""

from collections.abc import Iterator
from math import exp

from bitbench.analysis.results.summary import Precision, StudySummary
from bitbench.reports.document.model import Bullets, Name, Phrase, Quantity, Section, Unit
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import plural, say
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import times
from bitbench.reports.sections.ranked import entry_of
from bitbench.util.units import show_duration


def precision_section(summary: StudySummary) -> Section | None:
    """None where no two configs met in two blocks."""
    found = summary.precision
    if found is None or summary.imported_from:
        return None
    return Section(say("How exact it is"), (Bullets((*_sentences(found), *_confirmed(summary))),))


def _sentences(found: Precision) -> list[Phrase]:
    least = "" if found.fewest_blocks in (None, found.blocks) else f"{found.fewest_blocks} to "
    said = [say(f"{least}{plural(found.blocks, 'start')} of each config beside the baseline; ratios to it are known "
                "to about ± ", _relative(found.half_width), " (median).")]  # fmt: skip
    if found.start_sd is not None and found.trial_sd is not None:
        noise = say("A config varies by ", _share(found.start_sd), " from start to start and by ")
        said.append(say(noise, _share(found.trial_sd), " from trial to trial (standard deviations)."))
    if found.probe_share is not None:
        said.append(say("The machine's own speed, read around each trial, explains ", _share(found.probe_share),
                        " of the variation within starts."))  # fmt: skip
    if found.next_block_s is not None and found.next_half_width is not None:
        cost = f"One more block would take about {show_duration(found.next_block_s)} and narrow that to about ± "
        said.append(say(cost, _relative(found.next_half_width), "."))
    return said


def _confirmed(summary: StudySummary) -> Iterator[Phrase]:
    """Beside the ratio that the choice was made by, which is the largest of several and so rather too large."""
    labels = Labels.of(summary, MAX_NAME)
    for ranking in summary.rankings:
        if (found := ranking.confirmed) is None or (entry := entry_of(ranking, found.config)) is None:
            continue
        where = say(" on ", Name(ranking.workload), ": ")
        yield say("Confirmed with fresh starts, ", Name(labels[found.config]), where, times(found.ratio),
                  " the baseline; the blocks that chose it gave ", times(entry.ratio_to_baseline), ".")  # fmt: skip


def _share(value: float) -> Quantity:
    return Quantity(value, Unit.SHARE)


def _relative(half_width: float | None) -> Quantity:
    """From the scale of logarithms."""
    return Quantity(None if half_width is None else exp(half_width) - 1, Unit.SHARE)
