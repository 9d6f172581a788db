"""The check of a published study, which recomputes every number from the records."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.summarize import summarize
from bitbench.analysis.trial import compute_trial_metrics
from bitbench.features.publish.archive import FIGURES, unpack_study
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.request_sums import RequestSums
from bitbench.records.strict_reader import parse_next_record_number
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.reports.document.model import Document, Name, Section
from bitbench.reports.document.words import bullets, format_count, paragraph, say, strong
from bitbench.study.base import Json, Record
from bitbench.util.errors import ExitCode, RowsNotKeptError, StoreError
from bitbench.util.files import read_bytes
from bitbench.util.version import __version__

Figures = dict[str, Json]  # by their path, such as `points[0].metrics.ttft_s.value`
SHOWN = 10  # differences in the list
# Sums of the same doubles in another order differ by a few units in the last of 16 digits. A
# variance is the difference of such sums.
TOLERANCE = 1e-9
LONGEST_ID = 10  # characters of an id that bitbench gives
CANNOT_SHOW = (
    "that these requests were sent at all, "
    "or that the times in their rows are those that a clock showed",
    "that the machine, the engine's version, "
    "its arguments and kernels are the ones that are stated",
    "that memory, start times and the machine's roof are what was read there",
    "that trials which do not count were rightly set aside, "
    "and that no study was repeated until it looked better",
    "who made it, unless a signature says so",
)


class Verification(Record):
    """The result of the check: whether a file's numbers follow from its records."""

    file: str
    study: str
    bitbench: str  # the version that published it
    trials: int
    set_aside: int  # trials that are warm-ups, rejected or failed
    figures: int  # recomputed numbers
    different: tuple[str, ...]  # the first few, with the stated and the computed value
    different_count: int
    unchecked: tuple[str, ...]  # numbers that could not be recomputed, and missing records
    cannot_show: tuple[str, ...] = CANNOT_SHOW

    @property
    def exit_code(self) -> ExitCode:
        if self.different_count:
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if self.unchecked else ExitCode.DONE


def verify_study(file: Path) -> Verification:
    """Recompute the numbers of a published study, and return the differences. Raise StoreError for
    a file that is not what was packed."""
    with TemporaryDirectory(prefix="bitbench-") as temporary:
        folder = Path(temporary)
        manifest = unpack_study(file, folder)
        records = StudyFolder.existing(folder).read(str(file))
        stated = _read_stated_figures(folder / FIGURES)
        computed = dict(_iter_figures(json.loads(summarize(records).model_dump_json())))
        without_rows = _add_figures_of_trials(records, stated, computed)
    unchecked = list(_iter_missing_records(records))
    if without_rows:
        unchecked.append(
            f"the figures of {format_count(without_rows, 'trial')}: it has no request rows"
        )
    different: list[str] = []
    for name in stated.keys() & computed.keys():
        if not _is_equal(stated[name], computed[name]):
            different.append(name)
    one_sided = stated.keys() ^ computed.keys()
    if manifest.bitbench == __version__:
        different += one_sided
    elif one_sided:
        unchecked.append(
            f"{format_count(len(one_sided), 'figure')} "
            "that only one of the two versions of bitbench computes"
        )
    differences: list[str] = []
    for name in sorted(different)[:SHOWN]:
        differences.append(
            f"{name}: {_format_figure(stated, name)}, not {_format_figure(computed, name)}"
        )
    set_aside = [
        trial
        for trial in records.trials
        if trial.kind == "warmup" or trial.outcome is not Outcome.OK
    ]
    return Verification(
        file=str(file),
        study=records.study.name,
        bitbench=manifest.bitbench,
        trials=len(records.trials),
        set_aside=len(set_aside),
        figures=sum(_is_number(value) for value in computed.values()),
        different=tuple(differences),
        different_count=len(different),
        unchecked=tuple(unchecked),
    )


def _read_stated_figures(path: Path) -> Figures:
    try:
        return dict(_iter_figures(json.loads(read_bytes(path))))
    except (ValueError, RecursionError, OSError):
        raise StoreError(f"its {FIGURES} cannot be read; ask for the file again") from None


