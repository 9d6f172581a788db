"""Models of different sizes are never ranked against each other: ranks, baselines and answers are per model."""

import itertools

import pytest

from bitbench.analysis.ranking import list_model_groups
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.recommendation import Limits
from bitbench.reports.answers.recommend import build_recommendation
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.files import iter_figures
from bitbench.reports.study import build_study_report
from bitbench.study.variant import Variant
from tests.support.eight_configs import MODEL, RECIPES, eight_configs, eight_summary
from tests.support.synthetic import make_lock, summarize

TINY = "tiny-2m"  # twenty times as fast


def test_ranks_and_ratios_are_among_configs_of_one_model() -> None:
    summary = eight_summary((MODEL, TINY))
    assert [(one.workload, one.model) for one in summary.rankings[:2]] == [
        ("c1", MODEL),
        ("c1", TINY),
    ]
    for ranking in summary.rankings:
        assert len(ranking.entries) == 2 * len(RECIPES)
        assert {entry.config.variant.partition("/")[0] for entry in ranking.entries} == {
            ranking.model
        }
        assert ranking.baseline is not None
        assert ranking.baseline.name == f"{ranking.model}/bf16 @ vllm"
        best = ranking.entries[0]
        assert best.rank_low == 1
        assert best.ratio_to_baseline is not None
        assert best.ratio_to_baseline.value == pytest.approx(1.33, abs=0.02)


def test_each_model_has_the_ranks_that_it_would_have_alone() -> None:
    def ranks(model: str, *models: str) -> list[tuple[str, int | None, int | None]]:
        own = (one for one in eight_summary(models).rankings if one.model in (None, model))
        return [
            (entry.config.name, entry.rank_low, entry.rank_high)
            for one in own
            for entry in one.entries
        ]

    assert ranks(MODEL, MODEL, TINY) == ranks(MODEL, MODEL)


def test_another_model_is_compared_with_the_same_recipe_on_the_same_engine() -> None:
    plan, _, _ = eight_configs((MODEL, TINY))
    assert [field.baseline and field.baseline.name for field in list_model_groups(plan)] == [
        f"{MODEL}/bf16 @ vllm",
        f"{TINY}/bf16 @ vllm",
    ]
    without = plan.model_copy(
        update={"points": tuple(one for one in plan.points if one.config.variant != f"{TINY}/bf16")}
    )
    assert [field.baseline and field.baseline.name for field in list_model_groups(without)][
        1
    ] == f"{TINY}/w8a8-rtn @ vllm"


def test_a_report_answers_model_by_model() -> None:
    plan, trials, instances = eight_configs((MODEL, TINY))
    summary = summarize(plan, trials, instances)
    document = build_study_report(summary, make_lock(plan))
    text = render_markdown(document)
    assert f"**`{MODEL}`: **" in text or f"**`{MODEL}`:**" in text
    assert text.count("Use `w8a8-gptq @ vllm` or `w8a8-rtn @ vllm` (undecided between them)") == 2
    assert "Models are not compared with each other" in text
    assert f"## Workload `c1`, `{TINY}`" in text
    names = [figure.name for figure in iter_figures(document)]
    assert len(set(names)) == len(names)
    assert "26.6×" not in text  # the tiny one against the other's baseline


def test_a_recommendation_is_made_for_each_model() -> None:
    found = recommend(eight_summary((MODEL, TINY)), Limits(), workloads=["c1"])
    assert [
        (one.model, one.chosen and one.chosen.variant.partition("/")[0]) for one in found.choices
    ] == [
        (MODEL, MODEL),
        (TINY, TINY),
    ]
    text = render_markdown(build_recommendation(found))
    assert f"the output throughput of the baseline `{TINY}/bf16 @ vllm`" in text


@pytest.mark.parametrize(
    ("one", "other", "compared"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct-AWQ", True),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-72B-Instruct", False),
        ("w8a8_smooth_ptq", "original", True),
        ("llama-2-7b.Q4_0.gguf", "llama-2-13b.Q4_0.gguf", False),
    ],
)
def test_imports_that_name_no_model_are_told_apart_by_the_size_in_their_names(
    one: str, other: str, compared: bool
) -> None:
    first, second = (
        Variant(name=name, model=name, recipe="unknown").compared_as for name in (one, other)
    )
    assert (first == second) is compared


def test_an_import_of_single_runs_claims_no_rank() -> None:
    plan, trials, _ = eight_configs()
    first = [trial for trial in trials if trial.block == 0 and trial.index == 0]
    entries = itertools.chain.from_iterable(
        one.entries for one in summarize(plan, first, []).rankings
    )
    assert {(entry.rank_low, entry.rank_high, entry.undecided_with) for entry in entries} == {
        (None, None, ())
    }
