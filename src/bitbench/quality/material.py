"""From a corpus to token windows: fixed pieces, spread over the whole text, the same for all variants of a model."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from bitbench.quality.built_in_tasks import NO_BUILT_IN, BuiltIn
from bitbench.quality.conversations import ScriptedConversation, conversations
from bitbench.quality.corpus import Corpus
from bitbench.quality.prompts import QUESTIONS
from bitbench.records.quality import CorpusFacts, Prompt, QualityMaterial, Script, TurnPrompt
from bitbench.study.base import Json
from bitbench.study.quality import CONTINUED_TOKENS, CONVERSATION_TOKENS, PROMPT_TOKENS, Quality
from bitbench.util.errors import QualityError
from bitbench.util.isolated.job_process import WorkerFailed, last_event, run_short_job

_WORKER = Path(__file__).parent / "workers" / "tokenize_texts.py"

Windows = tuple[tuple[int, ...], ...]


class Tokenized(BaseModel):
    """What the worker answers."""

    texts: list[list[int]]
    questions: list[list[int]]
    conversations: list[list[list[int]]]
    begins: list[int]
    special: list[int]


def make_material(corpus: Corpus, quality: Quality, tokenizer: Path, python: Path) -> QualityMaterial:
    """`tokenizer` is the folder of the model as it was before any recipe; `python` can import transformers."""
    questions = QUESTIONS if quality.answer_tokens else ()
    scripted = conversations(quality.turns) if quality.turns else ()
    built_in = BuiltIn.of(corpus.parts[0]) if quality.built_in else NO_BUILT_IN
    asked = [*({"asks": script.task.asks, "turns": script.messages} for script in scripted), *built_in.asked]
    tokenized = _tokenize((*corpus.parts, *built_in.sentences), questions, asked, tokenizer, python)
    parts, sentences = tokenized.texts[: len(corpus.parts)], tokenized.texts[len(corpus.parts) :]
    turns, of_tasks = tokenized.conversations[: len(scripted)], tokenized.conversations[len(scripted) :]
    windows = tuple(
        window
        for length, count in quality.window_counts.items()
        for window in cut(parts, count, length, tokenized.begins, quality.offset)
    )
    facts = CorpusFacts(
        description=corpus.description,
        text_hash=corpus.text_hash,
        windows_hash=hashlib.sha256(json.dumps(windows).encode()).hexdigest(),
        windows=quality.windows,
        window_tokens=quality.window_tokens,
        room=len(parts) * min(rooms(parts, quality.window_tokens, tokenized.begins)),
    )
    prompts = make_prompts(questions, tokenized.questions, windows[: quality.windows], quality.continuations)
    longest = max((len(prompt.tokens) for prompt in prompts), default=0)
    if longest > PROMPT_TOKENS:
        raise QualityError(
            f"The chat template in {tokenizer} makes {longest} tokens of a short question, and answers are asked "
            f"with "
            f"{PROMPT_TOKENS} at most; set `answer_tokens: 0` under `quality` to skip them."
        )
    longest = max((len(tokens) for prompts_of_script in turns for tokens in prompts_of_script), default=0)
    if longest > CONVERSATION_TOKENS:
        raise QualityError(
            f"The tokenizer in {tokenizer} makes {longest} tokens of a scripted conversation, and at most "
            f"{CONVERSATION_TOKENS} are asked; set fewer `turns` under `quality: turns`, or leave it out."
        )
    return QualityMaterial(
        facts=facts,
        windows=windows,
        prompts=prompts,
        scripts=make_scripts(scripted, turns),
        questions=tuple(built_in.questions(of_tasks, sentences, parts[0], quality)),
        end_tokens=tuple(tokenized.special),
    )


def cut(parts: Sequence[Sequence[int]], count: int, size: int, begins: Sequence[int], offset: float = 0.0) -> Windows:
    """`count` windows of `size` tokens, each part's share at even distances; `begins` leads every one of them, and the
    first lies `offset` distances from the beginning."""
    length = size - len(begins)
    windows: list[tuple[int, ...]] = []
    for index, (tokens, room) in enumerate(zip(parts, rooms(parts, size, begins), strict=True)):
        share = count // len(parts) + (index < count % len(parts))
        if share > room:
            raise QualityError(
                f"Part {index + 1} of the corpus has room for {room} windows of {size} tokens, but {share} are "
                f"needed; add text under `corpus`, or use fewer or shorter `windows`."
            )
        starts = [int((number + offset) * room // share) * length for number in range(share)]
        windows += [(*begins, *tokens[start : start + length]) for start in starts]
    return tuple(windows)


def rooms(parts: Sequence[Sequence[int]], size: int, begins: Sequence[int]) -> list[int]:
    """How many windows of `size` tokens each part has."""
    return [len(tokens) // (size - len(begins)) for tokens in parts]


def make_prompts(
    questions: Sequence[str], tokenized: Sequence[Sequence[int]], windows: Windows, continuations: int
) -> tuple[Prompt, ...]:
    """The questions, then beginnings of windows at even distances."""
    asked = [Prompt(text=text, tokens=tuple(tokens)) for text, tokens in zip(questions, tokenized, strict=True)]
    for number in (place * len(windows) // continuations for place in range(continuations)):
        beginning = windows[number][: min(CONTINUED_TOKENS, len(windows[number]) // 2)]
        asked.append(Prompt(text=f"the beginning of window {number + 1}", tokens=beginning, window=number))
    return tuple(asked)


def make_scripts(
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
            (at for at, (left, right) in enumerate(zip(before, tokens, strict=False)) if left != right), len(before)
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
        return Tokenized.model_validate(last_event(run_short_job(_WORKER, python, job)))
    except WorkerFailed as failure:
        raise QualityError(f"The tokenizer in {tokenizer} failed on the corpus of `quality`: {failure}") from None
