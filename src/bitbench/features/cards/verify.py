"""Checks an evidence card: its bytes, its signature, and every figure again from its records."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.summarize import summarize
from bitbench.analysis.trial import check_trial_figures, metrics_of_trial
from bitbench.features.cards.card import Card, CardHead, card_key_fingerprint, card_signer, read_card, unpack_card
from bitbench.features.cards.publish import publishable_points
from bitbench.features.cards.types import CardError, Check, Checked, PartName, Verification
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import Outcome, TrialMetrics, TrialRecord
from bitbench.study.base import Json, Record
from bitbench.study.study_file import study_file_text
from bitbench.util.errors import RowsNotKeptError, StoreError

SHOWN = 10  # differences that are named


def _recompute_trials(of: StudyRecords) -> Checked:
    """Each trial's own figures, from its request rows."""
    compared, different, unchecked = 0, list[str](), 0
    for trial in of.trials:
        stated = _stated(trial)
        if not stated["metrics"] and stated["objectives"] is None:
            continue
        try:
            found = _of_rows(of, trial)
        except RowsNotKeptError:
            unchecked += 1
            continue
        count, differences = check_trial_figures(stated, found, trial.id)
        compared += count
        different += differences
    return Checked(
        check=Check.TRIALS,
        figures=compared,
        different=tuple(different[:SHOWN]),
        different_count=len(different),
        unchecked=unchecked,
        why_unchecked=None if unchecked == 0 else f"the card has no request rows of {unchecked:,} trials",
    )


def recompute(check: Check, stated: Json, found: Record, *, whole: bool = False) -> Checked:
    """What the card states, as it was read from JSON, against what this bitbench computes from its records.

    What an older version did not state is no difference, unless it must be the `whole`: what a reader would put in its
    place is not what the records say. What this version does not compute was not checked.
    """
    content = json.loads(found.model_dump_json())
    compared, different = check_trial_figures(stated, content, whole=whole)
    unknown = [*_unknown(stated, content)]
    return Checked(
        check=check,
        figures=compared,
        different=tuple(different[:SHOWN]),
        different_count=len(different),
        unchecked=len(unknown),
        why_unchecked=None if not unknown else f"this bitbench does not compute {', '.join(unknown[:SHOWN])}",
    )


def _stated(trial: TrialRecord) -> dict[str, Json]:
    known = {name: value for name, value in trial.metrics.model_dump(mode="json").items() if value is not None}
    objectives = None if trial.objectives is None else trial.objectives.model_dump(mode="json")
    return {"metrics": known, "objectives": objectives, "requests": trial.requests, "failed": trial.failed_requests}


def _of_rows(of: StudyRecords, trial: TrialRecord) -> dict[str, Json]:
    rows = of.requests_of(trial, None)
    sums = RequestSums.of(rows, of.study.objectives)
    metrics = metrics_of_trial(sums, trial.energy_j)
    objectives = judge_objectives(sums) if trial.objectives is not None else None
    found: dict[str, Json] = {name: getattr(metrics, name) for name in TrialMetrics.model_fields}
    return {
        "metrics": found,
        "objectives": None if objectives is None else objectives.model_dump(mode="json"),
        "requests": sums.requests,
        "failed": sums.failed,
    }


