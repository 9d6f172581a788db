"""From a study folder to an evidence card: its records without what only the machine needs to know, its figures, a
signature."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import ValidationError

from bitbench import __version__
from bitbench.analysis.absolute import mean_interval
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.roofline import phase_step_sample, roofline_points
from bitbench.analysis.study_comparison import CONFIG_FACTS, compared_kernels, compared_tool
from bitbench.analysis.summarize import summarize
from bitbench.features.cards.card import (
    LARGEST_CARD_BYTES,
    LARGEST_TEXT_BYTES,
    UNSIGNED,
    card_bytes,
    pack_card,
    sign_card,
    unpack_card,
)
from bitbench.features.cards.types import CardError, CardManifest, CardPhase, CardPoint, CardPoints, PartName
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.lock import Lock
from bitbench.records.quality import QualityRecord
from bitbench.records.roof import PointRoof
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.base import RECORDED, Json, Record
from bitbench.study.environment import venv_folder
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Point
from bitbench.study.secrets import is_secret, secret_values, without_secret_options
from bitbench.study.study import EngineSetup
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.files import SafeFolder
from bitbench.util.text import HIDDEN

AnyRecord = TypeVar("AnyRecord", bound=Record)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
# Absolute and of two parts at least, or from somebody's home: a lone `/metrics` tells nothing of a machine.
_NAME = r"/[\w.@+=~%*-]+"
_PATH = re.compile(rf"(?<![\w./~$-])(?:~[\w.-]*(?:{_NAME})+|(?:\$\w+)?(?:{_NAME}){{2,}})/?")
# What the usual hubs, clouds and servers give out, wherever it stands: in a log line, an error, an argument.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z0-9]{20,}|glpat-[\w-]{20,}|A[KS]IA[0-9A-Z]{16}"
    r"|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)|(?<=[Bb]earer )[^\s\"']+"
)
_ADDRESS = re.compile(r"(?<![\w./])(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?=:\d)")
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


def _record_without_machine(record: AnyRecord, secrets: Collection[str]) -> AnyRecord:
    """The same record: paths end in `…/` and their last part, a host that is not this machine is `…`, and none of these
    secrets is in any text."""
    content = _clean(record.model_dump(mode="json"), lambda text: _publishable_text(text, secrets))
    try:
        return type(record).model_validate(content, context=RECORDED)
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise CardError(f"without the paths of this machine names in the study would be equal: {reason}") from None


def _publishable_text(text: str, secrets: Collection[str]) -> str:
    """Nor what `without_places` takes out."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return without_places(text)


def without_places(text: str) -> str:
    """Of a text: URLs keep scheme, port and path; paths keep their last part; what looks like a token is hidden."""
    text = _ADDRESS.sub("…", _TOKEN.sub(HIDDEN, text))
    hidden: list[str] = []

    def keep(found: re.Match[str]) -> str:
        hidden.append(_without_host(found[0]))
        return f"\0{len(hidden) - 1}\0"

    def last_part(found: re.Match[str]) -> str:
        return f"…/{found[0].rstrip('/').rpartition('/')[2]}"

    shortened = _PATH.sub(last_part, _URL.sub(keep, text.replace("\0", "")))
    return re.sub("\0(\\d+)\0", lambda found: hidden[int(found[1])], shortened)


