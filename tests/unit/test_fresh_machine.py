"""The first commands on a machine with no environment and no model: planning works, running says what is missing."""

import json
from pathlib import Path

import pytest

from bitbench.machine.workplace import Workplace
from bitbench.models.catalog import CATALOG
from bitbench.models.shapes import SHAPES, compute_tensor_bytes
from bitbench.planning.plan import plan_study
from bitbench.quantize import catalog
from bitbench.quantize.backends import guess_backend_s
from bitbench.study.study_file import format_starter, parse_study
from bitbench.util.errors import ExitCode
from tests.command_line import bitbench

NEEDED = ["bitbench env create quantize", "bitbench env create transformers", "bitbench env create vllm",
          "bitbench model get smollm2-135m"]  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))


def test_init_then_plan_works_and_names_every_command_that_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bitbench(capsys, "init").exit_code == 0
    answer = bitbench(capsys, "plan", "study.yaml")
    assert answer.exit_code == 0, answer.err
    assert "variant smollm2-135m/bf16: 257 MiB of weights, not downloaded" in answer.out
    assert "variants smollm2-135m/w8a8-rtn, smollm2-135m/w4a16-rtn: will be created" in answer.out
    assert " of it to create variants (a rough estimate): " in " ".join(answer.out.split())
    listed = answer.out.partition("Needed before `bitbench run`:")[2].splitlines()
    assert [line.strip() for line in listed if line.strip()] == NEEDED
    assert not Path("home").exists()  # nothing was made by looking


@pytest.mark.parametrize(
    ("device", "schedule", "takes_turns"),
    [
        ("cpu", "auto", True),
        ("cuda", "auto", False),
        ("cpu", "visits", False),
        ("cuda", "rounds", True),
    ],
)
def test_a_plan_says_whether_configs_take_turns(
    device: str,
    schedule: str,
    takes_turns: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "study.yaml"
    engines = "[{engine: null, name: a}, {engine: null, name: b}]"
    path.write_text(
        f"name: x\nengines: {engines}\nworkloads: [interactive]\nmeasure: {{schedule: {schedule}}}\n"
    )
    answer = bitbench(capsys, "plan", str(path), "--device", device)
    assert ("take turns" in answer.out) is takes_turns, answer.err
    assert ("one after the other" in answer.out) is not takes_turns


def test_a_plan_says_a_reason_once_and_what_is_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    studies = Path(__file__).parents[2] / "examples"
    shown = bitbench(capsys, "plan", str(studies / "cpu-shootout.yaml")).out
    assert "Model: smollm2-135m." in shown
    assert shown.count("vLLM no longer reads GGUF files") == 1
    assert "variants smollm2-135m/w8a8-rtn, smollm2-135m/w4a16-rtn, " in shown
    assert all(
        f"bitbench env create {name}" in shown
        for name in ("llamacpp", "quantize", "transformers", "vllm")
    )
    assert "16 of 42 points run in about " in shown
    assert ": at least 18 starts and 32 trials." in shown
    assert "long: " not in shown
    assert (
        "long: `measure: {budget: 2h}`"
        in bitbench(capsys, "plan", str(studies / "gpu" / "speed-by-length-7b.yaml")).out
    )
    quality = bitbench(capsys, "plan", str(studies / "behaviour.yaml")).out
    assert "The quality of 7 configs is measured in about " in quality


def test_a_plan_says_once_that_weights_were_rounded_before_where_it_measures_quality(
    capsys: pytest.CaptureFixture[str],
) -> None:
    studies = Path(__file__).parents[2] / "examples"
    rounded = "The linear layers of smollm2-135m had been rounded to 4 bits (Q4_1) before they were written as bf16"
    quality = " ".join(bitbench(capsys, "plan", str(studies / "behaviour.yaml")).out.split())
    assert quality.count(rounded) == 1
    speed = " ".join(bitbench(capsys, "plan", str(studies / "first-look.yaml")).out.split())
    assert rounded not in speed


def test_the_plan_as_json_has_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    bitbench(capsys, "init")
    printed = json.loads(bitbench(capsys, "plan", "study.yaml", "--json").out)["answer"]
    assert printed["before_run"] == NEEDED
    assert printed["missing_models"] == ["smollm2-135m"]
    made = 2 * guess_backend_s(
        catalog.find_recipe("w8a8-rtn"), CATALOG["smollm2-135m"].facts.parameters or 0
    )
    assert printed["amount"]["making_s"] == pytest.approx(made)
    assert printed["amount"]["seconds"][0] > made


def test_run_refuses_in_one_sentence_with_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    bitbench(capsys, "init")
    answer = bitbench(capsys, "run", "study.yaml")
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert f"this study cannot run yet; first: {' && '.join(NEEDED)}" in answer.err
    assert not Path("my-study").exists()


def test_the_starter_compares_quantized_recipes_and_refuses_no_point() -> None:
    study = parse_study(format_starter("cpu"), name="starter")
    assert len(study.recipes) > 1
    plan = plan_study(study, Workplace(Path("home")))
    assert not plan.refusals
    assert {point.config.variant for point in plan.points} == {
        f"smollm2-135m/{recipe}" for recipe in study.recipes
    }


def test_a_recipe_is_checked_without_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    steps = "[{step: quantize, weight_bits: 4, group_size: 128}]"
    Path("mine.yaml").write_text(f"name: mine\nbackend: llmcompressor\nsteps: {steps}\n")
    Path("study.yaml").write_text(format_starter("cpu").replace("w4a16-rtn]", "./mine.yaml]"))
    said = " ".join(bitbench(capsys, "plan", "study.yaml").out.split())
    assert "group_size 128 does not divide the 576 columns" in said
    assert "sizes that divide them: 16, 32, 64." in said
    assert "variant smollm2-135m/mine: cannot be created" in said


def test_the_catalog_knows_its_models_by_consistent_facts() -> None:
    for model in CATALOG.values():
        stored_bytes = compute_tensor_bytes(SHAPES[model.name].tensors)
        assert stored_bytes == 2 * (model.facts.parameters or 0)
        assert stored_bytes < model.weight_bytes < 1.001 * stored_bytes  # and a header
