"""Prompts of ordinary words: which ids they are, by the tokenizer's own file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bitbench.loadgen.requests import PromptSource
from bitbench.models.folder import LEAST_WORDS, read_word_token_ids
from bitbench.running.trial import RunContext
from bitbench.study.plan import Config
from bitbench.study.variant import ModelFacts
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_plan

STRANGE = [
    "Ġ",
    "Ġa",
    "Ġé",
    "ĠÃ©",
    "Ã",
    "©",
    "<0xE9>",
    "Ġ12",
    "Ġnot.",
    "piece",
    "▁ß",
    "Ġtwo words",
    "Ġmaſs",
]


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:04d}")


def written(folder: Path, vocabulary: object, added: object = ()) -> Path:
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


@pytest.mark.parametrize("space", ["Ġ", "▁"])
def test_words_are_a_space_and_ascii_letters(tmp_path: Path, space: str) -> None:
    words = [space + letters(number) for number in range(300)]
    vocabulary = {text: id for id, text in enumerate([*STRANGE, *words])}
    known = tuple(range(len(STRANGE), len(vocabulary)))
    assert read_word_token_ids(written(tmp_path, vocabulary)) == known
    pairs = [[text, -1.5] for text in vocabulary]  # of a Unigram tokenizer
    assert read_word_token_ids(written(tmp_path, pairs)) == known


def test_added_tokens_are_no_words(tmp_path: Path) -> None:
    vocabulary = {f"Ġ{letters(number)}": number for number in range(300)}
    found = read_word_token_ids(
        written(tmp_path, vocabulary, [{"id": 7, "content": " tool", "special": False}])
    )
    assert found == tuple(id for id in range(300) if id != 7)


@pytest.mark.parametrize(
    "vocabulary",
    [
        {f"Ġ{letters(number)}": number for number in range(LEAST_WORDS - 1)},
        {f"Ġ{letters(number)}": "1" for number in range(300)},
        {f"Ġ{letters(number)}": -1 - number for number in range(300)},
        {f"Ġ{letters(number)}": 2**40 + number for number in range(300)},
        [[], ["Ġab"], 3, None],
        "Ġab",
        None,
    ],
)
def test_a_tokenizer_with_hardly_any_words_has_none(tmp_path: Path, vocabulary: object) -> None:
    assert read_word_token_ids(written(tmp_path, vocabulary)) == ()


@pytest.mark.parametrize("text", ["", "[]", '{"model": []}', '{"added_tokens": {}}'])
def test_a_tokenizer_of_another_form_has_none(tmp_path: Path, text: str) -> None:
    assert read_word_token_ids(tmp_path) == ()
    (tmp_path / "tokenizer.json").write_text(text)
    assert read_word_token_ids(tmp_path) == ()


def test_variants_of_a_model_get_prompts_of_its_words(tmp_path: Path) -> None:
    asked: list[str] = []

    def words_of(model: str) -> tuple[int, ...]:
        asked.append(model)
        return (5, 6, 40)

    plan = make_plan(["steady"], [BUILT_IN_WORKLOADS["interactive"]])
    context = RunContext(plan, {}, lambda _: tmp_path, load=None, observer=None, words_of=words_of)  # type: ignore[arg-type]
    assert context.get_vocabulary(plan.configs[0]).words == ()
    assert asked == []  # it runs no model
    facts = ModelFacts(vocabulary_size=50, special_token_ids=(6,))
    variant = plan.variants[0].model_copy(
        update={"name": "m/q4", "model": "m", "recipe": "q4", "facts": facts}
    )
    of_model = replace(context, plan=plan.model_copy(update={"variants": (variant,)}))
    vocabulary = of_model.get_vocabulary(Config(variant="m/q4", engine="e"))
    assert asked == ["m"]
    prompt = PromptSource(vocabulary, seed=(1,)).prompt(0, 500)
    assert set(np.unique(prompt)) == {5, 40}