def _without_host(url: str) -> str:
    """Without user, password, query and fragment, too."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "…"
    if parts.scheme.lower() == "file":
        return f"file://…/{parts.path.rpartition('/')[2]}"
    host = parts.hostname if parts.hostname in _OWN_MACHINE else "…"
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _clean(value: Json, words: Callable[[str], str]) -> Any:
    match value:
        case str():
            return words(value)
        case dict():
            return {words(name): _field(name, inside, words) for name, inside in value.items()}
        case list() if all(isinstance(text, str) for text in value):
            return [words(text) for text in without_secret_options(value)]
        case list():
            return [_clean(item, words) for item in value]
    return value


def _field(name: str, value: Json, words: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        if is_secret(name):
            return HIDDEN
        if name.lower().endswith("url") and value and "://" not in value:  # `box.lan:8000` will do for an endpoint
            return _without_host(f"//{value}").lstrip(":/")
    return _clean(value, words)


FIGURES = ("output_throughput", "ttft_s", "tpot_s", "latency_s", "peak_bytes")


def publishable_points(of: StudyRecords, summary: StudySummary) -> CardPoints:
    primary_metric = METRICS[of.study.measure.metric].column
    figures, roofs = dict.fromkeys((primary_metric, *FIGURES)), roofline_points(of)
    return CardPoints(
        study=of.study.name,
        created_at=of.lock.created_at,
        primary_metric=primary_metric,
        host=of.lock.host,
        has_roof=of.roof is not None,
        points=tuple(
            _point(of, point.point, {name: point.metrics[name] for name in figures if name in point.metrics}, roofs)
            for point in summary.points
            if point.metrics
        ),
    )


def _point(of: StudyRecords, point: Point, figures: dict[str, Estimate], roofs: Sequence[PointRoof]) -> CardPoint:
    variant, setup = of.plan.variant(point.config.variant), of.study.engine(point.config.engine)
    workload = of.study.workload(point.workload)
    shape = {name: value for name, value in workload.model_dump(mode="json").items() if name != "name"}
    facts = {fact: read(of, point.config) for fact, read in CONFIG_FACTS.items()}
    return CardPoint(
        model=variant.model_name,
        recipe=variant.recipe,
        engine=setup.engine,
        workload=workload.name,
        shape=json.dumps(shape, sort_keys=True),
        facts={**facts, Fact.TOOL: compared_tool(of), Fact.ENVIRONMENT: _packages(of, setup)},
        kernels=compared_kernels(of, point.config),
        figures=figures,
        phases=tuple(_phases(of, point, roofs)),
    )


def _phases(of: StudyRecords, point: Point, roofs: Sequence[PointRoof]) -> list[CardPhase]:
    workload, found = of.study.workload(point.workload), []
    for roof in roofs:
        if roof.point != point:
            continue
        seconds = phase_step_sample(roof.phase, workload, of.counted(point))
        if seconds is not None:
            step = mean_interval(seconds, of.study.measure.confidence)
            found.append(CardPhase(phase=roof.phase, step=step, attainable_s=roof.attainable.seconds))
    return found


def _packages(of: StudyRecords, setup: EngineSetup) -> str | None:
    """All versions in the engine's environment, as one short hash; None where it has none or they are unknown."""
    versions = of.lock.environments.get(setup.environment(setup.engine) or "")
    if not versions:
        return None
    text = "\n".join(f"{name}=={version}" for name, version in sorted(versions.items()))
    return f"{len(versions)} packages, {sha256(text.encode()).hexdigest()[:12]}"


ENDING = ".card"
R = TypeVar("R", TrialRecord, InstanceRecord, QualityRecord)


class PublishAnswer(Record):
    """`size`: of the file, in bytes."""

    card: str
    size: int
    is_signed: bool
    manifest: CardManifest


def publish(
    folder: Path, output: Path | None = None, *, key: Path | None, unsigned: bool = False, rows: bool = True
) -> PublishAnswer:
    """Write FOLDER.card, or `output`. The same folder gives the same bytes; `key`: an SSH key that signs them."""
    if (key is None) is not unsigned:
        raise UsageError("give a key that signs the card, such as --key ~/.ssh/id_ed25519, or --unsigned")
    source = StudyFolder.existing(folder)
    path = output or Path(f"{folder.resolve().name}{ENDING}")
    manifest, head, parts = _card_content(source.read(), rows=rows)
    signature = UNSIGNED if key is None else sign_card(head, key.expanduser())
    size = len(head) + len(signature) + len(parts)
    if size > LARGEST_CARD_BYTES:
        raise CardError(f"the card would have {size / 2**20:,.0f} MiB, more than any reader takes; leave out its rows")
    files, name = SafeFolder.around(path)
    with files.replacing(name) as file:
        for content in (head, signature, parts):
            file.write(content)
    return PublishAnswer(card=str(path), size=size, is_signed=key is not None, manifest=manifest)


