"""Texts from files: each layout, what is cut and passed over, and what is wrong."""

import json
from pathlib import Path

import pytest

from bitbench.loadgen.inputs import Text, read_texts
from bitbench.study.base import Json
from bitbench.util.errors import StudyFileError

SHAREGPT = [
    {
        "id": "a",
        "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "It begins with an answer."}]},
    {"id": "c", "conversations": []},
    {"id": "d", "conversations": [{"from": "user", "value": "How?"}]},
]
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}


def read(tmp_path: Path, text: str) -> list[Text]:
    path = tmp_path / "texts"
    path.write_text(text, encoding="utf-8")
    return list(read_texts(path))


def lines(*items: Json) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_json_lines(tmp_path: Path) -> None:
    assert read(tmp_path, lines({"prompt": "one", "x": 1}, {"text": "zwei é"}) + "\n") == [
        "one",
        "zwei é",
    ]


def test_messages_end_with_the_last_question(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Because."}
    assert read(
        tmp_path, lines({"messages": [SYSTEM, QUESTION, answer]}, {"messages": [answer]})
    ) == [[SYSTEM, QUESTION]]


def test_sharegpt_gives_first_questions(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(SHAREGPT, indent=1)) == ["Why?", "How?"]
    assert read(tmp_path, lines(*SHAREGPT)) == ["Why?", "How?"]


def test_plain_text_is_taken_by_paragraph(tmp_path: Path) -> None:
    assert read(tmp_path, "One\nparagraph.\n\n \nAnother.\n") == ["One\nparagraph.", "Another."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines({"prompt": "a"}, {"question": "b"}), "line 2: no field `prompt`, `text`"),
        (lines({"prompt": ["a"]}), "line 1: `prompt` is not a text"),
        (lines({"prompt": "a"}) + "{oops\n", "line 2: not JSON"),
        (
            lines({"messages": [{"role": "user"}]}),
            "line 1: `messages` is not a list of objects with `role`",
        ),
        (
            '[{"conversations": [1]}]',
            "item 1: `conversations` is not a list of objects with `from` and `value`",
        ),
        ("[1]", "item 1: neither a text nor an object"),
        ("[1", "start like a JSON list"),
        (" \n", "contain no prompt"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StudyFileError, match=said):
        read(tmp_path, text)
