"""Published shapes: what is known of a model of the hub before it is downloaded; that random weights are said."""

from pathlib import Path

import pytest

from bitbench.models import library
from bitbench.models.shapes import SHAPES, find_model_shape
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.study import build_study_report
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import ModelError
from tests.support.synthetic import make_lock, make_plan, summarize

# As the pages of these models on the hub say them.
PUBLISHED_PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "gemma-3-1b": 999_885_952,
}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_a_shape_has_the_parameters_of_the_published_model(name: str) -> None:
    assert SHAPES[name].facts.parameters == PUBLISHED_PARAMETERS[name]


def test_a_published_model_is_found_by_its_repository() -> None:
    found = find_model_shape("Qwen/Qwen3-4B")
    assert found is not None
    assert found.name == "qwen3-4b"
    assert not found.published_facts.random_weights
    assert find_model_shape("Qwen/Qwen3-4B-Base") is None


def test_a_model_of_the_hub_with_a_known_shape_is_planned_before_it_is_downloaded(
    tmp_path: Path,
) -> None:
    found = library.look_up_model("Qwen/Qwen3-4B@main", tmp_path)
    assert (found.name, found.path, found.facts.parameters) == (
        "Qwen3-4B",
        None,
        PUBLISHED_PARAMETERS["qwen3-4b"],
    )
    assert not found.facts.random_weights
    with pytest.raises(ModelError, match="bitbench model get Qwen/Unheard-Of"):
        library.look_up_model("Qwen/Unheard-Of", tmp_path)


@pytest.mark.parametrize(
    ("reference", "label"),
    [
        ("Qwen/Qwen3-8B-AWQ", "w4a16-g128-awq"),
        ("Qwen/Qwen2-72B-Instruct-GPTQ-Int8@main", "w8a16-g128-gptq"),
        ("Qwen/Qwen3-8B-FP8", "w8a8-fp8-b128x128"),
    ],
)
def test_a_published_checkpoint_is_what_its_name_promises(
    tmp_path: Path, reference: str, label: str
) -> None:
    found = library.look_up_model(reference, tmp_path)
    assert found.path is None
    assert found.quantization is not None
    assert found.quantization.label == label
    assert found.facts.quantization == found.quantization.method


def test_a_name_that_promises_nothing_has_to_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bitbench model get Somebody/Qwen3-8B-AWQ"):
        library.look_up_model("Somebody/Qwen3-8B-AWQ", tmp_path)


def test_the_report_says_that_weights_are_random() -> None:
    untrained = Variant(
        name="shape-x/bf16", model="shape:x", recipe="bf16", facts=ModelFacts(random_weights=True)
    )
    trained = untrained.model_copy(update={"name": "y/bf16", "model": "y", "facts": ModelFacts()})

    def report(*variants: Variant) -> str:
        plan = make_plan(["a"], [BUILT_IN_WORKLOADS["interactive"]]).model_copy(
            update={"variants": variants}
        )
        return render_markdown(build_study_report(summarize(plan, [], []), make_lock(plan)))

    assert "**Random weights:** bitbench filled `shape-x` with random numbers" in report(
        untrained, trained
    )
    assert "Random weights" not in report(trained)