def _unknown(stated: Json, found: Json, where: str = "") -> Iterator[str]:
    """Where the card has a name that this version does not."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in stated:
            place = f"{where}.{name}" if where else str(name)
            if name not in found:
                yield place
            else:
                yield from _unknown(stated[name], found[name], place)
    elif isinstance(stated, list) and isinstance(found, list):
        for index, (inner, other) in enumerate(zip(stated, found, strict=False)):
            yield from _unknown(inner, other, f"{where}[{index}]")


REMARK = "Written by `bitbench verify --unpack` from an evidence card: it can be reported, not run."
NAMED_GAPS = 5
CANNOT_CHECK = (
    "that these requests were sent at all, or that the times in their rows are those that a clock showed",
    "that the machine, the engine's version, its arguments and kernels are the ones that are stated",
    "that memory, start times and the machine's roof are what was read there; no record in the card gives them again",
    "that no study was repeated until it looked better; a card shows one folder, not those that were thrown away",
)
UNSIGNED_SAYS = "who made it: the card is not signed, so anybody could have made or changed it"
UNKNOWN_KEY = "whose key it is: --signers FILE names the keys that you know"


def verify(path: Path, *, signers: Path | None = None, unpack_into: Path | None = None) -> Verification:
    """Raises CardError for a card whose bytes are not those that were made, or whose signature is not of them."""
    card = read_card(path)
    signed_by, known_as = _signature(card.head, path, signers)
    records = unpack_card(card.parts, str(path))
    checks = tuple(_checks(card, records))
    found = Verification(
        card=str(path),
        study=records.study.name,
        bitbench=card.head.manifest.bitbench,
        card_id=card.head.card_id,
        signed_by=signed_by,
        signer=known_as,
        host=records.lock.host,
        trials=len(records.trials),
        instances=len(records.instances),
        requests=sum(trial.requests for trial in records.trials) if PartName.REQUESTS in card.parts else None,
        checks=checks,
        gaps=tuple(_gaps(records)),
        cannot_check=(*_about_the_key(signed_by, known_as), *_left_out(records), *CANNOT_CHECK),
    )
    if unpack_into is not None and not any(check.different_count for check in checks):
        _write(records, unpack_into)
    return found


def check_signature(head: CardHead, signers: Path | None) -> str | None:
    """By a file of signers: the name of who signed. Raises CardError for a card that none of them signed."""
    if signers is None:
        return None
    if head.signature is None:
        raise CardError(f"it is not signed, and --signers asks for a key of {signers}")
    return card_signer(head.signed, head.signature, signers)


def _signature(head: CardHead, path: Path, signers: Path | None) -> tuple[str | None, str | None]:
    try:
        made_by = None if head.signature is None else card_key_fingerprint(head.signed, head.signature)
        return made_by, check_signature(head, signers)
    except CardError as error:
        raise CardError(f"{path} is refused: {error}") from None


def _checks(card: Card, records: StudyRecords) -> Iterator[Checked]:
    summary = summarize(records)
    yield _recompute_trials(records)
    stated = (
        (Check.REPORT, PartName.FIGURES, summary),
        (Check.POINTS, PartName.POINTS, publishable_points(records, summary)),
    )
    for check, part, found in stated:
        if part not in card.parts:
            raise CardError(f"{records.name} has no {part.value}; it is not a whole card")
        try:
            content = json.loads(card.parts[part])
        except (ValueError, RecursionError):
            raise CardError(f"{part.value} in {records.name} is no JSON; ask for the card again") from None
        yield recompute(check, content, found, whole=check is Check.POINTS)


def _gaps(records: StudyRecords) -> Iterator[str]:
    """Numbers are given one after the other, so a missing one was taken out by somebody."""
    for noun, ids in (
        ("trial", [trial.id for trial in records.trials]),
        ("measurement of quality", [record.id for record in records.quality]),
    ):
        if missing := _missing(ids):
            more = f" and {len(missing) - NAMED_GAPS:,} more" if len(missing) > NAMED_GAPS else ""
            yield f"{noun} number {', '.join(map(str, missing[:NAMED_GAPS]))}{more} is missing"
    known = {instance.id for instance in records.instances}
    lost = sorted({trial.instance_id for trial in records.trials if known and trial.instance_id not in known})
    if lost:
        yield f"the record of start {', '.join(lost[:NAMED_GAPS])} is missing"


def _missing(ids: Iterable[str]) -> list[int]:
    numbers = {int(name[1:]) for name in ids if name[1:].isascii() and name[1:].isdigit() and len(name) < 10}
    return sorted({*range(1, min(max(numbers, default=0), 2 * len(numbers) + 1))} - numbers)


def _about_the_key(signed_by: str | None, known_as: str | None) -> Iterator[str]:
    if signed_by is None:
        yield UNSIGNED_SAYS
    elif known_as is None:
        yield UNKNOWN_KEY


def _left_out(records: StudyRecords) -> Iterator[str]:
    """Whoever takes the slow trials for warm-ups, or for rejected ones, has figures that follow."""
    if count := sum(trial.kind == "warmup" or trial.outcome is not Outcome.OK for trial in records.trials):
        yield f"that {count:,} of {len(records.trials):,} trials were rightly left out as warm-ups, rejected or failed"


def _write(records: StudyRecords, into: Path) -> None:
    """The study folder again, with what the card has of it."""
    folder = StudyFolder(into)
    if folder.path.exists() and any(folder.path.iterdir()):
        raise StoreError(f"{into} is not empty; give a new folder with --unpack")
    with folder.writing() as writer:
        writer.restore(records)
        writer.write_study(f"# {REMARK}\n{study_file_text(records.study)}")
