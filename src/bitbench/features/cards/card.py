"""An evidence card as a file: its parts, the records in them, its signature; read strictly, because it comes from a
stranger.

    bitbench-card 1 SHA256      of the manifest; the card's id
    {"format": 1, …}            the manifest: one line of JSON, with the hash of every part
    -----BEGIN SSH SIGNATURE-----   … of the two lines above; or the line `unsigned`
    parts, one after the other, as long as the manifest says

Every byte is covered by the manifest's hash, a part's hash or the signature, so a file in which one differs is
refused. Names of parts are a fixed list: none is ever a path, nothing is executed, and what is unpacked has a limit.

A stranger's parts are read as strictly as a folder.
"""

import base64
import io
import json
import re
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from bitbench.features.cards.types import CARD_FORMAT, CardError, CardManifest, CardPart, PartName
from bitbench.records.folder import StudyRecords
from bitbench.records.lock import LOCK_FORMAT, Lock
from bitbench.records.profile import PROFILE_FORMAT, OperatorProfile
from bitbench.records.quality import QUALITY_FORMAT, SCORE_COLUMNS, QualityRecord
from bitbench.records.roof import ROOF_FORMAT, MachineRoof
from bitbench.records.strict_reader import (
    Line,
    R,
    parse_record,
    refuse_reading_unplanned_points,
    strict_reader_schema,
)
from bitbench.records.tables import REQUEST_COLUMNS, RequestColumn
from bitbench.records.trial import RECORD_FORMAT, InstanceRecord, TrialRecord
from bitbench.study.base import Record
from bitbench.util.child_processes import NOWHERE, tool_child_variables
from bitbench.util.errors import RowsNotKeptError, StoreError, UsageError
from bitbench.util.files import SafeFolder, open_to_read

NAMESPACE = "bitbench-card"  # a signature for anything else, such as a commit, is no signature of a card
BEGIN, END = b"-----BEGIN SSH SIGNATURE-----\n", b"-----END SSH SIGNATURE-----\n"
_LINE = 70  # characters, as ssh-keygen writes them
_PATIENCE_S = 300  # to type a passphrase, or to touch a token
_CHECK_S = 30


def sign_card(message: bytes, key: Path) -> bytes:
    """`key`: a private key, or a public one whose private half is in an agent."""
    if not key.is_file():
        raise UsageError(f"there is no key {key}; `ssh-keygen -t ed25519` makes one, --unsigned does without")
    done = _keygen(["-q", "-Y", "sign", "-f", str(key.absolute()), "-n", NAMESPACE], message, _PATIENCE_S)
    if done.returncode != 0 or not (done.stdout.startswith(BEGIN) and done.stdout.endswith(END)):
        raise CardError(f"{key} did not sign ({_words(done)}); give the path of an SSH private key with --key")
    return _in_one_spelling(done.stdout)


def _in_one_spelling(armored: bytes) -> bytes:
    """The same signature in lines of one length: the same bits could be written in many ways, and a card has one.
    Raises CardError where it is no base64."""
    try:
        coded = b"".join(armored.removeprefix(BEGIN).removesuffix(END).split(b"\n"))
        coded = base64.b64encode(base64.b64decode(coded, validate=True))
    except ValueError:
        raise CardError("its signature is not readable; the card was changed or is damaged") from None
    lines = [coded[start : start + _LINE] + b"\n" for start in range(0, len(coded), _LINE)]
    return b"".join((BEGIN, *lines, END))


def card_key_fingerprint(message: bytes, signature: bytes) -> str:
    """Of the key that made this signature, such as `SHA256:k36h…`. Raises CardError where it is not of this message."""
    with tempfile.TemporaryDirectory(prefix="bitbench-") as folder:
        file = SafeFolder(Path(folder)).write("signature", signature.decode("ascii", errors="replace"))
        done = _keygen(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)], message, _CHECK_S)
    words = done.stdout.decode("utf-8", errors="replace").split()
    if done.returncode != 0 or not words or not words[-1].startswith("SHA256:"):
        raise CardError("its signature is not of this content; the card was changed after it was signed")
    return words[-1]


