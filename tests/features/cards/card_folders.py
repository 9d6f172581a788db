"""Study folders to make cards of, and cards of somebody who changes what is in them."""

import json
import shutil
import subprocess
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from bitbench.features.cards.card import UNSIGNED, card_bytes, read_card, sign_card
from bitbench.features.cards.types import CardManifest, PartName
from bitbench.records.folder import StudyFolder
from bitbench.records.roof import MachineRoof, Readings

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
Parts = dict[PartName, bytes]


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return path


def signers_of(path: Path, **keys: Path) -> Path:
    lines = [f"{name} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}\n" for name, key in keys.items()]
    path.write_text("".join(lines))
    return path


def changed_card(card: Path, into: Path, change: Callable[[Parts], None], key: Path | None = None) -> Path:
    """The card of a forger: other parts, all hashes right, and signed with a key of their own or not at all."""
    old = read_card(card)
    parts = dict(old.parts)
    change(parts)
    manifest = old.head.manifest.model_copy(update={"parts": ()})
    return write_card(into, manifest, parts, key)


def write_card(into: Path, manifest: CardManifest, parts: Parts, key: Path | None = None) -> Path:
    _, head, rest = card_bytes(manifest, parts)
    into.write_bytes(head + (UNSIGNED if key is None else sign_card(head, key)) + rest)
    return into


def edited(part: PartName, edit: Callable[[str], str]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        before = parts[part].decode()
        parts[part] = edit(before).encode()
        assert parts[part] != before.encode(), "nothing was changed"

    return change


def lying_card(into: Path, part: str, stored: bytes, whole_size: int) -> Path:
    """One part of whatever name, bytes and size, with hashes that are right."""
    described = {"name": part, "size": len(stored), "whole_size": whole_size, "sha256": sha256(stored).hexdigest()}
    manifest = {"format": 1, "bitbench": "0", "study": "x", "has_rows": True, "parts": [described]}
    line = json.dumps(manifest).encode() + b"\n"
    into.write_bytes(b"bitbench-card 1 %s\n" % sha256(line).hexdigest().encode() + line + UNSIGNED + stored)
    return into


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9)
    zeros = b"0" * 2**20
    return b"".join(packer.compress(zeros) for _ in range(size // 2**20)) + packer.flush()


def with_roof(source: Path, into: Path, *, bytes_per_s: float) -> Path:
    """A copy of a study folder on a machine whose roof was measured."""
    shutil.copytree(source, into)
    roof = MachineRoof(
        measured_at="2026-11-16T00:00:00+00:00",
        cpu_model="Intel(R) Xeon(R) Processor",
        threads=2,
        torch="2.13.0",
        read_bytes_per_s=Readings(values=(bytes_per_s,)),
        flops_per_s=Readings(values=(1e12,)),
        float32_flops_per_s=Readings(values=(5e11,)),
    )
    with StudyFolder(into).writing() as writer:
        writer.write_roof(roof)
    return into
