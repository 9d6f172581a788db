"""The check of a published study: every figure again from its records."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.summarize import summarize
from bitbench.analysis.trial import metrics_of_trial
from bitbench.features.publish.archive import FIGURES, unpack_study
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.request_sums import RequestSums
from bitbench.records.strict_reader import parse_next_record_number
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.reports.document.model import Document, Name, Section
from bitbench.reports.document.words import bullets, paragraph, plural, say, strong
from bitbench.study.base import Json, Record
from bitbench.util.errors import ExitCode, RowsNotKeptError, StoreError
from bitbench.util.files import read_bytes
from bitbench.util.version import __version__

Figures = dict[str, Json]  # by their place, such as `points[0].metrics.ttft_s.value`
SHOWN = 10  # differences that are named
# Sums of the same doubles in another order differ by a few units in the last of 16 digits; a variance takes the
# difference of such sums.
TOLERANCE = 1e-9
LONGEST_ID = 10  # of those that bitbench gives
CANNOT_SHOW = (
    "that these requests were sent at all, or that the times in their rows are those that a clock showed",
    "that the machine, the engine's version, its arguments and kernels are the ones that are stated",
    "that memory, start times and the machine's roof are what was read there",
    "that trials which do not count were rightly set aside, and that no study was repeated until it looked better",
    "who made it, unless a signature says so",
)


class Verification(Record):
    """A file that holds what was packed; whether its figures follow from its records."""

    file: str
    study: str
    bitbench: str  # the version that published it
    trials: int
    set_aside: int  # of them: warm-ups, rejected or failed
    figures: int  # that were computed again
    different: tuple[str, ...]  # with the stated and the computed value; the first few
    different_count: int
    unchecked: tuple[str, ...]  # what could not be computed again, or is missing
    cannot_show: tuple[str, ...] = CANNOT_SHOW

    @property
    def exit_code(self) -> ExitCode:
        if self.different_count:
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if self.unchecked else ExitCode.DONE


def verify_study(file: Path) -> Verification:
    """Compute the figures of a published study again. Raises StoreError for a file that is not what was packed."""
    with TemporaryDirectory(prefix="bitbench-") as place:
        manifest = unpack_study(file, Path(place))
        records = StudyFolder.existing(Path(place)).read(str(file))
        stated = _stated_figures(Path(place) / FIGURES)
        computed = dict(_figures(json.loads(summarize(records).model_dump_json())))
        without_rows = _add_figures_of_trials(records, stated, computed)
    unchecked = [*_missing(records)]
    if without_rows:
        unchecked.append(f"the figures of {plural(without_rows, 'trial')}: it has no request rows")
    different = [
        name
        for name in stated.keys() & computed.keys()
        if not _is_equal(stated[name], computed[name])
    ]
    if manifest.bitbench == __version__:
        different += stated.keys() ^ computed.keys()
    elif unknown := stated.keys() ^ computed.keys():
        unchecked.append(
            f"{plural(len(unknown), 'figure')} that only one of the two versions of bitbench computes"
        )
    return Verification(
        file=str(file),
        study=records.study.name,
        bitbench=manifest.bitbench,
        trials=len(records.trials),
        set_aside=sum(
            trial.kind == "warmup" or trial.outcome is not Outcome.OK for trial in records.trials
        ),
        figures=sum(_is_number(value) for value in computed.values()),
        different=tuple(
            f"{name}: {_shown(stated, name)}, not {_shown(computed, name)}"
            for name in sorted(different)[:SHOWN]
        ),
        different_count=len(different),
        unchecked=tuple(unchecked),
    )


def _stated_figures(path: Path) -> Figures:
    try:
        return dict(_figures(json.loads(read_bytes(path))))
    except (ValueError, RecursionError, OSError):
        raise StoreError(f"its {FIGURES} cannot be read; ask for the file again") from None


def _figures(content: Json, place: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _figures(value, f"{place}.{name}" if place else str(name))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _figures(value, f"{place}[{number}]")
    else:
        yield place, content


def _add_figures_of_trials(of: StudyRecords, stated: Figures, computed: Figures) -> int:
    """Add what each trial states, and what its rows say. Return how many have no rows."""
    without_rows = 0
    for trial in of.trials:
        known = trial.metrics.model_dump(mode="json", exclude_none=True)
        if not known and trial.objectives is None:
            continue
        try:
            found = _figures_of_rows(of, trial)
        except RowsNotKeptError:
            without_rows += 1
            continue
        counts = {"requests": trial.requests, "failed": trial.failed_requests}
        own = dict(
            _figures(
                {"metrics": known, "objectives": _as_json(trial.objectives), **counts}, trial.id
            )
        )
        stated |= own
        computed |= {place: found.get(place) for place in own}
    return without_rows


def _figures_of_rows(of: StudyRecords, trial: TrialRecord) -> Figures:
    sums = RequestSums.of(of.requests_of(trial, None), of.study.objectives)
    judged = judge_objectives(sums) if trial.objectives is not None else None
    found = {
        "metrics": metrics_of_trial(sums, trial.energy_j).model_dump(mode="json"),
        "objectives": _as_json(judged),
        "requests": sums.requests,
        "failed": sums.failed,
    }
    return dict(_figures(found, trial.id))


def _as_json(record: Record | None) -> Json:
    return None if record is None else record.model_dump(mode="json")


def _missing(of: StudyRecords) -> Iterator[str]:
    """Numbers are given one after the other, so a missing one was taken out by somebody."""
    for noun, records in (("trial", of.trials), ("measurement of quality", of.quality)):
        if missing := _missing_numbers(record.id for record in records):
            yield f"{plural(missing, noun)}, by the numbers of the others"
    if of.instances:
        starts = {trial.instance_id for trial in of.trials} - {
            instance.id for instance in of.instances
        }
        if starts:
            yield f"{plural(len(starts), 'start')} that trials name"


def _missing_numbers(ids: Iterable[str]) -> int:
    known = [name for name in ids if len(name) <= LONGEST_ID]
    return parse_next_record_number(known) - 1 - len(known)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(stated: Json, computed: Json) -> bool:
    if _is_number(stated) and _is_number(computed):
        return math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
    return type(stated) is type(computed) and bool(stated == computed)


def _shown(figures: Figures, name: str) -> str:
    return json.dumps(figures[name])[:60] if name in figures else "nothing"


def verification_document(found: Verification) -> Document:
    said = f"{plural(found.figures, 'figure')} computed again, {found.different_count:,} differ."
    held = f"{plural(found.trials, 'trial')} ({found.set_aside:,} set aside as warm-ups, rejected or failed)"
    sections = {
        "Different": [f"{place}." for place in found.different],
        "Not checked": [f"{what}." for what in found.unchecked],
        "What a check cannot show": [f"{what}." for what in found.cannot_show],
    }
    return Document(
        say("Published study ", Name(found.study)),
        (
            paragraph(strong(_verdict(found)), f" {said}"),
            paragraph(held, "; published by bitbench ", Name(found.bitbench)),
        ),
        tuple(
            Section(say(title), bullets(sentences))
            for title, sentences in sections.items()
            if sentences
        ),
    )


def _verdict(found: Verification) -> str:
    if found.different_count:
        return "Figures do not follow from the records. Do not use them."
    if found.unchecked:
        return "No figure differs, but not all could be checked."
    return "Every figure follows from the records."
