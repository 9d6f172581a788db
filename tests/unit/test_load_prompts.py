"""Prompts: exact, fresh, reproducible, never special."""

import pytest

from bitbench.loadgen.requests import PromptSource
from bitbench.ports import Vocabulary


def test_length_is_exact_and_special_ids_never_appear() -> None:
    source = PromptSource(Vocabulary(size=20, excluded=(0, 7, 19, 400)), seed=(1, 2))
    prompt = source.prompt(0, 5_000)
    assert len(prompt) == 5_000
    assert set(prompt.tolist()) == set(range(20)) - {0, 7, 19}


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    vocabulary = Vocabulary(size=50_000)
    once, again = (PromptSource(vocabulary, seed=(3, 1)) for _ in range(2))
    other = PromptSource(vocabulary, seed=(3, 2))
    assert once.prompt(5, 64).tolist() == again.prompt(5, 64).tolist()
    assert once.prompt(5, 64).tolist() != other.prompt(5, 64).tolist()


def test_no_two_prompts_of_a_trial_share_even_their_first_token() -> None:
    source = PromptSource(Vocabulary(size=300, excluded=(0,)), seed=(0,))
    assert len({int(source.prompt(number, 1)[0]) for number in range(299)}) == 299


def test_words_are_all_that_a_prompt_holds_and_few_of_them_still_vary() -> None:
    words = tuple(range(100, 140))
    source = PromptSource(
        Vocabulary(size=50_000, excluded=(139,), words=(*words, 70_000, -3)), seed=(0,)
    )
    prompts = [source.prompt(number, 32).tolist() for number in range(1_000)]
    assert {token for prompt in prompts for token in prompt} == set(words) - {139}
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 1_000


def test_words_that_the_model_does_not_have_are_none() -> None:
    source = PromptSource(Vocabulary(size=10, excluded=(0,), words=(0, 10, 11)), seed=(0,))
    assert set(source.prompt(0, 1_000).tolist()) == set(range(1, 10))


def test_a_vocabulary_of_special_ids_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="special"):
        PromptSource(Vocabulary(size=2, excluded=(0, 1)), seed=(0,))


def test_a_passage_is_the_same_for_its_name_alone() -> None:
    source = PromptSource(Vocabulary(size=50_000, excluded=(3,)), seed=(0, 1))
    again = PromptSource(Vocabulary(size=50_000, excluded=(3,)), seed=(0, 1))
    assert source.make_passage("a", 64).tolist() == again.make_passage("a", 64).tolist()
    assert source.make_passage("a", 64).tolist() != source.make_passage("b", 64).tolist()
    assert source.make_passage("a", 64).tolist()[:32] == source.make_passage("a", 32).tolist()
