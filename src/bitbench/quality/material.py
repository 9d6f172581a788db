"""The requests of quality measurements: the corpus, checked, hashed and cut into token windows
that are the same for all variants, and the fixed questions.
"""

import ast
import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import BaseModel

from bitbench.quality.conversations import ScriptedConversation, conversations
from bitbench.quality.needles import iter_needle_questions, make_needles
from bitbench.quality.tasks import list_task_files
from bitbench.records.quality import CorpusFacts, Prompt, QualityMaterial, Script, TurnPrompt
from bitbench.study.base import Json
from bitbench.study.quality import (
    CONVERSATION_TOKENS,
    PROMPT_TOKENS,
    Quality,
    is_study_task_file,
)
from bitbench.util.errors import QualityError, StudyFileError
from bitbench.util.files import UnreadableFileError, read_text_file
from bitbench.util.isolated.job_process import WorkerFailed, get_last_event, run_short_job
from bitbench.util.units import show_bytes

# Modules that every build of Python has as source. Python's language reference is left out, because
# calibrated recipes use it (`quantize.calibration`), and a format must not be scored on the text
# that it was fitted to.
PROSE_MODULES = (
    "_pydecimal", "argparse", "ast", "asyncio/base_events", "asyncio/streams", "cmd", "codecs",
    "configparser", "copy", "csv", "datetime", "difflib", "doctest", "email/header",
    "email/message", "email/policy", "fractions", "ftplib", "getopt", "gettext", "hmac",
    "http/client", "http/cookiejar", "http/server", "imaplib", "inspect", "ipaddress", "locale",
    "logging/__init__", "logging/config", "mailbox", "mimetypes", "nntplib", "optparse", "os",
    "pathlib", "pdb", "pickletools", "platform", "profile", "pstats", "random", "reprlib", "sched",
    "shelve", "shutil", "smtplib", "socketserver", "ssl", "statistics", "subprocess", "tempfile",
    "threading", "timeit", "trace", "turtle", "typing", "unittest/case", "unittest/mock",
    "urllib/request", "urllib/robotparser", "uuid", "weakref", "zipapp",
)  # fmt: skip
CODE_MODULES = (
    "_collections_abc", "_strptime", "base64", "bdb", "bisect", "calendar", "code", "colorsys",
    "compileall", "contextlib", "copyreg", "dataclasses", "dis", "enum", "filecmp", "fnmatch",
    "functools", "glob", "graphlib", "gzip", "heapq", "html/parser", "json/decoder", "json/encoder",
    "linecache", "lzma", "netrc", "ntpath", "numbers", "operator", "plistlib", "posixpath",
    "pprint", "queue", "quopri", "selectors", "shlex", "string", "tabnanny", "textwrap", "tokenize",
    "traceback", "types", "urllib/parse", "warnings", "wave", "zipimport",
)  # fmt: skip
# 32 windows of 256 tokens are 40 kB, so a larger corpus was named by mistake.
LARGEST_FILE_BYTES = 256 * 2**20
SHORTEST_PROSE = 240  # characters, because shorter docstrings only repeat signatures


@dataclass(frozen=True)
class Corpus:
    """Texts with their source. Each part gives the same share of windows."""

    description: str
    parts: tuple[str, ...]

    @property
    def text_hash(self) -> str:
        return hashlib.sha256("\0".join(self.parts).encode()).hexdigest()


def read_corpus(files: Sequence[str], folder: Path) -> Corpus:
    """Read the files of a study, relative to its folder, or the default corpus."""
    if not files:
        return _make_default_corpus()
    parts = []
    descriptions = []
    for index, name in enumerate(files):
        text = _read_text(folder / name, name, index)
        parts.append(text)
        descriptions.append(f"{name} ({show_bytes(len(text.encode()))})")
    return Corpus(", ".join(descriptions), tuple(parts))


def _make_default_corpus() -> Corpus:
    docstrings: list[str] = []
    for source in _iter_sources(PROSE_MODULES):
        docstrings += _iter_prose(ast.parse(source))
    prose = "\n\n".join(docstrings)
    code = "\n\n".join(_iter_sources(CODE_MODULES))
    prose_size = show_bytes(len(prose.encode()))
    code_size = show_bytes(len(code.encode()))
    description = (
        f"Python {platform.python_version()} (PSF license): documentation strings ({prose_size} of "
        f"English) and source files ({code_size} of code) of its standard library"
    )
    return Corpus(description, (prose, code))


