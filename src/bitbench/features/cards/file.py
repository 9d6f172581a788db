"""An evidence card as a file: read strictly, because it comes from a stranger.

    bitbench-card 1 SHA256      of the manifest; the card's id
    {"format": 1, …}            the manifest: one line of JSON, with the hash of every part
    -----BEGIN SSH SIGNATURE-----   … of the two lines above; or the line `unsigned`
    parts, one after the other, as long as the manifest says

Every byte is covered by the manifest's hash, a part's hash or the signature, so a file in which one differs is
refused. Names of parts are a fixed list: none is ever a path, nothing is executed, and what is unpacked has a limit.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from bitbench.features.cards.signature import BEGIN, END, in_one_spelling
from bitbench.features.cards.types import CARD_FORMAT, CardError, CardManifest, CardPart, PartName
from bitbench.records.strict_reader import parse
from bitbench.util.errors import StoreError
from bitbench.util.safe_files import open_to_read

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
    stored = {name: _packed(name, contents[name]) for name in PartName if name in contents}
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


def read_first_part(path: Path) -> tuple[CardHead, bytes]:
    """The head and the points alone, for a query over many cards."""
    with _opened(path) as file:
        head = _head(file, path)
        if not head.manifest.parts or head.manifest.parts[0].name is not PartName.POINTS:
            raise CardError(f"{path} does not begin with {PartName.POINTS.value}; it is not a card of bitbench")
        return head, _part(file, head.manifest.parts[0], path)


def _opened(path: Path) -> IO[bytes]:
    try:
        file = open_to_read(path)
    except StoreError as error:
        raise CardError(str(error)) from None
    except OSError as error:
        raise CardError(f"{path} cannot be read ({error.strerror}); `bitbench publish FOLDER` makes a card") from None
    return file


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
        manifest = parse(line, CardManifest, CARD_FORMAT, f"the manifest of {path}", "ask for the card again")
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
    if lines[-1] != END or in_one_spelling(found := b"".join(lines)) != found:
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


def _packed(name: PartName, content: bytes) -> bytes:
    return zlib.compress(content, _LEVEL) if name.is_packed else content


def _unpacked(raw: bytes, part: CardPart) -> bytes | None:
    """None where it is not exactly one stream of the size that was stated; no more than that is ever unpacked."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(raw, part.whole_size + 1)
    except zlib.error:
        return None
    return content if stream.eof and not stream.unused_data else None
