"""Needles that come with bitbench: their questions, how answers are judged, and flips beside the baseline."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from bitbench.analysis.intervals import compute_fair_coin_p_value
from bitbench.analysis.quality import find_first_divergent_position
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import PositionDivergence, StudySummary, TaskEstimate
from bitbench.analysis.tasks import compare_tasks, iter_needles, summarize_flips
from bitbench.quality.logprobs import InstanceConnection, PromptLogprobs
from bitbench.quality.material import Corpus, make_material
from bitbench.quality.measure import ask_tasks
from bitbench.quality.needles import DEPTHS, NEEDLE_ANSWER_TOKENS, make_needles
from bitbench.records.quality import TaskAnswer, TaskQuestion
from bitbench.reports.document.markdown import render_markdown_phrase, render_markdown_section
from bitbench.reports.sections.quality import build_quality_section, iter_quality_sentences
from bitbench.study.quality import LmEvalTask, Quality
from tests.support.quality_server import QualityServer
from tests.support.stand_in_environment import stand_in_python
from tests.support.synthetic import summarize
from tests.unit.test_statistics_quality import logits, noisy, plan, record, rows
from tests.unit.test_workers import TRANSFORMERS


@pytest.fixture
def server() -> Iterator[QualityServer]:
    running = QualityServer()
    yield running
    running.shutdown()
    running.server_close()


def test_needles_are_the_same_each_time() -> None:
    assert make_needles() == make_needles()
    assert [needle.depth for needle in make_needles()] == [
        depth for depth in DEPTHS for _ in range(4)
    ]


def test_a_needle_lies_at_its_depth_in_a_window_that_it_fills(tmp_path: Path) -> None:
    python = stand_in_python(tmp_path / "env", transformers=TRANSFORMERS)
    corpus = Corpus(parts=("x" * 9000,), description="letters")
    quality = Quality(windows=4, lengths=(512, 2048), answer_tokens=0, tasks=("builtin",))
    made = make_material(corpus, quality, tmp_path, python)
    assert [len(window) for window in made.windows] == [512] * 4 + [2048] * 4
    assert (made.facts.windows, made.short_windows) == (4, made.windows[:4])
    asked = {(question.length, question.depth) for question in made.questions}
    assert asked == {(length, depth) for length in (512, 2048) for depth in DEPTHS}
    for question in made.questions:
        text = "".join(map(chr, question.tokens))
        assert len(text) + NEEDLE_ANSWER_TOKENS == question.length
        before, found, after = text.partition(f" is {question.right}.")
        assert found
        filled = before.count("x") + after.count("x")
        assert before.count("x") == pytest.approx(filled * question.depth / 100, abs=8)
        assert text.count("secret number of") == 4  # of the example and of its own, said and asked


def test_answers_are_kept_with_what_was_cut(server: QualityServer) -> None:
    server.text_of = lambda body: "It is 42.\nmore" if body["prompt"] == [1] else "4"
    questions = [
        TaskQuestion(
            task="builtin/needle-64",
            name=str(token),
            tokens=(token,),
            right="42",
            length=64,
            depth=0,
        )
        for token in (1, 2)
    ]
    with InstanceConnection(server.endpoint, 5.0) as connection:
        found = ask_tasks(PromptLogprobs(connection), questions, (), lambda _: None)
    assert [(answer.is_right, answer.text, answer.is_cut) for answer in found] == [
        (True, "It is 42.", True),
        (False, "4", True),
    ]


def test_the_exact_test_is_that_of_a_fair_coin() -> None:
    assert compute_fair_coin_p_value(0, 0) == 1.0
    assert compute_fair_coin_p_value(0, 5) == pytest.approx(2 / 32)
    assert compute_fair_coin_p_value(3, 12) == pytest.approx(2 * (1 + 12 + 66 + 220) / 4096)
    assert compute_fair_coin_p_value(6, 12) == 1.0
    found = summarize_flips(lost=12, gained=2, questions=100, confidence=0.95)
    assert found.difference.value == pytest.approx(-0.1)
    assert found.difference.interval is not None
    assert -0.18 < found.difference.interval.low < -0.1 < found.difference.interval.high < -0.02


def answers(
    right: Sequence[bool], task: str = "builtin/needle-64", **more: int
) -> list[TaskAnswer]:
    return [
        TaskAnswer(
            task=task,
            question=str(number),
            is_right=bool(value),
            is_cut=number == 0,
            text="",
            **more,
        )
        for number, value in enumerate(right)
    ]


def flips_of(own: Sequence[TaskAnswer], base: Sequence[TaskAnswer]) -> TaskEstimate:
    return next(task for task in compare_tasks((), (), own, base) if task.task == "builtin")


def test_an_equal_twin_is_not_told_apart_in_twenty_repeats() -> None:
    """It answers 3 % of 220 questions anew, as a restart or another kernel may; and of twins that answer a tenth anew,
    no more are told apart than the test allows."""
    assert told_apart(0.03, repeats=20) == 0
    assert told_apart(0.1, repeats=400) <= 20  # 5 %; the test is exact, so it has less


def told_apart(anew: float, repeats: int) -> int:
    rng, told = np.random.default_rng(11), 0
    for _ in range(repeats):
        base = rng.random(220) < 0.6
        twin = np.where(rng.random(220) < anew, rng.random(220) < 0.6, base)
        found = flips_of(answers(twin.tolist()), answers(base.tolist()))
        assert found.flips is not None
        told += found.flips.p_value < 0.05
    return told


def test_a_variant_that_loses_a_tenth_of_the_answers_is_told_apart() -> None:
    rng = np.random.default_rng(12)
    base = rng.random(220) < 0.6
    worse = base & (rng.random(220) > 0.15)
    found = flips_of(answers(worse.tolist()), answers(base.tolist()))
    assert found.flips is not None
    assert found.flips.p_value < 0.001
    assert found.flips.gained == 0
    assert found.cut_share == pytest.approx(1 / 220)


def test_intervals_of_a_paired_difference_cover_the_truth() -> None:
    rng, hits = np.random.default_rng(5), 0
    for _ in range(400):
        base = rng.random(200) < 0.6
        other = np.where(base, rng.random(200) > 0.1, rng.random(200) < 0.05)
        found = flips_of(answers(other.tolist()), answers(base.tolist())).flips
        assert found is not None
        assert found.difference.interval is not None
        hits += (
            found.difference.interval.low
            <= -0.6 * 0.1 + 0.4 * 0.05
            <= found.difference.interval.high
        )
    assert hits >= 369  # 95 % of 400, less two and a half standard deviations


def summary() -> StudySummary:
    """Of 60 questions w8 answers as the baseline does, w4 loses 20; needles of 2,048 tokens among them."""
    right = {"bf16": [True] * 40, "w8": [True] * 40, "w4": [True] * 40}
    deep = {"bf16": [True] * 20, "w8": [True] * 20, "w4": [False] * 20}
    records = []
    for recipe in ("bf16", "w8", "w4"):
        said = [
            *answers(right[recipe]),
            *answers(deep[recipe], "builtin/needle-2048", length=2048, depth=50),
        ]
        records.append(record(recipe).model_copy(update={"task_answers": tuple(said)}))
    known = {"bf16": rows(logits(1)), "w8": rows(noisy(0.01)), "w4": rows(noisy(0.02))}
    return summarize(
        plan("bf16", "w8", "w4"), [], [], quality=records, scores_of=lambda one: known[one.id]
    )


def test_the_answer_says_who_answers_fewer_questions_right_and_from_which_length_on() -> None:
    said = [render_markdown_phrase(sentence) for sentence in iter_quality_sentences(summary())]
    assert any(
        "`w4` answers significantly fewer questions right than its baseline: 20 answers lost" in one
        for one in said
    )
    assert any(
        "`w8`: no significant difference from its baseline: 0 answers lost and 0 gained of 60"
        in one
        for one in said
    )
    assert "Long prompts: `w4` finds fewer needles than its baseline from 2,048 tokens on." in said
    section = build_quality_section(summary())
    assert section is not None
    text = "\n".join(render_markdown_section(section))
    assert "corrected for the number of variants (Holm)" in text
    assert "0 of 20" in text


def test_p_values_are_corrected_for_the_variants() -> None:
    found = {row.name: row.tasks for row in summary().quality}
    needle = next(task for task in found["m/w4 @ vllm"] if task.task == "builtin/needle-2048")
    assert needle.flips is not None
    assert needle.flips.p_value == pytest.approx(2 * compute_fair_coin_p_value(0, 20))


def test_needles_are_counted_by_length_and_depth() -> None:
    said = answers([True, False, True], "builtin/needle-256", length=256, depth=25)
    (cell,) = iter_needles(said)
    assert (cell.length, cell.depth, cell.found, cell.asked) == (256, 25, 2, 3)


def stretch(first: int, low: float) -> PositionDivergence:
    divergence = Estimate(value=0.5, low=low, high=1.0, confidence=0.95)
    return PositionDivergence(first=first, last=2 * first, divergence=divergence)


def test_the_place_from_which_on_a_variant_loses() -> None:
    assert (
        find_first_divergent_position([stretch(1, 0.0), stretch(64, 0.2), stretch(128, 0.2)], 0.1)
        == 64
    )
    assert (
        find_first_divergent_position([stretch(1, 0.2), stretch(64, 0.0), stretch(128, 0.2)], 0.1)
        == 128
    )
    assert find_first_divergent_position([stretch(1, 0.2), stretch(64, 0.0)], 0.1) is None
    assert find_first_divergent_position([stretch(1, 0.2)], 0.1) == 1


def test_tasks_and_lengths_of_a_study_file() -> None:
    asked = Quality.model_validate(
        {
            "lengths": [128, 1024],
            "windows": 16,
            "tasks": ["builtin", {"name": "gsm8k", "chat": True, "think": "strip"}],
        }
    )
    assert asked.window_counts == {128: 16, 1024: 4}
    assert (asked.window_tokens, asked.built_in) == (128, True)
    assert asked.lm_eval_tasks == (LmEvalTask(name="gsm8k", chat=True, think="strip"),)
    assert Quality.model_validate(asked.model_dump()) == asked
    assert Quality(tasks=("builtin",)).lm_eval_tasks == ()
    for wrong, words in (
        ({"lengths": [512, 256]}, "shortest first"),
        ({"lengths": [256, 512], "window_tokens": 64}, "leave `window_tokens` out"),
        ({"tasks": {"name": "gsm8k", "think": "strip"}}, "add `chat: true`"),
    ):
        with pytest.raises(ValueError, match=words):
            Quality.model_validate(wrong)