def _card_content(of: StudyRecords, *, rows: bool) -> tuple[CardManifest, bytes, bytes]:
    """The manifest, the lines to sign, and the parts. Figures are computed from the records as the card has them."""
    if not of.trials and not of.quality:
        raise StoreError(f"{of.name} has no trial yet; run the study first")
    secrets = sorted({*secret_values(of.lock.model_dump(mode="json"))}, key=len, reverse=True)
    parts = pack_card(
        _records_without_machine(of, secrets), rows=rows, cleaned=lambda table: _clean_rows(table, secrets)
    )
    records = unpack_card(parts, of.name)
    summary = summarize(records)
    parts |= {
        PartName.POINTS: _text(publishable_points(records, summary).model_dump_json()),
        PartName.FIGURES: _text(summary.model_dump_json()),
    }
    for part, content in parts.items():
        if part.is_packed and len(content) > LARGEST_TEXT_BYTES:
            raise CardError(f"{part.value} would have {len(content) / 2**20:,.0f} MiB, more than any reader takes")
    has_rows = bool({PartName.REQUESTS, PartName.SCORES} & parts.keys())
    manifest = CardManifest(bitbench=__version__, study=records.study.name, has_rows=has_rows, parts=())
    return card_bytes(manifest, parts)


def _records_without_machine(of: StudyRecords, secrets: Collection[str]) -> StudyRecords:
    names = _machine_names(of)
    instances = [instance.model_copy(update={"host": names.get(instance.host or "")}) for instance in of.instances]
    return replace(
        of,
        lock=_record_without_machine(_lock(of.lock, names), secrets),
        trials=[_record_without_machine(_sent_from(_caused(trial, names), names), secrets) for trial in of.trials],
        instances=[_record_without_machine(_caused(instance, names), secrets) for instance in instances],
        quality=[_record_without_machine(_caused(record, names), secrets) for record in of.quality],
        profiles=[_record_without_machine(profile, secrets) for profile in of.profiles],
    )


def _machine_names(of: StudyRecords) -> dict[str, str]:
    """What the machines of a fleet are called in a card, by their own names; `local` is this machine's."""
    senders = {node.name for trial in of.trials if trial.client is not None for node in trial.client.nodes}
    known = {*of.lock.hosts, *senders, *(instance.host for instance in of.instances if instance.host is not None)}
    own = {name for name in known if re.fullmatch(r"local(-\d+)?", name)}
    return {name: name for name in own} | {
        name: f"machine-{place:03d}" for place, name in enumerate(sorted(known - own), start=1)
    }


def _sent_from(trial: TrialRecord, names: Mapping[str, str]) -> TrialRecord:
    if trial.client is None or not trial.client.nodes:
        return trial
    nodes = tuple(node.model_copy(update={"name": names[node.name]}) for node in trial.client.nodes)
    return trial.model_copy(update={"client": trial.client.model_copy(update={"nodes": nodes})})


def _caused(record: R, names: Mapping[str, str]) -> R:
    """Its cause tells which machine was lost."""
    cause = record.cause
    for name, shown in names.items():
        cause = cause and re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", shown, cause)
    return record.model_copy(update={"cause": cause})


def _lock(lock: Lock, names: Mapping[str, str]) -> Lock:
    """Where a variant lies helps no reader; its hash says what it is."""
    variants = tuple(variant.model_copy(update={"path": None}) for variant in lock.plan.variants)
    engines = tuple(
        setup.model_copy(update={"python": _own_python(setup.environment(None) or "")}) if setup.python else setup
        for setup in lock.plan.study.engines
    )
    study = lock.plan.study.model_copy(update={"engines": engines})
    return lock.model_copy(
        update={
            "plan": lock.plan.model_copy(update={"variants": variants, "study": study}),
            "hosts": {names[name]: facts for name, facts in lock.hosts.items()},
            "environments": {_own_python(name): versions for name, versions in lock.environments.items()},
        }
    )


def _own_python(place: str) -> str:
    """Of an environment that somebody made: its name, as a path that a study may have; others are names already."""
    return f"/{venv_folder(Path(place)).name}" if Path(place).is_absolute() else place


def _clean_rows(table: pa.Table, secrets: Collection[str]) -> pa.Table:
    """What a server said of its errors may hold its paths, and whatever it was told."""
    place = table.schema.get_field_index("error")
    if place < 0 or table.column(place).null_count == table.num_rows:
        return table
    said = [None if text is None else _publishable_text(text, secrets) for text in table.column(place).to_pylist()]
    return table.set_column(place, table.schema.field(place), pa.array(said, pa.string()))


def _text(content: str) -> bytes:
    return json.dumps(json.loads(content), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
