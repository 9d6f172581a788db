"""Records of quality measurements: one line per config, and one row per scored token."""

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
    """A condition of scoring. A difference between two conditions is an engine's own noise."""

    ALONE = "alone"  # one request at a time, for all metrics except the noise floor
    TOGETHER = "together"  # several at once, only in records of earlier versions
    # one at a time in another start of the same config: some of the windows
    RESTARTED = "restarted"


class CorpusFacts(Record):
    """The facts about the scored text. Equal facts mean equal token windows."""

    description: str
    text_hash: str
    windows_hash: str  # over the token ids of all windows
    windows: int
    window_tokens: int
    room: int  # windows of that length that fit into the text, equally many in each part


class Prompt(Record):
    """A fixed prompt."""

    text: str  # the question as a person would ask it
    tokens: tuple[int, ...]  # in the model's chat template if it has one


class TurnPrompt(Record):
    """The prompt of a turn: the first `kept` tokens of the previous prompt, then `tokens`."""

    kept: int
    tokens: tuple[int, ...]


class Script(Record):
    """A scripted conversation as token ids, in the model's chat template if it has one."""

    name: str
    task: str  # decides the JSON or the tool calls that its answers should be
    turns: tuple[TurnPrompt, ...]

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """Return the whole prompt of each turn."""
        prompts: list[tuple[int, ...]] = []
        previous: tuple[int, ...] = ()
        for turn in self.turns:
            previous = (*previous[: turn.kept], *turn.tokens)
            prompts.append(previous)
        return tuple(prompts)


class TaskQuestion(Record):
    """A question about a needle, in the model's chat template if it has one."""

    task: str
    name: str  # with a checksum of its tokens
    tokens: tuple[int, ...]
    right: str
    length: int  # tokens of its window
    depth: int  # percent of the text before it


class QualityMaterial(Record):
    """The requests to every variant of a model, as token ids.

    The study folder stores them, so that all variants get the same.
    """

    format: int = QUALITY_FORMAT
    facts: CorpusFacts
    windows: tuple[tuple[int, ...], ...]
    prompts: tuple[Prompt, ...]
    scripts: tuple[Script, ...] = ()
    questions: tuple[TaskQuestion, ...] = ()
    end_tokens: tuple[int, ...]  # special tokens. An answer ends before the first of them.

    @property
    def short_windows(self) -> tuple[tuple[int, ...], ...]:
        """Return the windows of `window_tokens`, which come first.

        All metrics except those by position use them.
        """
        return self.windows[: self.facts.windows]


class Answer(Record):
    """A greedy answer to a fixed prompt, cut before the first token that ends a text."""

    prompt: str
    text: str
    tokens: tuple[int, ...]


class TurnAnswer(Record):
    """A greedy answer of one line in a scripted conversation."""

    text: str
    fault: str | None = None  # why it is not valid JSON or not a valid tool call


class ConversationRecord(Record):
    """A scripted conversation, continued until the first answer with a fault."""

    name: str
    task: str
    turns: int  # of the script
    answers: tuple[TurnAnswer, ...]

    @property
    def broke_at(self) -> int | None:
        """Return the turn with the first fault, counted from 1. None if every turn is right."""
        for turn, answer in enumerate(self.answers, start=1):
            if answer.fault is not None:
                return turn
        return None


class TaskAnswer(Record):
    """An answer to one question of a task, to compare variants question by question."""

    task: str
    metric: str = "right"  # of lm-eval with its filter: "exact_match,strict-match"
    question: str
    is_right: bool
    is_cut: bool | None = None  # True if it ended at the length limit, None if unknown
    text: str
    length: int | None = None  # of a needle's window in tokens
    depth: int | None = None


class TaskResult(Record):
    """A metric of a task, as lm-eval reports it."""

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
    """An attempt to measure the quality of a config. Its rows exist if the outcome is ok."""

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
    versions: dict[str, str] = Field(default_factory=dict)  # of lm-eval, if it ran