def card_signer(message: bytes, signature: bytes, signers: Path) -> str:
    """Who signed, by a file as `man ssh-keygen` describes it under ALLOWED SIGNERS. Raises CardError for others."""
    if not signers.is_file():
        raise UsageError(f"there is no file {signers}; each of its lines is a name and a public key")
    with tempfile.TemporaryDirectory(prefix="bitbench-") as folder:
        file = SafeFolder(Path(folder)).write("signature", signature.decode("ascii", errors="replace"))
        known = ["-f", str(signers.absolute()), "-n", NAMESPACE, "-s", str(file)]
        found = _keygen(["-Y", "find-principals", *known], message, _CHECK_S)
        name = found.stdout.decode("utf-8", errors="replace").partition("\n")[0].strip()
        if found.returncode != 0 or not name:
            raise CardError(f"no key in {signers} made its signature")
        if _keygen(["-Y", "verify", "-I", name, *known], message, _CHECK_S).returncode != 0:
            raise CardError("its signature is not of this content; the card was changed after it was signed")
    return name


def _keygen(arguments: list[str], message: bytes, patience_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=message,
            capture_output=True,
            check=False,
            timeout=patience_s,
            cwd=NOWHERE,
            env=tool_child_variables(),
        )
    except FileNotFoundError:
        raise CardError("ssh-keygen is not installed; install OpenSSH's client (8.2 or newer)") from None
    except subprocess.TimeoutExpired:
        raise CardError(f"ssh-keygen did not answer within {patience_s:.0f} s") from None


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    said = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip()
    return said.splitlines()[-1][:200] if said else f"exit code {done.returncode}"


MAGIC = b"bitbench-card"
UNSIGNED = b"unsigned\n"
LARGEST_CARD_BYTES = 2**30  # a million requests with 128 tokens each take about that
LARGEST_LINE_BYTES = 2**16
LONGEST_SIGNATURE_LINES = 200  # RSA with 16,384 bits takes 90
LARGEST_TEXT_BYTES = 64 * 2**20  # of a part, unpacked: 30,000 trials
_LEVEL = 9


@dataclass(frozen=True)
class CardHead:
    """What comes before the parts, checked. `signed`: the bytes that the signature is of."""

    manifest: CardManifest
    card_id: str
    signed: bytes
    signature: bytes | None
    size: int

    def part(self, name: PartName) -> CardPart | None:
        return next((part for part in self.manifest.parts if part.name is name), None)


@dataclass(frozen=True)
class Card:
    """A whole card, every part with the hash that its manifest states."""

    head: CardHead
    parts: Mapping[PartName, bytes] = field(repr=False)


def card_bytes(manifest: CardManifest, contents: Mapping[PartName, bytes]) -> tuple[CardManifest, bytes, bytes]:
    """The manifest with its parts, the two lines to sign, and the parts behind them."""
    held = {name: contents[name] for name in PartName if name in contents}
    stored = {name: zlib.compress(raw, _LEVEL) if name.is_packed else raw for name, raw in held.items()}
    parts = tuple(
        CardPart(name=name, size=len(raw), whole_size=len(contents[name]), sha256=sha256(raw).hexdigest())
        for name, raw in stored.items()
    )
    whole = manifest.model_copy(update={"parts": parts})
    line = json.dumps(json.loads(whole.model_dump_json()), separators=(",", ":")).encode() + b"\n"
    head = b"%s %d %s\n%s" % (MAGIC, CARD_FORMAT, sha256(line).hexdigest().encode(), line)
    return whole, head, b"".join(stored.values())


def read_card(path: Path) -> Card:
    """Raises CardError where a byte is not what the manifest says."""
    with _opened(path) as file:
        head = _head(file, path)
        parts = {part.name: _part(file, part, path) for part in head.manifest.parts}
        if file.read(1):
            raise CardError(f"{path} has bytes behind its last part; it was changed after it was made")
    return Card(head, parts)


def read_card_points(path: Path) -> tuple[CardHead, bytes]:
    """The head and the points alone, for a query over many cards."""
    with _opened(path) as file:
        head = _head(file, path)
        if not head.manifest.parts or head.manifest.parts[0].name is not PartName.POINTS:
            raise CardError(f"{path} does not begin with {PartName.POINTS.value}; it is not a card of bitbench")
        return head, _part(file, head.manifest.parts[0], path)


