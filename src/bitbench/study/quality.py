"""`quality:` of a study file: the measurements of quality, and the limits for a flagged variant."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bitbench.study.base import Fraction, Spec

# Nats. On SmolLM2-135M, whose few weights suffer most, sound 8-bit formats have 0.005 to 0.03 and
# 4-bit formats 0.15 to 0.4 (docs/quality.md). Above 0.1, answers often differ.
DEFAULT_MAX_DIVERGENCE = 0.1
# Nats beyond the noise floor: a tenth of the flagged divergence, and a fraction of the loss of
# sound 8-bit formats.
DEFAULT_EQUIVALENCE_MARGIN = 0.01
# Larger published 4-bit models stay well below this loss, which a reader notices.
DEFAULT_MAX_PERPLEXITY_RISE = 0.10


# No fixed prompt is longer with any tokenizer and chat template.
PROMPT_TOKENS = 256
# The content of `quality/conversations.yaml`, and the tokens of the longest conversation with any
# tokenizer and chat template.
CONVERSATIONS = 24
CONVERSATION_TURNS = 6
CONVERSATION_TOKENS = 1024
TURN_TOKENS = 96  # of an answer: twice the longest right answer
MOST_WINDOWS = 10_000
# The scores of a window of 256 tokens then take 2 to 5 MB, and cover 94 % of the probability of
# SmolLM2-135M.
TOP_TOKENS = 256
# With 256 top tokens, the scores of a longer window would take 40 MB and more.
TOP_TOKENS_OF_LONG = 32
LONGEST_FOR_MANY = 2048
TASK_TOKENS = 2048  # for a question with its examples, as lm-eval assumes too
BUILT_IN = "builtin"  # the task that comes with bitbench (`quality/needles.py`)
LEAST_LONG_WINDOWS = 4  # of each further length, or as many as have the same number of tokens
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # fits all names of lm-eval


def is_study_task_file(task: str) -> bool:
    """Return True if a task is a YAML file, and not a name of lm-eval's registry."""
    return task.endswith((".yaml", ".yml"))


class Scoring(StrEnum):
    """A way to get log-probabilities of a text, each implemented in `quality.logprobs`."""

    PROMPT_LOGPROBS = "prompt_logprobs"  # vLLM's field: the whole prompt in one request
    INPUT_LOGPROBS = "input_logprobs"  # SGLang's endpoint: the whole prompt in one request
    # llama.cpp's scores of the next token only: one request and one step for each token
    NEXT_TOKEN = "next_token"


class LmEvalTask(Spec):
    """A task of lm-eval, with the way in which its questions are sent."""

    name: str = Field(description="a name of lm-eval's registry, or a YAML file")
    chat: bool = Field(
        default=False, description="through the chat endpoint, in the model's chat template"
    )
    think: Literal["keep", "strip"] = Field(
        default="keep",
        description="strip: only what follows </think> is judged, of models that reason first",
    )
    concurrency: int = Field(default=1, ge=1, le=256, description="questions asked at a time")

    @model_validator(mode="after")
    def _check_thinking(self) -> "LmEvalTask":
        if self.think == "strip" and not self.chat:
            raise ValueError(
                f"{self.name}: `think: strip` is of answers to a chat; add `chat: true`"
            )
        return self


class Turns(Spec):
    """Scripted conversations, each continued until an answer is not valid JSON or tool call."""

    conversations: int = Field(
        default=CONVERSATIONS,
        ge=8,
        le=CONVERSATIONS,
        description="conversations, of those that come with bitbench",
    )
    turns: int = Field(
        default=CONVERSATION_TURNS, ge=1, le=CONVERSATION_TURNS, description="turns of each"
    )


