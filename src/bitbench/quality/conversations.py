"""The scripted conversations that come with bitbench, as data in `conversations.yaml`."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from bitbench.study.base import Json, Spec
from bitbench.study.quality import CONVERSATION_TURNS, CONVERSATIONS, Turns
from bitbench.util import yaml_file

_FILE = Path(__file__).with_name("conversations.yaml")

Kind = Literal["string", "integer", "number", "boolean", "strings"] | tuple[str, ...]
Fields = dict[str, Kind]
Message = dict[str, str]  # role and content


class ScriptedExchange(Spec):
    say: str
    answer: dict[str, Json]

    @property
    def messages(self) -> list[Message]:
        return [{"role": "user", "content": self.say}, {"role": "assistant", "content": json.dumps(self.answer)}]


class ScriptedTask(Spec):
    """What is to be answered: an object with these fields, or a call of one of these tools."""

    name: str
    asks: str
    fields: Fields | None = None
    tools: dict[str, Fields] | None = None
    examples: tuple[ScriptedExchange, ...]
    turns: tuple[ScriptedExchange, ...] = Field(description="of its conversations, one after the other")

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ScriptedTask":
        if (self.fields is None) == (self.tools is None):
            raise ValueError(f"{self.name}: give `fields` or `tools`")
        return self


class _Tasks(Spec):
    tasks: tuple[ScriptedTask, ...]


class ScriptedConversation(Spec):
    name: str
    task: ScriptedTask
    turns: tuple[ScriptedExchange, ...]

    @property
    def messages(self) -> list[list[Message]]:
        """Of each turn: the examples, the turns before with the script's answers, and what is said now."""
        told = [message for example in self.task.examples for message in example.messages]
        found = []
        for exchange in self.turns:
            said, answered = exchange.messages
            found.append([*told, said])
            told = [*told, said, answered]
        return found


@cache
def tasks() -> dict[str, ScriptedTask]:
    text = _FILE.read_text(encoding="utf-8")
    read = yaml_file.parse(text, _Tasks, name=_FILE.name, outline="`tasks:` and a list", error=ValueError)
    return {task.name: task for task in read.tasks}


def conversations(wanted: Turns) -> Sequence[ScriptedConversation]:
    """The first of each task, then the second: fewer than all are of all tasks alike."""
    known = list(tasks().values())
    found = [
        ScriptedConversation(
            name=f"{task.name} {number + 1}",
            task=task,
            turns=task.turns[number * CONVERSATION_TURNS : number * CONVERSATION_TURNS + wanted.turns],
        )
        for number in range(CONVERSATIONS // len(known))
        for task in known
    ]
    return found[: wanted.conversations]