def _opened(path: Path) -> IO[bytes]:
    try:
        return open_to_read(path)
    except StoreError as error:
        raise CardError(str(error)) from None
    except OSError as error:
        raise CardError(f"{path} cannot be read ({error.strerror}); `bitbench publish FOLDER` makes a card") from None


def _head(file: IO[bytes], path: Path) -> CardHead:
    size = file.seek(0, 2)
    file.seek(0)
    if size > LARGEST_CARD_BYTES:
        raise CardError(f"{path} is larger than {LARGEST_CARD_BYTES // 2**20:,} MiB, the most that a card may have")
    first, line = file.readline(LARGEST_LINE_BYTES), file.readline(LARGEST_LINE_BYTES)
    words = first.split(b" ")
    if len(words) != 3 or words[0] != MAGIC or not words[1].isdigit() or not first.endswith(b"\n"):
        raise CardError(f"{path} is not an evidence card; `bitbench publish FOLDER` makes one")
    if words[1] != b"%d" % CARD_FORMAT:
        raise CardError(f"{path} has card format {words[1].decode()[:9]}, this bitbench knows {CARD_FORMAT}; update it")
    card_id = sha256(line).hexdigest()
    if words[2] != card_id.encode() + b"\n":
        raise CardError(f"the manifest of {path} is not the one that was made; the card was changed or is damaged")
    manifest = _manifest(line, path)
    signature = _signature(file, path)
    if file.tell() + sum(part.size for part in manifest.parts) != size:
        raise CardError(f"{path} is not as long as its manifest says; it is damaged, or not complete")
    return CardHead(manifest, card_id, first + line, signature, size)


def _manifest(line: bytes, path: Path) -> CardManifest:
    try:
        manifest = parse_record(line, CardManifest, CARD_FORMAT, f"the manifest of {path}", "ask for the card again")
    except (StoreError, ValidationError) as error:
        raise CardError(str(error)) from None
    order = [list(PartName).index(part.name) for part in manifest.parts]
    if order != sorted(set(order)):
        raise CardError(f"the manifest of {path} names a part twice, or in another order; ask for the card again")
    for part in manifest.parts:
        if part.name.is_packed and part.whole_size > LARGEST_TEXT_BYTES:
            raise CardError(
                f"{part.name.value} of {path} is larger than {LARGEST_TEXT_BYTES // 2**20} MiB unpacked, the limit"
            )
    return manifest


def _signature(file: IO[bytes], path: Path) -> bytes | None:
    lines = [file.readline(LARGEST_LINE_BYTES)]
    if lines[0] == UNSIGNED:
        return None
    while lines[0] == BEGIN and lines[-1] != END and len(lines) < LONGEST_SIGNATURE_LINES:
        lines.append(file.readline(LARGEST_LINE_BYTES))
    if lines[-1] != END or _in_one_spelling(found := b"".join(lines)) != found:
        raise CardError(f"{path} has neither a signature nor the word that it has none; it was changed or is damaged")
    return found


def _part(file: IO[bytes], part: CardPart, path: Path) -> bytes:
    raw = file.read(part.size)
    if sha256(raw).hexdigest() != part.sha256:
        raise CardError(f"{part.name.value} in {path} is not what its manifest says; it was changed or is damaged")
    content = _unpacked(raw, part) if part.name.is_packed else raw
    if content is None or len(content) != part.whole_size:
        raise CardError(f"{part.name.value} in {path} cannot be unpacked; the card was not made by bitbench")
    return content


