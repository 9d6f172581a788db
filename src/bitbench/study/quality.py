"""`quality:` of a study file: what is measured besides speed, and the limits beyond which a variant is flagged."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bitbench.study.base import Fraction, Spec

# Nats. On SmolLM2-135M, whose few weights suffer most, 8-bit formats that are sound lie at 0.005 to 0.03 and 4-bit
# ones between 0.15 and 0.4 (docs/quality.md): beyond a tenth an answer is often another one.
DEFAULT_MAX_DIVERGENCE = 0.1
# Nats beyond the noise floor: a tenth of what is flagged, and a fraction of what sound 8-bit formats lose.
DEFAULT_EQUIVALENCE_MARGIN = 0.01
# The loss that published 4-bit models of some size stay well below; a reader notices it.
DEFAULT_MAX_PERPLEXITY_RISE = 0.10


PROMPT_TOKENS = (
    256  # no fixed prompt is longer, whatever the tokenizer and its chat template make of it
)
# What is shipped (`quality/conversations.yaml`), and room for the longest of it with any tokenizer and chat template.
CONVERSATIONS, CONVERSATION_TURNS, CONVERSATION_TOKENS = 24, 6, 1024
TURN_TOKENS = 96  # of an answer: twice the longest right one
MOST_WINDOWS = 10_000
# An answer about a window of 256 tokens then has 2 to 5 MB, and 94 % of the probability of SmolLM2-135M.
TOP_TOKENS = 256
TOP_TOKENS_OF_LONG, LONGEST_FOR_MANY = (
    32,
    2048,
)  # beyond so many tokens one answer would have 40 MB and more
TASK_TOKENS = 2048  # room for a question with its examples; what lm-eval assumes too
BUILT_IN = "builtin"  # the task that comes with bitbench (`quality/needles.py`)
LEAST_LONG_WINDOWS = 4  # of each further length; else as many as make the same number of tokens
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # as all of lm-eval's are


def is_study_task_file(task: str) -> bool:
    """Whether a task is a YAML file, and no name of lm-eval's registry."""
    return task.endswith((".yaml", ".yml"))


class Scoring(StrEnum):
    """How an engine's server gives log-probabilities of a text; `quality.asking` speaks each."""

    PROMPT_LOGPROBS = "prompt_logprobs"  # vLLM's field: the whole prompt in one request
    INPUT_LOGPROBS = "input_logprobs"  # SGLang's own request, likewise
    NEXT_TOKEN = "next_token"  # llama.cpp's: of what can follow a prompt, so one request and one step for each token


class LmEvalTask(Spec):
    """A task of lm-eval, and how it is asked."""

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
    def _only_a_chat_thinks(self) -> "LmEvalTask":
        if self.think == "strip" and not self.chat:
            raise ValueError(
                f"{self.name}: `think: strip` is of answers to a chat; add `chat: true`"
            )
        return self


class Turns(Spec):
    """Scripted conversations, each asked turn by turn until an answer is no valid JSON or tool call."""

    conversations: int = Field(
        default=CONVERSATIONS,
        ge=8,
        le=CONVERSATIONS,
        description="conversations, of those that come with bitbench",
    )
    turns: int = Field(
        default=CONVERSATION_TURNS, ge=1, le=CONVERSATION_TURNS, description="turns of each"
    )


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []


class Quality(Spec):
    """Log-probabilities on fixed windows of a text, answers to fixed prompts, and tasks of lm-eval."""

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
        description=f"top tokens kept at each position, for the KL divergence; default for windows of more than "
        f"{LONGEST_FOR_MANY:,} tokens: {TOP_TOKENS_OF_LONG}",
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
        description="mean KL divergence (nats) beyond the noise floor within which a variant counts as equivalent",
    )
    tasks: tuple[str | LmEvalTask, ...] = Field(
        default=(),
        description="builtin (needles), or lm-eval's: names, YAML files, `{name, chat, think, concurrency}`",
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
    def _first_length_is_that_of_windows(cls, value: object) -> object:
        if isinstance(value, dict) and "window_tokens" not in value:
            lengths = value.get("lengths")
            if isinstance(lengths, (list, tuple)) and lengths:
                return {**value, "window_tokens": lengths[0]}
        return value

    @model_validator(mode="before")
    @classmethod
    def _fewer_top_tokens_of_long_windows(cls, value: object) -> object:
        if not isinstance(value, dict) or "top_tokens" in value:
            return value
        lengths = [value.get("window_tokens"), *_listed(value.get("lengths"))]
        longest = max((length for length in lengths if isinstance(length, int)), default=0)
        return {**value, "top_tokens": TOP_TOKENS_OF_LONG} if longest > LONGEST_FOR_MANY else value

    @model_validator(mode="after")
    def _lengths_grow(self) -> "Quality":
        if self.lengths and (
            list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] != self.window_tokens
        ):
            raise ValueError(
                "lengths: give them shortest first, and leave `window_tokens` out: it is the first"
            )
        return self

    @field_validator("corpus", "tasks", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: object) -> object:
        return [value] if isinstance(value, (str, dict)) else value

    @field_validator("tasks")
    @classmethod
    def _tasks_are_names_or_files(
        cls, value: tuple[str | LmEvalTask, ...]
    ) -> tuple[str | LmEvalTask, ...]:
        """lm-eval takes any other path for a task file, too, and runs the code that it names."""
        for task in (task if isinstance(task, str) else task.name for task in value):
            if not is_study_task_file(task) and not _TASK_NAME.fullmatch(task):
                raise ValueError(
                    f"{task!r} is neither a name of lm-eval's registry nor a YAML file (.yaml)"
                )
        return value

    @property
    def built_in(self) -> bool:
        """Whether the needles that come with bitbench are asked for."""
        return BUILT_IN in self.tasks

    @property
    def lm_eval_tasks(self) -> tuple[LmEvalTask, ...]:
        others = (task for task in self.tasks if task != BUILT_IN)
        return tuple(LmEvalTask(name=task) if isinstance(task, str) else task for task in others)

    @property
    def window_counts(self) -> dict[int, int]:
        """How many windows of each length, shortest first."""
        least = min(LEAST_LONG_WINDOWS, self.windows)
        longer = {
            length: max(self.windows * self.window_tokens // length, least)
            for length in self.lengths[1:]
        }
        return {self.window_tokens: self.windows, **longer}

    @property
    def context_tokens(self) -> int:
        """The longest request: a window and the token after it, a prompt or a conversation with its answer, or a
        question of a task."""
        return max(
            max(self.window_counts) + 1,
            PROMPT_TOKENS + self.answer_tokens if self.answer_tokens else 0,
            CONVERSATION_TOKENS + TURN_TOKENS if self.turns else 0,
            TASK_TOKENS if self.lm_eval_tasks else 0,
        )