def _iter_figures(content: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield each value in a JSON document with its path."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _iter_figures(value, f"{path}.{name}" if path else str(name))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _iter_figures(value, f"{path}[{index}]")
    else:
        yield path, content


def _add_figures_of_trials(records: StudyRecords, stated: Figures, computed: Figures) -> int:
    """Add the stated numbers of each trial and the same computed from its rows. Return how many
    trials have no rows."""
    without_rows = 0
    for trial in records.trials:
        metrics = trial.metrics.model_dump(mode="json", exclude_none=True)
        if not metrics and trial.objectives is None:
            continue
        try:
            from_rows = _compute_figures_of_rows(records, trial)
        except RowsNotKeptError:
            without_rows += 1
            continue
        content = {
            "metrics": metrics,
            "objectives": _to_json(trial.objectives),
            "requests": trial.requests,
            "failed": trial.failed_requests,
        }
        for path, value in _iter_figures(content, trial.id):
            stated[path] = value
            computed[path] = from_rows.get(path)
    return without_rows


def _compute_figures_of_rows(records: StudyRecords, trial: TrialRecord) -> Figures:
    sums = RequestSums.of(records.requests_of(trial, None), records.study.objectives)
    objectives = judge_objectives(sums) if trial.objectives is not None else None
    content = {
        "metrics": compute_trial_metrics(sums, trial.energy_j).model_dump(mode="json"),
        "objectives": _to_json(objectives),
        "requests": sums.requests,
        "failed": sums.failed,
    }
    return dict(_iter_figures(content, trial.id))


def _to_json(record: Record | None) -> Json:
    return None if record is None else record.model_dump(mode="json")


def _iter_missing_records(records: StudyRecords) -> Iterator[str]:
    """Yield the missing records. Numbers are given one after the other, so a missing number shows
    that somebody removed a record."""
    ids = {
        "trial": [trial.id for trial in records.trials],
        "measurement of quality": [record.id for record in records.quality],
    }
    for noun, record_ids in ids.items():
        missing = _count_missing_numbers(record_ids)
        if missing:
            yield f"{format_count(missing, noun)}, by the numbers of the others"
    if records.instances:
        starts = {trial.instance_id for trial in records.trials}
        starts -= {instance.id for instance in records.instances}
        if starts:
            yield f"{format_count(len(starts), 'start')} that trials name"


def _count_missing_numbers(ids: Iterable[str]) -> int:
    valid = [name for name in ids if len(name) <= LONGEST_ID]
    return parse_next_record_number(valid) - 1 - len(valid)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(stated: Json, computed: Json) -> bool:
    if _is_number(stated) and _is_number(computed):
        return math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
    return type(stated) is type(computed) and bool(stated == computed)


def _format_figure(figures: Figures, name: str) -> str:
    return json.dumps(figures[name])[:60] if name in figures else "nothing"


def build_verification_document(verification: Verification) -> Document:
    """Return the page that answers `bitbench verify`."""
    trials = format_count(verification.trials, "trial")
    figures = format_count(verification.figures, "figure")
    sections = {
        "Different": verification.different,
        "Not checked": verification.unchecked,
        "What a check cannot show": verification.cannot_show,
    }
    parts: list[Section] = []
    for title, entries in sections.items():
        if entries:
            parts.append(Section(say(title), bullets(f"{entry}." for entry in entries)))
    return Document(
        say("Published study ", Name(verification.study)),
        (
            paragraph(
                strong(_format_verdict(verification)),
                f" {figures} computed again, {verification.different_count:,} differ.",
            ),
            paragraph(
                f"{trials} ({verification.set_aside:,} set aside as warm-ups, rejected or failed)",
                "; published by bitbench ",
                Name(verification.bitbench),
            ),
        ),
        tuple(parts),
    )


def _format_verdict(verification: Verification) -> str:
    if verification.different_count:
        return "Figures do not follow from the records. Do not use them."
    if verification.unchecked:
        return "No figure differs, but not all could be checked."
    return "Every figure follows from the records."