def _unpacked(raw: bytes, part: CardPart) -> bytes | None:
    """None where it is not exactly one stream of the size that was stated; no more than that is ever unpacked."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(raw, part.whole_size + 1)
    except zlib.error:
        return None
    return content if stream.eof and not stream.unused_data else None


OWNER = "record"  # the column that says of which trial, or measurement, a row is
GROUP_ROWS = 20_000  # of trials that share a row group: a card of many small ones stays small, and is read in pieces
MOST_ROWS = 20_000_000
MOST_GROUP_VALUES = 100_000_000  # in all columns of a row group, single token times included
LARGEST_GROUP_BYTES = 2**30
_ID = re.compile(r"[tqp]\d{4,9}", re.ASCII)  # as the writer of a folder gives them
_ASK_AGAIN = "ask for the card again"


def pack_card(of: StudyRecords, *, rows: bool, cleaned: Callable[[pa.Table], pa.Table]) -> dict[PartName, bytes]:
    """Every part that comes from records. `cleaned` is asked for the rows of each record before they are written."""
    parts = {PartName.LOCK: _document(of.lock)}
    if of.roof is not None:
        parts[PartName.ROOF] = _document(of.roof)
    lines = (
        (PartName.INSTANCES, of.instances),
        (PartName.TRIALS, of.trials),
        (PartName.QUALITY, of.quality),
        (PartName.PROFILES, of.profiles),
    )
    parts |= {name: b"".join(map(_document, records)) for name, records in lines if records}
    if rows:
        requests = _rows(_kept(of.trials, lambda trial: cleaned(of.requests_of(trial, None))), REQUEST_COLUMNS)
        scores = _rows(_kept([record for record in of.quality if record.scores_file], of.scores_of), SCORE_COLUMNS)
        found = {PartName.REQUESTS: requests, PartName.SCORES: scores}
        parts |= {name: content for name, content in found.items() if content is not None}
    return parts


def unpack_card(parts: Mapping[PartName, bytes], name: str) -> StudyRecords:
    """Raises StoreError with the part and line where something is damaged; `name`: of the card, for messages."""
    if PartName.LOCK not in parts:
        raise CardError(f"{name} has no {PartName.LOCK.value}; {_ASK_AGAIN}")
    lock = _one(parts, PartName.LOCK, Lock, LOCK_FORMAT, name)
    trials = _lines(parts, PartName.TRIALS, TrialRecord, RECORD_FORMAT, name)
    refuse_reading_unplanned_points(lock.plan, trials, Path(name))
    instances = _lines(parts, PartName.INSTANCES, InstanceRecord, RECORD_FORMAT, name)
    quality = _lines(parts, PartName.QUALITY, QualityRecord, QUALITY_FORMAT, name)
    profiles = _lines(parts, PartName.PROFILES, OperatorProfile, PROFILE_FORMAT, name)
    _refuse_foreign_names((*trials, *quality, *profiles), name)
    requests = RowsPart(parts.get(PartName.REQUESTS), REQUEST_COLUMNS, f"{PartName.REQUESTS.value} in {name}")
    scores = RowsPart(parts.get(PartName.SCORES), SCORE_COLUMNS, f"{PartName.SCORES.value} in {name}")
    return StudyRecords(
        name=name,
        lock=lock,
        trials=trials,
        instances=instances,
        quality=quality,
        profiles=profiles,
        roof=_one(parts, PartName.ROOF, MachineRoof, ROOF_FORMAT, name) if PartName.ROOF in parts else None,
        requests_of=requests.of,
        scores_of=scores.of,
    )


def _refuse_foreign_names(records: Sequence[TrialRecord | QualityRecord | OperatorProfile], name: str) -> None:
    """An id becomes a file's name where the card is unpacked, and a record names its own rows."""
    for record in records:
        own = record.id
        if not _ID.fullmatch(own):
            raise CardError(f"a record in {name} has the id {own[:40]!r}, which bitbench does not give; {_ASK_AGAIN}")
        rows = getattr(record, "requests_file", None), getattr(record, "scores_file", None)
        if any(file not in (None, f"requests/{own}.parquet", f"quality/{own}.parquet") for file in rows):
            raise CardError(f"record {own} in {name} names rows of another record; {_ASK_AGAIN}")


