"""What quality measurements leave on disk: one line per config, and one row per scored token beside it."""

from enum import StrEnum

from pydantic import Field

from bitbench.records.tables import RequestColumn
from bitbench.records.trial import Outcome
from bitbench.study.base import Record
from bitbench.study.plan import Config

QUALITY_FORMAT = 1
# History of QUALITY_FORMAT, the version in each line of quality.jsonl:
#   1  first published form

SCORE_COLUMNS = (
    RequestColumn("window", "int32", "number of the window"),
    RequestColumn(
        "position",
        "int32",
        "place of the token in its window; the first token has no row, nothing precedes it",
    ),
    RequestColumn("token", "int32", "the token that stands there in the text"),
    RequestColumn(
        "logprob",
        "float32",
        "its log-probability after what precedes it in the window, over the whole vocabulary",
    ),
    RequestColumn("top_tokens", "list<int32>", "the likeliest tokens there, likeliest first"),
    RequestColumn("top_logprobs", "list<float32>", "their log-probabilities"),
)


class Condition(StrEnum):
    """How windows were asked for: the difference between two is an engine's own noise."""

    ALONE = "alone"  # one request at a time: what all figures but the noise floor are from
    TOGETHER = "together"  # several at once: only in records of earlier versions
    RESTARTED = (
        "restarted"  # one at a time in another start of the same config: some of the windows
    )


class CorpusFacts(Record):
    """Which text was scored: the same facts mean the same token windows."""

    description: str
    text_hash: str
    windows_hash: str  # over the token ids of all windows
    windows: int
    window_tokens: int
    room: int  # windows of that length that the text has, spread alike over its parts


class Prompt(Record):
    text: str  # what a person would ask
    tokens: tuple[int, ...]  # in the model's chat template where it has one


class TurnPrompt(Record):
    """What is asked in one turn: so many tokens of the turn before, then these. Most of a conversation is kept."""

    kept: int
    tokens: tuple[int, ...]


class Script(Record):
    """A scripted conversation as token ids, in the model's chat template where it has one."""

    name: str
    task: str  # which JSON or which tools its answers are to be
    turns: tuple[TurnPrompt, ...]

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """The whole prompt of each turn."""
        found: list[tuple[int, ...]] = []
        for turn in self.turns:
            before = found[-1] if found else ()
            found.append((*before[: turn.kept], *turn.tokens))
        return tuple(found)


class TaskQuestion(Record):
    """A question for a needle, in the model's chat template where it has one."""

    task: str
    name: str  # with a checksum of its tokens
    tokens: tuple[int, ...]
    right: str
    length: int  # tokens of its window
    depth: int  # percent of the text before it


class QualityMaterial(Record):
    """What every variant of a model is asked, as token ids. Kept in the study's folder, so that all get the same."""

    format: int = QUALITY_FORMAT
    facts: CorpusFacts
    windows: tuple[tuple[int, ...], ...]
    prompts: tuple[Prompt, ...]
    scripts: tuple[Script, ...] = ()
    questions: tuple[TaskQuestion, ...] = ()
    end_tokens: tuple[int, ...]  # special ones: an answer ends before the first

    @property
    def short_windows(self) -> tuple[tuple[int, ...], ...]:
        """Those of `window_tokens`, which come first: all figures but those by position are from them."""
        return self.windows[: self.facts.windows]


class Answer(Record):
    """A greedy answer to one fixed prompt, cut before the first token that ends a text."""

    prompt: str
    text: str
    tokens: tuple[int, ...]


class TurnAnswer(Record):
    """A greedy answer of one line in a scripted conversation."""

    text: str
    fault: str | None = None  # why it is no valid JSON or tool call


class ConversationRecord(Record):
    """A scripted conversation, asked until the first answer with a fault."""

    name: str
    task: str
    turns: int  # of the script
    answers: tuple[TurnAnswer, ...]

    @property
    def broke_at(self) -> int | None:
        """The turn with the first fault, counted from 1; None where there was none to the end."""
        return next(
            (turn for turn, answer in enumerate(self.answers, start=1) if answer.fault is not None),
            None,
        )


class TaskAnswer(Record):
    """What was answered to one question of a task, so that variants can be compared question by question."""

    task: str
    metric: str = "right"  # of lm-eval with its filter: "exact_match,strict-match"
    question: str
    is_right: bool
    is_cut: bool | None = None  # it ended at the length limit; None: not known
    text: str
    length: int | None = None  # of a needle's window, in tokens, and how deep it lies in percent
    depth: int | None = None


class TaskResult(Record):
    """One metric of one task, as lm-eval gives it."""

    task: str
    metric: str  # with its filter: "acc,none"
    value: float
    standard_error: float | None
    samples: int | None
    higher_is_better: bool | None = None


class TaskFailure(Record):
    task: str
    cause: str


class QualityRecord(Record):
    """One attempt to measure the quality of a config; its rows are there where the outcome is ok."""

    format: int = QUALITY_FORMAT
    id: str
    config: Config
    condition: Condition = Condition.ALONE
    instance_id: str
    started_at: str
    duration_s: float
    outcome: Outcome
    cause: str | None = None
    log_lines: tuple[str, ...] = ()
    corpus: CorpusFacts | None = None
    top_tokens: int = 0
    tokens: int = 0  # that were scored
    scores_file: str | None = None
    answers: tuple[Answer, ...] = ()
    conversations: tuple[ConversationRecord, ...] = ()
    tasks: tuple[TaskResult, ...] = ()
    task_answers: tuple[TaskAnswer, ...] = ()
    task_failures: tuple[TaskFailure, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)  # of lm-eval, where it ran