def _make_list(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return list(value)
    return []


def _get_task_name(task: str | LmEvalTask) -> str:
    if isinstance(task, LmEvalTask):
        return task.name
    return task


class Quality(Spec):
    """The quality measurements: windows of a text, fixed prompts, and tasks of lm-eval."""

    corpus: tuple[str, ...] = Field(
        default=(),
        description="text or JSONL files; default: text that ships with Python (English and code)",
    )
    windows: int = Field(
        default=32, ge=2, le=MOST_WINDOWS, description="windows of the corpus that are scored"
    )
    window_tokens: int = Field(default=256, ge=8, le=131_072, description="tokens per window")
    lengths: tuple[Annotated[int, Field(ge=8, le=131_072)], ...] = Field(
        default=(),
        description="windows of several lengths, shortest first; the first is `window_tokens`",
    )
    offset: Fraction = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="0.5: windows halfway between those of a study without it, for fresh text",
    )
    top_tokens: int = Field(
        default=TOP_TOKENS,
        ge=1,
        le=1000,
        description="top tokens kept at each position, for the KL divergence; default for "
        f"windows of more than {LONGEST_FOR_MANY:,} tokens: {TOP_TOKENS_OF_LONG}",
    )
    answer_tokens: int = Field(
        default=48,
        ge=0,
        le=4096,
        description="tokens of each greedy answer to the fixed prompts; 0: no answers",
    )
    turns: Turns | None = Field(
        default=None,
        description="scripted conversations: turns until the first invalid JSON or tool call",
    )
    noise_floor: bool = Field(
        default=False,
        description="score the unquantized model again in another start: what is only noise",
    )
    equivalence_margin: float = Field(
        default=DEFAULT_EQUIVALENCE_MARGIN,
        gt=0,
        description="mean KL divergence (nats) beyond the noise floor within which a variant "
        "counts as equivalent",
    )
    tasks: tuple[str | LmEvalTask, ...] = Field(
        default=(),
        description="builtin (needles), or lm-eval's: names, YAML files, `{name, chat, think, "
        "concurrency}`",
    )
    task_samples: int | None = Field(
        default=None, ge=1, description="questions per task of lm-eval; default: all"
    )
    max_divergence: float = Field(
        default=DEFAULT_MAX_DIVERGENCE,
        gt=0,
        description="mean KL divergence (nats) above which a variant is flagged",
    )
    max_perplexity_rise: Fraction = Field(
        default=DEFAULT_MAX_PERPLEXITY_RISE,
        gt=0,
        description="rise over the baseline above which a variant is flagged",
    )

    @model_validator(mode="before")
    @classmethod
    def _set_window_tokens(cls, value: object) -> object:
        if isinstance(value, dict) and "window_tokens" not in value:
            lengths = value.get("lengths")
            if isinstance(lengths, (list, tuple)) and lengths:
                return {**value, "window_tokens": lengths[0]}
        return value

    @model_validator(mode="before")
    @classmethod
    def _set_top_tokens(cls, value: object) -> object:
        if not isinstance(value, dict) or "top_tokens" in value:
            return value
        lengths = [value.get("window_tokens"), *_make_list(value.get("lengths"))]
        longest = max((length for length in lengths if isinstance(length, int)), default=0)
        if longest > LONGEST_FOR_MANY:
            return {**value, "top_tokens": TOP_TOKENS_OF_LONG}
        return value

    @model_validator(mode="after")
    def _check_lengths(self) -> "Quality":
        if self.lengths and (
            list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] != self.window_tokens
        ):
            raise ValueError(
                "lengths: give them shortest first, and leave `window_tokens` out: it is the first"
            )
        return self

    @field_validator("corpus", "tasks", mode="before")
    @classmethod
    def _wrap_single(cls, value: object) -> object:
        return [value] if isinstance(value, (str, dict)) else value

    @field_validator("tasks")
    @classmethod
    def _check_tasks(cls, value: tuple[str | LmEvalTask, ...]) -> tuple[str | LmEvalTask, ...]:
        """Refuse other paths. lm-eval would take them for task files and run the code they name."""
        for name in map(_get_task_name, value):
            if not is_study_task_file(name) and not _TASK_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is neither a name of lm-eval's registry nor a YAML file (.yaml)"
                )
        return value

    @property
    def built_in(self) -> bool:
        """Return True if the study asks for the needles that come with bitbench."""
        return BUILT_IN in self.tasks

    @property
    def lm_eval_tasks(self) -> tuple[LmEvalTask, ...]:
        tasks = []
        for task in self.tasks:
            if isinstance(task, LmEvalTask):
                tasks.append(task)
            elif task != BUILT_IN:
                tasks.append(LmEvalTask(name=task))
        return tuple(tasks)

    @property
    def window_counts(self) -> dict[int, int]:
        """Return the number of windows of each length, shortest first."""
        counts = {self.window_tokens: self.windows}
        least = min(LEAST_LONG_WINDOWS, self.windows)
        for length in self.lengths[1:]:
            counts[length] = max(self.windows * self.window_tokens // length, least)
        return counts

    @property
    def context_tokens(self) -> int:
        """Return the length of the longest request in tokens.

        It is a window and the token after it, a prompt or a conversation with its answer, or a
        question of a task.
        """
        lengths = [max(self.window_counts) + 1]
        if self.answer_tokens:
            lengths.append(PROMPT_TOKENS + self.answer_tokens)
        if self.turns:
            lengths.append(CONVERSATION_TOKENS + TURN_TOKENS)
        if self.lm_eval_tasks:
            lengths.append(TASK_TOKENS)
        return max(lengths)