class RowsPart:
    """Rows of many records in one Parquet file, read a row group at a time."""

    def __init__(self, content: bytes | None, columns: Sequence[RequestColumn], where: str) -> None:
        self._columns, self._where = columns, where
        self._places: dict[str, tuple[int, int, int]] = {}  # row group, first row in it, rows
        if content is None:
            return
        try:
            names = set(pq.ParquetFile(io.BytesIO(content)).schema_arrow.names)
            texts = {OWNER, *(column.name for column in columns if column.arrow_type == "string")}
            self._file = pq.ParquetFile(io.BytesIO(content), read_dictionary=sorted(texts & names))
            self._check_size()
            self._find_owners()
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise self._damaged(error) from error
        self._group = lru_cache(maxsize=1)(self._read_group)

    def of(self, record: TrialRecord | QualityRecord, columns: Sequence[str] | None = None) -> pa.Table:
        if record.id not in self._places:
            raise RowsNotKeptError(f"the rows of {record.id} are not in {self._where}")
        group, start, rows = self._places[record.id]
        found = self._group(group).slice(start, rows)
        return found if columns is None else found.select([name for name in columns if name in found.column_names])

    def _check_size(self) -> None:
        """Before anything is unpacked: a few bytes can stand for billions of rows."""
        for number in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(number)
            if group.num_rows > MOST_GROUP_VALUES or group.total_byte_size > LARGEST_GROUP_BYTES:
                raise ValueError(f"a row group has more than {MOST_GROUP_VALUES:,} values")
        if self._file.metadata.num_rows > MOST_ROWS:
            raise ValueError(f"it has more than {MOST_ROWS:,} rows")

    def _find_owners(self) -> None:
        for group in range(self._file.metadata.num_row_groups):
            owners = _with_bounded_texts(self._file.read_row_group(group, columns=[OWNER])).column(OWNER).to_pylist()
            start = 0
            for place in range(1, len(owners) + 1):
                if place < len(owners) and owners[place] == owners[start]:
                    continue
                if type(owners[start]) is not str or owners[start] in self._places:
                    raise ValueError(f"rows of {owners[start]} lie in several places")
                self._places[owners[start]] = (group, start, place - start)
                start = place

    def _read_group(self, group: int) -> pa.Table:
        try:
            table = _with_bounded_texts(self._file.read_row_group(group)).drop_columns([OWNER])
            expected = {field.name: field for field in strict_reader_schema(self._columns)}
            return table.cast(pa.schema([expected[field.name] for field in table.schema]))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CardError:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        return CardError(f"{self._where} cannot be read: {cause[:200]}; {_ASK_AGAIN}")


def _with_bounded_texts(table: pa.Table) -> pa.Table:
    """The same; raises ValueError where texts that are repeated, which takes no room in a file, would fill memory."""
    for column in table.columns:
        for part in column.chunks if pa.types.is_dictionary(column.type) else ():
            lengths = pc.take(pc.cast(pc.binary_length(part.dictionary), pa.int64()), part.indices)
            if (pc.sum(lengths).as_py() or 0) > LARGEST_GROUP_BYTES:
                raise ValueError(f"the texts of a row group have more than {LARGEST_GROUP_BYTES:,} bytes")
    return table


def _kept(records: Sequence[Line], rows_of: Callable[[Line], pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of those records that have some."""
    for record in records:
        with suppress(RowsNotKeptError):
            yield record.id, rows_of(record)


def _rows(of: Iterable[tuple[str, pa.Table]], columns: Sequence[RequestColumn]) -> bytes | None:
    """None where there is no row; a record without any has none to be recomputed from."""
    schema = strict_reader_schema(columns)
    schema = schema.insert(0, pa.field(OWNER, pa.string()))
    out = io.BytesIO()
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:

        def flush() -> None:
            if waiting:
                whole = pa.concat_tables(waiting)
                writer.write_table(whole, row_group_size=max(1, whole.num_rows))
                waiting.clear()

        for record_id, table in of:
            waiting.append(_owned(table, record_id, schema))
            if sum(table.num_rows for table in waiting) >= GROUP_ROWS:
                flush()
        flush()
    return out.getvalue() if pq.ParquetFile(io.BytesIO(out.getvalue())).metadata.num_rows else None


def _owned(table: pa.Table, record_id: str, schema: pa.Schema) -> pa.Table:
    owners = pa.array([record_id] * table.num_rows, pa.string())
    return table.append_column(OWNER, owners).select(schema.names).cast(schema)


def _document(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _one(parts: Mapping[PartName, bytes], part: PartName, kind: type[R], newest: int, name: str) -> R:
    return parse_record(parts[part], kind, newest, f"{part.value} in {name}", _ASK_AGAIN)


def _lines(parts: Mapping[PartName, bytes], part: PartName, kind: type[Line], newest: int, name: str) -> list[Line]:
    numbered = enumerate(parts.get(part, b"").splitlines(keepends=True), start=1)
    return [parse_record(raw, kind, newest, f"{part.value}:{at} in {name}", _ASK_AGAIN) for at, raw in numbered]
