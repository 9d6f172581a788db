"""A published study as a file: the cleaned folder, its metrics and the hash of each file, as
`.tar.gz`.

A published study comes from a stranger. Only plain files with the names below are written, into a
temporary folder, up to a limit. Nothing else in the archive becomes a path.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from bitbench.analysis.summarize import summarize
from bitbench.features.publish.cleaning import clean_records
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.study.base import Record
from bitbench.study.study_file import format_study
from bitbench.util.errors import StoreError
from bitbench.util.files import SafeFolder, open_to_read, read_bytes
from bitbench.util.version import __version__

ENDING = ".tar.gz"
MANIFEST = "manifest.json"
FIGURES = "figures.json"
MANIFEST_FORMAT = 1
LARGEST_BYTES = 2**30  # of all files, unpacked
LARGEST_PIECE = 2**20  # bytes that are unpacked at once
MOST_FILES = 100_000
_NAME = re.compile(
    r"(manifest|figures|lock|roof)\.json|study\.yaml|(trials|instances|quality)\.jsonl"
    r"|requests/t\d{4,9}\.parquet|quality/q\d{4,9}\.parquet|profiles/p\d{4,9}\.json",
    re.ASCII,
)
_REMARK = "# Written by `bitbench publish`: it can be reported and compared, not run.\n"


class StudyManifest(Record):
    """The list of a published study's files."""

    format: int = MANIFEST_FORMAT
    bitbench: str  # the version that published
    study: str
    files: dict[str, str]  # SHA-256 by name


class Published(Record):
    """The file that `bitbench publish` wrote."""

    file: str
    size: int  # bytes
    sha256: str
    manifest: StudyManifest


def publish_study(folder: Path, output: Path | None = None) -> Published:
    """Write FOLDER.tar.gz, or `output`. The same folder gives the same bytes."""
    records = StudyFolder.existing(folder).read()
    if not records.trials and not records.quality:
        raise StoreError(f"{folder} has no trial yet; run the study first")
    name = folder.resolve().name
    path = output or Path(f"{name}{ENDING}")
    with TemporaryDirectory(prefix="bitbench-") as temporary:
        unpacked = Path(temporary)
        manifest = _write_folder(clean_records(records), unpacked)
        top = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
        files, last = SafeFolder.around(path)
        with files.open_replacement(last) as file:
            _write_archive(unpacked, [MANIFEST, *manifest.files], top, file)
    content = read_bytes(path)
    return Published(
        file=str(path), size=len(content), sha256=sha256(content).hexdigest(), manifest=manifest
    )


def _write_folder(records: StudyRecords, into: Path) -> StudyManifest:
    """Write all files and return their manifest. The metrics are computed from the records as they
    are written. Raise StoreError if the files exceed the limits."""
    folder = StudyFolder(into)
    with folder.open_writer() as writer:
        writer.restore(records)
        writer.write_study(_REMARK + format_study(records.study))
    files = SafeFolder(into)
    files.write(FIGURES, summarize(folder.read()).model_dump_json(indent=1) + "\n")
    hashes: dict[str, str] = {}
    total_bytes = 0
    for path in sorted(into.rglob("*")):
        name = path.relative_to(into).as_posix()
        if _NAME.fullmatch(name):
            hashes[name] = sha256(read_bytes(path)).hexdigest()
            total_bytes += path.stat().st_size
    if total_bytes > LARGEST_BYTES or len(hashes) >= MOST_FILES:
        raise StoreError("its records are more than `bitbench verify` takes (1 GiB, 100,000 files)")
    manifest = StudyManifest(bitbench=__version__, study=records.study.name, files=hashes)
    files.write(MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def _write_archive(folder: Path, names: list[str], top: str, file: IO[bytes]) -> None:
    """Write the files as an archive with the top folder `top`, without times and owners."""
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in names:
            entry = tarfile.TarInfo(f"{top[:50]}/{name}")
            entry.size = (folder / name).stat().st_size
            with (folder / name).open("rb") as content:
                archive.addfile(entry, content)


class _BoundedReader(gzip.GzipFile):
    """A reader that raises StoreError beyond the size of any published study."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= LARGEST_PIECE or self.tell() > LARGEST_BYTES:
            raise StoreError("it has more than any published study")
        return super().read(size)


def unpack_study(file: Path, into: Path) -> StudyManifest:
    """Write the files of a published study into an empty folder, and return its manifest. Raise
    StoreError if a file is not what was packed."""
    hashes: dict[str, str] = {}
    try:
        with (
            open_to_read(file) as raw,
            _BoundedReader(fileobj=raw) as packed,
            tarfile.open(mode="r:", fileobj=packed) as archive,
        ):
            for entry in archive:
                name = _check_name(entry, hashes)
                hashes[name] = _write_entry(archive, entry, SafeFolder(into), name)
        manifest = StudyManifest.model_validate_json(read_bytes(into / MANIFEST))
    except (
        tarfile.TarError,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        RecursionError,
        StoreError,
    ) as error:
        cause = str(error).strip().partition("\n")[0]
        raise StoreError(
            f"{file} is not a published study, or is damaged: {cause}; ask for the file again"
        ) from None
    if manifest.format > MANIFEST_FORMAT:
        raise StoreError(
            f"{file} was published by a newer bitbench ({manifest.bitbench[:20]!r}); "
            "update bitbench"
        )
    del hashes[MANIFEST]
    if manifest.files != hashes:
        wrong = sorted(dict(manifest.files.items() ^ hashes.items()))
        raise StoreError(
            f"{file} was changed: {wrong[0][:60]!r} is not what its manifest says; "
            "ask for the file again"
        )
    return manifest


def _check_name(entry: tarfile.TarInfo, earlier_names: Collection[str]) -> str:
    """Return the entry's name without the top folder. Raise StoreError for an entry that no
    published study has."""
    name = entry.name.partition("/")[2]
    is_plain = entry.isreg() and not entry.issparse()
    if not is_plain or _NAME.fullmatch(name) is None or name in earlier_names:
        raise StoreError(f"it holds {entry.name[:60]!r}, which no published study has")
    if len(earlier_names) >= MOST_FILES or entry.offset_data + entry.size > LARGEST_BYTES:
        raise StoreError("it has more than any published study")
    return name


def _write_entry(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, into: SafeFolder, name: str
) -> str:
    """Write an entry's content to a file, and return its SHA-256."""
    content = archive.extractfile(entry)
    digest = sha256()
    assert content is not None  # a plain file
    with into.open_replacement(name) as file:
        while piece := content.read(LARGEST_PIECE):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()
