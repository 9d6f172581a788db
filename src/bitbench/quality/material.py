"""What is asked about quality: the corpus, its files checked and hashed, cut into token windows that are the same
for all variants, and the fixed questions."""

import ast
import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from bitbench.quality.conversations import ScriptedConversation, conversations
from bitbench.quality.needles import needle_questions, needles
from bitbench.quality.tasks import task_files
from bitbench.records.quality import CorpusFacts, Prompt, QualityMaterial, Script, TurnPrompt
from bitbench.study.base import Json
from bitbench.study.quality import CONVERSATION_TOKENS, PROMPT_TOKENS, Quality
from bitbench.util.errors import QualityError, StudyFileError
from bitbench.util.files import UnreadableFileError, read_text_file
from bitbench.util.isolated.job_process import WorkerFailed, last_job_event, run_short_job
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
LARGEST_FILE_BYTES = (
    256 * 2**20
)  # 32 windows of 256 tokens are 40 kB; a larger corpus was named by mistake
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
    shown = [
        f"{name} ({show_bytes(len(part.encode()))})"
        for name, part in zip(files, parts, strict=True)
    ]
    return Corpus(", ".join(shown), tuple(parts))


def _default() -> Corpus:
    prose = "\n\n".join(
        text for tree in map(ast.parse, _sources(PROSE_MODULES)) for text in _prose_in(tree)
    )
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
        lines = (
            (number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()
        )
        text = "\n\n".join(
            _line(line, f"the corpus {name}, line {number}", where) for number, line in lines
        )
    if not text.strip():
        raise StudyFileError(
            f"the corpus {name} is empty; name a file with a few pages of text", where
        )
    return text


def _line(line: str, place: str, where: tuple[int | str, ...]) -> str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StudyFileError(f"{place}: not JSON ({error})", where) from error
    if not (isinstance(content, dict) and isinstance(content.get("text"), str)):
        raise StudyFileError(f'{place}: each line must be {{"text": …}}', where)
    return str(content["text"])


QUESTIONS = (  # each needs another skill; none is long
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
    "Summarize in one sentence: The train was late because a tree had fallen onto the track during the storm.",
)


def check_quality_files(quality: Quality, folder: Path) -> None:
    """Raises StudyFileError, with the field that names the file, for the first that cannot be used."""
    if quality.corpus:
        read_corpus(quality.corpus, folder)
    for name in task_files(quality):
        if not (folder / name).is_file():
            names = [task if isinstance(task, str) else task.name for task in quality.tasks]
            place = ("quality", "tasks", names.index(name))
            raise StudyFileError(f"no task file {name} beside the study", place)


def hash_quality_files(quality: Quality, folder: Path) -> dict[str, str]:
    """SHA-256 of each file by the name that the study gives it."""
    names = (*quality.corpus, *task_files(quality))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


_WORKER = Path(__file__).parent / "workers" / "tokenize_texts.py"

Windows = tuple[tuple[int, ...], ...]


class Tokenized(BaseModel):
    """What the worker answers."""

    texts: list[list[int]]
    questions: list[list[int]]
    conversations: list[list[list[int]]]
    begins: list[int]
    special: list[int]


def make_material(
    corpus: Corpus, quality: Quality, tokenizer: Path, python: Path
) -> QualityMaterial:
    """`tokenizer` is the folder of the model as it was before any recipe; `python` can import transformers."""
    questions = QUESTIONS if quality.answer_tokens else ()
    scripted = conversations(quality.turns) if quality.turns else ()
    hidden = needles() if quality.built_in else ()
    asked: list[Mapping[str, Json]] = [
        {"asks": script.task.asks, "turns": script.messages} for script in scripted
    ]
    asked += [needle.asked for needle in hidden]
    texts = (*corpus.parts, *(needle.sentence for needle in hidden))
    tokenized = _tokenize(texts, questions, asked, tokenizer, python)
    parts, sentences = tokenized.texts[: len(corpus.parts)], tokenized.texts[len(corpus.parts) :]
    turns, of_needles = (
        tokenized.conversations[: len(scripted)],
        tokenized.conversations[len(scripted) :],
    )
    windows = tuple(
        window
        for length, count in quality.window_counts.items()
        for window in cut_windows(parts, count, length, tokenized.begins, quality.offset)
    )
    facts = CorpusFacts(
        description=corpus.description,
        text_hash=corpus.text_hash,
        windows_hash=hashlib.sha256(json.dumps(windows).encode()).hexdigest(),
        windows=quality.windows,
        window_tokens=quality.window_tokens,
        room=len(parts)
        * min(windows_per_corpus_part(parts, quality.window_tokens, tokenized.begins)),
    )
    prompts = _make_prompts(questions, tokenized.questions)
    longest = max((len(prompt.tokens) for prompt in prompts), default=0)
    if longest > PROMPT_TOKENS:
        raise QualityError(
            f"The chat template in {tokenizer} makes {longest} tokens of a short question, and answers are asked "
            f"with {PROMPT_TOKENS} at most; set `answer_tokens: 0` under `quality` to skip them."
        )
    longest = max(
        (len(tokens) for prompts_of_script in turns for tokens in prompts_of_script), default=0
    )
    if longest > CONVERSATION_TOKENS:
        raise QualityError(
            f"The tokenizer in {tokenizer} makes {longest} tokens of a scripted conversation, and at most "
            f"{CONVERSATION_TOKENS} are asked; set fewer `turns` under `quality: turns`, or leave it out."
        )
    return QualityMaterial(
        facts=facts,
        windows=windows,
        prompts=prompts,
        scripts=make_material_scripts(scripted, turns),
        questions=tuple(needle_questions(hidden, sentences, of_needles, parts[0], quality)),
        end_tokens=tuple(tokenized.special),
    )


def cut_windows(
    parts: Sequence[Sequence[int]],
    count: int,
    size: int,
    begins: Sequence[int],
    offset: float = 0.0,
) -> Windows:
    """`count` windows of `size` tokens, each part's share at even distances; `begins` leads every one of them, and the
    first lies `offset` distances from the beginning."""
    length = size - len(begins)
    windows: list[tuple[int, ...]] = []
    for index, (tokens, room) in enumerate(
        zip(parts, windows_per_corpus_part(parts, size, begins), strict=True)
    ):
        share = count // len(parts) + (index < count % len(parts))
        if share > room:
            raise QualityError(
                f"Part {index + 1} of the corpus has room for {room} windows of {size} tokens, but {share} are "
                f"needed; add text under `corpus`, or use fewer or shorter `windows`."
            )
        starts = [int((number + offset) * room // share) * length for number in range(share)]
        windows += [(*begins, *tokens[start : start + length]) for start in starts]
    return tuple(windows)


def windows_per_corpus_part(
    parts: Sequence[Sequence[int]], size: int, begins: Sequence[int]
) -> list[int]:
    """How many windows of `size` tokens each part has."""
    return [len(tokens) // (size - len(begins)) for tokens in parts]


def _make_prompts(
    questions: Sequence[str], tokenized: Sequence[Sequence[int]]
) -> tuple[Prompt, ...]:
    pairs = zip(questions, tokenized, strict=True)
    return tuple(Prompt(text=text, tokens=tuple(tokens)) for text, tokens in pairs)


def make_material_scripts(
    scripted: Sequence[ScriptedConversation], tokenized: Sequence[Sequence[Sequence[int]]]
) -> tuple[Script, ...]:
    return tuple(
        Script(name=conversation.name, task=conversation.task.name, turns=tuple(_turns(turns)))
        for conversation, turns in zip(scripted, tokenized, strict=True)
    )


def _turns(prompts: Sequence[Sequence[int]]) -> Iterator[TurnPrompt]:
    before: Sequence[int] = ()
    for tokens in prompts:
        kept = next(
            (
                at
                for at, (left, right) in enumerate(zip(before, tokens, strict=False))
                if left != right
            ),
            len(before),
        )
        kept = min(kept, len(tokens))
        yield TurnPrompt(kept=kept, tokens=tuple(tokens[kept:]))
        before = tokens


def _tokenize(
    texts: Sequence[str],
    questions: Sequence[str],
    asked: Sequence[Mapping[str, Json]],
    tokenizer: Path,
    python: Path,
) -> Tokenized:
    job = {
        "tokenizer": str(tokenizer),
        "texts": texts,
        "questions": questions,
        "conversations": asked,
    }
    try:
        return Tokenized.model_validate(last_job_event(run_short_job(_WORKER, python, job)))
    except WorkerFailed as failure:
        raise QualityError(
            f"The tokenizer in {tokenizer} failed on the corpus of `quality`: {failure}"
        ) from None