def _iter_sources(modules: Sequence[str]) -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in modules:
        path = library / f"{module}.py"
        if path.exists():  # later versions of Python lack some
            yield path.read_text(encoding="utf-8")


def _iter_prose(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if len(text) >= SHORTEST_PROSE:
                yield text


def _read_text(path: Path, name: str, index: int) -> str:
    where = ("quality", "corpus", index)
    try:
        text = read_text_file(path, largest_bytes=LARGEST_FILE_BYTES)
    except UnreadableFileError as error:
        raise StudyFileError(f"the corpus {name} cannot be read: {error}", where) from error
    if path.suffix == ".jsonl":
        texts = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                texts.append(_parse_line(line, f"the corpus {name}, line {number}", where))
        text = "\n\n".join(texts)
    if not text.strip():
        raise StudyFileError(
            f"the corpus {name} is empty; name a file with a few pages of text", where
        )
    return text


def _parse_line(line: str, source: str, where: tuple[int | str, ...]) -> str:
    """Return the text of a JSON line. Raise StudyFileError if it has none."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StudyFileError(f"{source}: not JSON ({error})", where) from error
    if not (isinstance(content, dict) and isinstance(content.get("text"), str)):
        raise StudyFileError(f'{source}: each line must be {{"text": …}}', where)
    return str(content["text"])


QUESTIONS = (  # short questions, each for another skill
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to ten.",
    "What is 17 plus 25?",
    "Translate to French: Good morning, my friend.",
    "Write a Python function that returns the larger of two numbers.",
    "Name three fruits that are red.",
    "Explain in two sentences why the sky is blue.",
    "Complete the saying: An apple a day keeps",
    "Give the opposite of each word: hot, tall, early.",
    'Write a JSON object with the keys "name" and "age" for a person called Ada who is 36.',
    "Summarize in one sentence: The train was late because a tree had fallen onto the track "
    "during the storm.",
)


def check_quality_files(quality: Quality, folder: Path) -> None:
    """Raise StudyFileError for the first file that cannot be used, with the field that names it."""
    if quality.corpus:
        read_corpus(quality.corpus, folder)
    for index, task in enumerate(quality.tasks):
        name = task if isinstance(task, str) else task.name
        if is_study_task_file(name) and not (folder / name).is_file():
            location = ("quality", "tasks", index)
            raise StudyFileError(f"no task file {name} beside the study", location)


def hash_quality_files(quality: Quality, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its name in the study."""
    names = (*quality.corpus, *list_task_files(quality))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


_WORKER = Path(__file__).parent / "workers" / "tokenize_texts.py"

Windows = tuple[tuple[int, ...], ...]


class Tokenized(BaseModel):
    """The answer of the worker."""

    texts: list[list[int]]
    questions: list[list[int]]
    conversations: list[list[list[int]]]
    begins: list[int]
    special: list[int]


def make_material(
    corpus: Corpus, quality: Quality, tokenizer: Path, python: Path
) -> QualityMaterial:
    """Make the requests to all variants of a model. Raise QualityError if that is impossible.

    `tokenizer` is the folder of the unquantized model. `python` must have transformers.
    """
    questions = QUESTIONS if quality.answer_tokens else ()
    scripted = conversations(quality.turns) if quality.turns else ()
    hidden = make_needles() if quality.built_in else ()
    scripts: list[Mapping[str, Json]] = []
    for script in scripted:
        scripts.append({"asks": script.task.asks, "turns": script.messages})
    scripts += [needle.asked for needle in hidden]
    texts = (*corpus.parts, *(needle.sentence for needle in hidden))
    tokenized = _run_tokenizer(texts, questions, scripts, tokenizer, python)
    parts = tokenized.texts[: len(corpus.parts)]
    windows: list[tuple[int, ...]] = []
    for length, count in quality.window_counts.items():
        windows += cut_windows(parts, count, length, tokenized.begins, quality.offset)
    per_part = count_windows_per_part(parts, quality.window_tokens, tokenized.begins)
    facts = CorpusFacts(
        description=corpus.description,
        text_hash=corpus.text_hash,
        windows_hash=hashlib.sha256(json.dumps(windows).encode()).hexdigest(),
        windows=quality.windows,
        window_tokens=quality.window_tokens,
        room=len(parts) * min(per_part),
    )
    prompts = _make_prompts(questions, tokenized.questions)
    turns = tokenized.conversations[: len(scripted)]
    _check_prompt_lengths(prompts, turns, tokenizer)
    sentences = tokenized.texts[len(corpus.parts) :]
    needle_prompts = tokenized.conversations[len(scripted) :]
    return QualityMaterial(
        facts=facts,
        windows=tuple(windows),
        prompts=prompts,
        scripts=make_material_scripts(scripted, turns),
        questions=tuple(
            iter_needle_questions(hidden, sentences, needle_prompts, parts[0], quality)
        ),
        end_tokens=tuple(tokenized.special),
    )


def _check_prompt_lengths(
    prompts: Sequence[Prompt], turns: Sequence[Sequence[Sequence[int]]], tokenizer: Path
) -> None:
    longest = max((len(prompt.tokens) for prompt in prompts), default=0)
    if longest > PROMPT_TOKENS:
        raise QualityError(
            f"The chat template in {tokenizer} makes {longest} tokens of a short question, and "
            f"answers are asked with {PROMPT_TOKENS} at most; set `answer_tokens: 0` under "
            "`quality` to skip them."
        )
    longest = max(map(len, chain.from_iterable(turns)), default=0)
    if longest > CONVERSATION_TOKENS:
        raise QualityError(
            f"The tokenizer in {tokenizer} makes {longest} tokens of a scripted conversation, and "
            f"at most {CONVERSATION_TOKENS} are asked; set fewer `turns` under `quality: turns`, "
            "or leave it out."
        )


def cut_windows(
    parts: Sequence[Sequence[int]],
    count: int,
    size: int,
    begins: Sequence[int],
    offset: float = 0.0,
) -> Windows:
    """Cut `count` windows of `size` tokens, the share of each part at even distances.

    Each window begins with `begins`. The first is `offset` distances from the beginning. Raise
    QualityError if a part is too short.
    """
    length = size - len(begins)
    rooms = count_windows_per_part(parts, size, begins)
    windows: list[tuple[int, ...]] = []
    for index, tokens in enumerate(parts):
        room = rooms[index]
        share = count // len(parts) + (index < count % len(parts))
        if share > room:
            raise QualityError(
                f"Part {index + 1} of the corpus has room for {room} windows of {size} tokens, "
                f"but {share} are "
                f"needed; add text under `corpus`, or use fewer or shorter `windows`."
            )
        starts = [int((number + offset) * room // share) * length for number in range(share)]
        windows += [(*begins, *tokens[start : start + length]) for start in starts]
    return tuple(windows)


def count_windows_per_part(
    parts: Sequence[Sequence[int]], size: int, begins: Sequence[int]
) -> list[int]:
    """Return how many windows of `size` tokens fit into each part."""
    return [len(tokens) // (size - len(begins)) for tokens in parts]


def _make_prompts(
    questions: Sequence[str], tokenized: Sequence[Sequence[int]]
) -> tuple[Prompt, ...]:
    pairs = zip(questions, tokenized, strict=True)
    return tuple(Prompt(text=text, tokens=tuple(tokens)) for text, tokens in pairs)


def make_material_scripts(
    scripted: Sequence[ScriptedConversation], tokenized: Sequence[Sequence[Sequence[int]]]
) -> tuple[Script, ...]:
    """Return the conversations with their tokens."""
    scripts = []
    for conversation, prompts in zip(scripted, tokenized, strict=True):
        turns = tuple(_iter_turns(prompts))
        scripts.append(Script(name=conversation.name, task=conversation.task.name, turns=turns))
    return tuple(scripts)


def _iter_turns(prompts: Sequence[Sequence[int]]) -> Iterator[TurnPrompt]:
    """Yield each prompt as the tokens that it shares with the previous one, and the rest."""
    previous: Sequence[int] = ()
    for tokens in prompts:
        kept = 0
        for left, right in zip(previous, tokens, strict=False):
            if left != right:
                break
            kept += 1
        yield TurnPrompt(kept=kept, tokens=tuple(tokens[kept:]))
        previous = tokens


def _run_tokenizer(
    texts: Sequence[str],
    questions: Sequence[str],
    scripts: Sequence[Mapping[str, Json]],
    tokenizer: Path,
    python: Path,
) -> Tokenized:
    job = {
        "tokenizer": str(tokenizer),
        "texts": texts,
        "questions": questions,
        "conversations": scripts,
    }
    try:
        return Tokenized.model_validate(get_last_event(run_short_job(_WORKER, python, job)))
    except WorkerFailed as failure:
        raise QualityError(
            f"The tokenizer in {tokenizer} failed on the corpus of `quality`: {failure}"
        ) from None
