"""The text that is scored: what a user names, or text that every Python has. Needs no hub."""

import ast
import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.util.errors import StudyFileError
from bitbench.util.text_file import UnreadableFileError, read_text_file
from bitbench.util.units import show_bytes

# Calibrated recipes look at Python's language reference (`quantize.calibration`), so that is left out here: a format
# must not be scored on the text that it was fitted to. Modules that every build of Python has as source.
PROSE_MODULES = (
    "_pydecimal", "argparse", "ast", "asyncio/base_events", "asyncio/streams", "cmd", "codecs", "configparser", "copy",
    "csv", "datetime", "difflib", "doctest", "email/header", "email/message", "email/policy", "fractions", "ftplib",
    "getopt", "gettext", "hmac", "http/client", "http/cookiejar", "http/server", "imaplib", "inspect", "ipaddress",
    "locale", "logging/__init__", "logging/config", "mailbox", "mimetypes", "nntplib", "optparse", "os", "pathlib",
    "pdb", "pickletools", "platform", "profile", "pstats", "random", "reprlib", "sched", "shelve", "shutil", "smtplib",
    "socketserver", "ssl", "statistics", "subprocess", "tempfile", "threading", "timeit", "trace", "turtle", "typing",
    "unittest/case", "unittest/mock", "urllib/request", "urllib/robotparser", "uuid", "weakref", "zipapp",
)  # fmt: skip
CODE_MODULES = (
    "_collections_abc", "_strptime", "base64", "bdb", "bisect", "calendar", "code", "colorsys", "compileall",
    "contextlib", "copyreg", "dataclasses", "dis", "enum", "filecmp", "fnmatch", "functools", "glob", "graphlib",
    "gzip", "heapq", "html/parser", "json/decoder", "json/encoder", "linecache", "lzma", "netrc", "ntpath",
    "numbers", "operator", "plistlib", "posixpath", "pprint", "queue", "quopri", "selectors", "shlex", "string",
    "tabnanny", "textwrap", "tokenize", "traceback", "types", "urllib/parse", "warnings", "wave", "zipimport",
)  # fmt: skip
LARGEST_FILE_BYTES = 256 * 2**20  # 32 windows of 256 tokens are 40 kB; a larger corpus was named by mistake
SHORTEST_PROSE = 240  # characters: shorter documentation strings are signatures in words


@dataclass(frozen=True)
class Corpus:
    """Texts by where they are from; windows are taken from each part alike."""

    description: str
    parts: tuple[str, ...]

    @property
    def text_hash(self) -> str:
        return hashlib.sha256("\0".join(self.parts).encode()).hexdigest()


def read_corpus(files: Sequence[str], folder: Path) -> Corpus:
    """The files that a study names, relative to its folder, or the default."""
    if not files:
        return _default()
    parts = [_text_of(folder / name, name, index) for index, name in enumerate(files)]
    shown = [f"{name} ({show_bytes(len(part.encode()))})" for name, part in zip(files, parts, strict=True)]
    return Corpus(", ".join(shown), tuple(parts))


def _default() -> Corpus:
    prose = "\n\n".join(text for tree in map(ast.parse, _sources(PROSE_MODULES)) for text in _prose_in(tree))
    code = "\n\n".join(_sources(CODE_MODULES))
    sizes = [show_bytes(len(part.encode())) for part in (prose, code)]
    description = (
        f"Python {platform.python_version()} (PSF license): documentation strings ({sizes[0]} of English) and source "
        f"files ({sizes[1]} of code) of its standard library"
    )
    return Corpus(description, (prose, code))


def _sources(modules: Sequence[str]) -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in modules:
        path = library / f"{module}.py"
        if path.exists():  # some have left later versions of Python
            yield path.read_text(encoding="utf-8")


def _prose_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if len(text) >= SHORTEST_PROSE:
                yield text


def _text_of(path: Path, name: str, index: int) -> str:
    where = ("quality", "corpus", index)
    try:
        text = read_text_file(path, largest_bytes=LARGEST_FILE_BYTES)
    except UnreadableFileError as error:
        raise StudyFileError(f"the corpus {name} cannot be read: {error}", where) from error
    if path.suffix == ".jsonl":
        lines = enumerate(text.splitlines(), start=1)
        text = "\n\n".join(_line(line, f"the corpus {name}, line {number}", where) for number, line in lines if line)
    if not text.strip():
        raise StudyFileError(f"the corpus {name} is empty; name a file with a few pages of text", where)
    return text


def _line(line: str, place: str, where: tuple[int | str, ...]) -> str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StudyFileError(f"{place}: not JSON ({error})", where) from error
    if not (isinstance(content, dict) and isinstance(content.get("text"), str)):
        raise StudyFileError(f'{place}: each line must be {{"text": …}}', where)
    return str(content["text"])
