"""From a study folder to an evidence card: its records without the machine's own paths, its figures, a signature."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from bitbench import __version__
from bitbench.analysis.summarize import summarize
from bitbench.features.cards.anonymous import without_machine, without_secrets
from bitbench.features.cards.file import LARGEST_CARD_BYTES, LARGEST_TEXT_BYTES, UNSIGNED, card_bytes
from bitbench.features.cards.points import card_points
from bitbench.features.cards.records import pack, unpack
from bitbench.features.cards.signature import sign
from bitbench.features.cards.types import CardError, CardManifest, PartName
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import Lock
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.secrets import secret_values
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.safe_files import SafeFolder

ENDING = ".card"
R = TypeVar("R", TrialRecord, InstanceRecord)


@dataclass(frozen=True)
class Published:
    path: Path
    size: int
    is_signed: bool
    manifest: CardManifest


def publish(
    folder: Path, output: Path | None = None, *, key: Path | None, unsigned: bool = False, rows: bool = True
) -> Published:
    """Write FOLDER.card, or `output`. The same folder gives the same bytes; `key`: an SSH key that signs them."""
    if (key is None) is not unsigned:
        raise UsageError("give a key that signs the card, such as --key ~/.ssh/id_ed25519, or --unsigned")
    source = StudyFolder.existing(folder)
    path = output or Path(f"{folder.resolve().name}{ENDING}")
    manifest, head, parts = card_content(source.read(), rows=rows)
    signature = UNSIGNED if key is None else sign(head, key.expanduser())
    size = len(head) + len(signature) + len(parts)
    if size > LARGEST_CARD_BYTES:
        raise CardError(f"the card would have {size / 2**20:,.0f} MiB, more than any reader takes; leave out its rows")
    files, name = SafeFolder.around(path)
    with files.replacing(name) as file:
        for content in (head, signature, parts):
            file.write(content)
    return Published(path, size, key is not None, manifest)


def card_content(of: StudyRecords, *, rows: bool) -> tuple[CardManifest, bytes, bytes]:
    """The manifest, the lines to sign, and the parts. Figures are computed from the records as the card has them."""
    if not of.trials and not of.quality:
        raise StoreError(f"{of.name} has no trial yet; run the study first")
    secrets = sorted({*secret_values(of.lock.model_dump(mode="json"))}, key=len, reverse=True)
    parts = pack(_without_machine(of, secrets), rows=rows, cleaned=lambda table: _clean_rows(table, secrets))
    records = unpack(parts, of.name)
    summary = summarize(records)
    parts |= {
        PartName.POINTS: _text(card_points(records, summary).model_dump_json()),
        PartName.FIGURES: _text(summary.model_dump_json()),
    }
    for part, content in parts.items():
        if part.is_packed and len(content) > LARGEST_TEXT_BYTES:
            raise CardError(f"{part.value} would have {len(content) / 2**20:,.0f} MiB, more than any reader takes")
    has_rows = bool({PartName.REQUESTS, PartName.SCORES} & parts.keys())
    manifest = CardManifest(bitbench=__version__, study=records.study.name, has_rows=has_rows, parts=())
    return card_bytes(manifest, parts)


def _without_machine(of: StudyRecords, secrets: Collection[str]) -> StudyRecords:
    names = _machine_names(of)
    instances = [instance.model_copy(update={"host": names.get(instance.host or "")}) for instance in of.instances]
    return replace(
        of,
        lock=without_machine(_lock(of.lock, names), secrets),
        trials=[without_machine(_caused(trial, names), secrets) for trial in of.trials],
        instances=[without_machine(_caused(instance, names), secrets) for instance in instances],
        quality=[without_machine(record, secrets) for record in of.quality],
        profiles=[without_machine(profile, secrets) for profile in of.profiles],
    )


def _machine_names(of: StudyRecords) -> dict[str, str]:
    """What the machines of a fleet are called in a card, by their own names; `local` is this machine's."""
    known = {*of.lock.hosts, *(instance.host for instance in of.instances if instance.host is not None)}
    own = {name for name in known if re.fullmatch(r"local(-\d+)?", name)}
    return {name: name for name in own} | {
        name: f"machine-{place:03d}" for place, name in enumerate(sorted(known - own), start=1)
    }


def _caused(record: R, names: Mapping[str, str]) -> R:
    """Its cause tells which machine was lost."""
    cause = record.cause
    for name, shown in names.items():
        cause = cause and re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", shown, cause)
    return record.model_copy(update={"cause": cause})


def _lock(lock: Lock, names: Mapping[str, str]) -> Lock:
    """Where a variant lies helps no reader; its hash says what it is."""
    variants = tuple(variant.model_copy(update={"path": None}) for variant in lock.plan.variants)
    hosts = {names[name]: facts for name, facts in lock.hosts.items()}
    return lock.model_copy(update={"plan": lock.plan.model_copy(update={"variants": variants}), "hosts": hosts})


def _clean_rows(table: pa.Table, secrets: Collection[str]) -> pa.Table:
    """What a server said of its errors may hold its paths, and whatever it was told."""
    place = table.schema.get_field_index("error")
    if place < 0 or table.column(place).null_count == table.num_rows:
        return table
    said = [None if text is None else without_secrets(text, secrets) for text in table.column(place).to_pylist()]
    return table.set_column(place, table.schema.field(place), pa.array(said, pa.string()))


def _text(content: str) -> bytes:
    return json.dumps(json.loads(content), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
