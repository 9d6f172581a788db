"""What runs where: the table, how a plan uses it, and that the document says the same."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from bitbench.cli.plan import iter_plan_remarks, make_plan_labels
from bitbench.models.library import ResolvedModel
from bitbench.models.quantized import Quantization
from bitbench.planning.compatibility import (
    CompatibilityRow,
    CompatibilityTable,
    load_compatibility_rows,
    look_up_compatibility,
)
from bitbench.planning.plan import plan_study_points
from bitbench.planning.variants import VariantStore
from bitbench.ports import Engine, Instance, Launch
from bitbench.quantize import catalog
from bitbench.study.hardware import Capability
from bitbench.study.plan import Plan, Support
from bitbench.study.recipe import Recipe
from bitbench.study.study import EngineSetup, Study
from bitbench.study.variant import AtLoad, ModelFacts, Variant
from bitbench.study.workload import Workload
from tests.command_line import bitbench

ROOT = Path(__file__).parents[2]
CAPABILITIES = [
    Capability(*numbers) for numbers in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
]
W8A8, W8A16 = "compressed-tensors/w8a8-int", "compressed-tensors/w8a16-int"


@pytest.mark.parametrize(
    ("recipe", "form"),
    [
        ("bf16", "dense"),
        ("w8a8-rtn", W8A8),
        ("w8a8-smooth-gptq", W8A8),
        ("w8a8-sparse-smooth-gptq", f"{W8A8}/sparse"),
        ("w8a16-sparse-awq", f"{W8A16}/sparse"),
        ("w4a16-awq", "compressed-tensors/w4a16-int"),
        ("fp8-dynamic", "compressed-tensors/w8a8-float"),
        ("fp8-static-kv", "compressed-tensors/w8a8-float/static"),
        ("fp8-block", "compressed-tensors/w8a8-float/block"),
        ("nvfp4", "compressed-tensors/w4a4-float/nvfp4"),
        ("nvfp4-gptq", "compressed-tensors/w4a4-float/nvfp4"),
        ("nvfp4a16", "compressed-tensors/w4a16-float/nvfp4"),
        ("mxfp4", "compressed-tensors/w4a4-float/mxfp4"),
        ("mxfp8", "compressed-tensors/w8a8-float/mxfp8"),
        ("w4afp8-gptq", "compressed-tensors/w4afp8-int"),
        ("vllm-fp8", "fp8_per_tensor"),
        ("gguf-iq3_xxs", "gguf"),
        ("torchao-int8wo", "torchao-int8wo"),
        ("gguf-bf16", "gguf/dense"),
        ("gguf-q8_0", "gguf"),
        ("openvino-bf16", "openvino/dense"),
        ("openvino-int4", "openvino"),
    ],
)
def test_the_form_is_what_an_engine_gets_to_load(recipe: str, form: str) -> None:
    assert catalog.find_recipe(recipe).form == form
    variant = Variant(name="v", model="m", recipe=recipe, form=form)
    assert variant.is_dense == (recipe in ("bf16", "gguf-bf16", "openvino-bf16"))


def test_every_built_in_recipe_is_known_on_every_engine_and_device() -> None:
    engines = {row.engine for row in load_compatibility_rows()}
    assert {"vllm", "transformers", "llamacpp"} <= engines
    for recipe in catalog.list_built_in_recipes():
        for engine in engines:
            assert look_up_compatibility(recipe.form, engine, "cpu", recipe.at_load), (
                f"{recipe.name} {engine}"
            )
            for capability in CAPABILITIES:
                row = look_up_compatibility(
                    recipe.form, engine, "cuda", recipe.at_load, capability=capability
                )
                assert row, f"{recipe.name} {engine} {capability}"


def verdict(form: str, engine: str = "vllm", device: str = "cpu") -> Support | None:
    row = look_up_compatibility(form, engine, device, capability=Capability(9, 0))  # type: ignore[arg-type]
    return row.verdict if row else None


def test_the_most_special_row_holds() -> None:
    assert verdict(W8A8) is Support.RUNS
    assert verdict(f"{W8A8}/sparse") is Support.RUNS_WITHOUT_SPEEDUP
    assert verdict(f"{W8A16}/sparse") is Support.DOES_NOT_RUN
    assert verdict(f"{W8A16}/sparse", device="cuda") is Support.RUNS_WITHOUT_SPEEDUP
    assert verdict("compressed-tensors/w4a8-int", "transformers") is Support.RUNS_WITHOUT_SPEEDUP
    assert verdict("gguf", "llamacpp") is Support.RUNS


def test_what_nobody_has_tried_is_not_known() -> None:
    assert verdict("compressed-tensors/w4a8-int") is None
    assert verdict("awq") is None
    assert verdict("dense", "somebody-elses-engine") is None


def test_what_one_engine_makes_while_it_loads_is_not_tried_on_another() -> None:
    row = look_up_compatibility(
        "torchao-int8wo",
        "somebody-elses-engine",
        "cpu",
        AtLoad(engine="transformers", quantize="x"),
    )
    assert row is not None
    assert row.refuse
    assert "Only transformers compresses it at load" in row.why


def test_a_table_that_contradicts_itself_is_not_read() -> None:
    row = {"form": "f", "engine": "e", "device": "cpu", "verdict": "runs", "checked": "x"}
    with pytest.raises(ValidationError, match="more than one row for f, e, cpu"):
        CompatibilityTable.model_validate({"rows": [row, row]})
    with pytest.raises(ValidationError, match="`why` is missing"):
        CompatibilityRow.model_validate(row | {"verdict": "does_not_run"})
    with pytest.raises(ValidationError, match="a form that runs cannot be refused"):
        CompatibilityRow.model_validate(row | {"refuse": True})


def test_a_row_may_hold_for_some_compute_capabilities_only() -> None:
    row = {"form": "f", "engine": "e", "device": "cuda", "verdict": "runs", "checked": "x"}
    table = CompatibilityTable.model_validate(
        {"rows": [row | {"capability": "<8.0"}, row | {"capability": ">=8.0 <8.9"}]}
    )
    assert [one.is_valid_for(Capability(8, 6)) for one in table.rows] == [False, True]
    assert [one.is_valid_for(Capability(7, 5)) for one in table.rows] == [True, False]
    assert not any(one.is_valid_for(Capability(10, 0)) for one in table.rows)
    assert not any(
        one.is_valid_for(None) for one in table.rows
    )  # an unknown device is not any device
    for other in ({"capability": ">=8.6"}, {}):
        with pytest.raises(ValidationError, match="more than one row for f, e, cuda"):
            CompatibilityTable.model_validate(
                {"rows": [row | {"capability": ">=8.0 <8.9"}, row | other]}
            )
    with pytest.raises(ValidationError, match="is not a range of compute capabilities"):
        CompatibilityRow.model_validate(row | {"capability": "8.0"})
    with pytest.raises(ValidationError, match="holds for no compute capability"):
        CompatibilityRow.model_validate(row | {"capability": ">=10.0 <9.0"})


class AnyEngine:
    """Refuses nothing itself."""

    environment: str | None = None
    needs_model = True
    start_s = 1.0

    def __init__(self, name: str) -> None:
        self.name = name

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        return None

    def start(self, launch: Launch) -> Instance:
        raise AssertionError("a plan starts nothing")


def plan_of(
    *recipes: str, on: Capability | None = None, args: dict[str, str] | None = None
) -> Plan:
    engines: dict[str, Engine] = {name: AnyEngine(name) for name in ("vllm", "transformers")}
    study = Study.model_validate(
        {
            "name": "x",
            "models": ["m"],
            "recipes": list(recipes),
            "engines": [{"name": "vllm", "engine": "vllm", "args": args or {}}, "transformers"],
            "workloads": ["interactive", "base"],
        }
    )

    def resolve(model: str, name: str) -> Variant:
        recipe = catalog.find_recipe(name)
        return Variant(
            name=f"{model}/{name}",
            model=model,
            recipe=name,
            form=recipe.form,
            at_load=recipe.at_load,
        )

    return plan_study_points(study, engines, resolve, "cuda" if on else "cpu", capability=on)


def test_a_plan_refuses_what_is_meaningless_and_tries_what_is_not_expected_to_run() -> None:
    plan = plan_of(
        "bf16", "w8a8-rtn", "w3a16-rtn", "w8a16-rtn", "w8a8-sparse-smooth-gptq", "torchao-int8wo"
    )
    tried = {config.name for config in plan.configs}
    assert tried == {
        "m/bf16 @ vllm", "m/w8a8-rtn @ vllm", "m/w3a16-rtn @ vllm", "m/w8a8-sparse-smooth-gptq @ vllm",
        "m/bf16 @ transformers", "m/torchao-int8wo @ transformers",
    }  # fmt: skip
    reasons = {refusal.point.name: refusal.reason for refusal in plan.refusals}
    assert len(reasons) == 6 * 2
    assert "uint8b128" in reasons["m/w8a16-rtn @ vllm · base"]
    assert "computes in bf16" in reasons["m/w8a8-rtn @ transformers · base"]
    assert "unquantized" in reasons["m/torchao-int8wo @ vllm · base"]
    expected = {one.config.name: one.verdict for one in plan.expectations}
    assert expected == {
        "m/w3a16-rtn @ vllm": Support.DOES_NOT_RUN,
        "m/w8a8-sparse-smooth-gptq @ vllm": Support.RUNS_WITHOUT_SPEEDUP,
        "m/torchao-int8wo @ transformers": Support.RUNS_WITHOUT_SPEEDUP,
    }


def test_a_plan_for_a_gpu_is_that_of_its_compute_capability() -> None:
    asked = ("bf16", "w8a8-rtn", "w4afp8-gptq", "mxfp4")

    def tried(on: Capability, args: dict[str, str] | None = None) -> set[str]:
        points = plan_of(*asked, on=on, args=args).points
        return {
            point.config.variant.removeprefix("m/")
            for point in points
            if point.config.engine == "vllm"
        }

    assert tried(Capability(7, 5)) == {"bf16", "w8a8-rtn"}
    assert tried(Capability(9, 0)) == set(asked)
    assert tried(Capability(10, 0)) == {"bf16", "mxfp4"}
    assert tried(Capability(10, 0), {"linear_backend": "triton"}) == {"bf16", "w8a8-rtn", "mxfp4"}


def test_the_engines_of_a_recipe_on_an_unknown_gpu_are_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = bitbench(capsys, "recipes", "--device", "cuda").out
    assert "of unknown compute capability: " in said
    line = next(line.split() for line in said.splitlines() if line.startswith("w4afp8-gptq"))
    assert "?" in line


def test_a_plan_says_each_reason_once_with_all_that_it_is_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(width=300, highlight=False)
    plan = plan_of("w8a8-rtn", "w4a16-rtn", "w3a16-rtn")
    for remark in iter_plan_remarks(plan, make_plan_labels(plan)):
        console.print(remark)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(":")[0] for line in lines[::2]] == [
        "refused",
        "tried once, unsupported is expected",
    ]
    assert lines[1] == "w8a8-rtn @ transformers, w4a16-rtn @ transformers, w3a16-rtn @ transformers"
    assert lines[3] == "w3a16-rtn @ vllm"


def store(
    monkeypatch: pytest.MonkeyPatch, facts: ModelFacts, quantization: Quantization | None = None
) -> VariantStore:
    found = ResolvedModel(
        "m",
        Path("/models/m"),
        facts,
        weight_bytes=1000,
        content_hash="00",
        quantization=quantization,
    )
    monkeypatch.setattr("bitbench.planning.variants.library.resolve", lambda *_: found)
    return VariantStore(Path("/home"), Path())


def test_a_recipe_of_the_engine_is_the_model_itself_and_what_to_do_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = store(monkeypatch, ModelFacts())
    plain, wo, da = (
        shop.variant("m", name) for name in ("bf16", "torchao-int8wo", "torchao-int8da-int8w")
    )
    assert plain.path == wo.path == da.path == Path("/models/m")
    assert (plain.form, plain.at_load) == ("dense", None)
    assert wo.form == "torchao-int8wo"
    assert wo.at_load == AtLoad(engine="transformers", quantize="torchao-int8wo")
    assert len({plain.content_hash, wo.content_hash, da.content_hash}) == 3


def test_a_folder_that_comes_quantized_is_known_by_its_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Quantization("compressed-tensors")
    shop = store(monkeypatch, ModelFacts(quantization=stored.method), stored)
    assert shop.variant("m", "bf16").form == "compressed-tensors"
    assert "this model is stored as compressed-tensors" in (
        shop.variant("m", "torchao-int8wo").refusal or ""
    )


@pytest.mark.parametrize(
    "options", [{}, {"engine": "transformers"}, {"engine": "x", "quantize": "y", "z": 1}]
)
def test_a_recipe_of_the_engine_says_who_and_how(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="which engine, and how"):
        Recipe.model_validate({"name": "x", "backend": "engine", "options": options})


def test_variants_that_only_refused_points_would_use_are_not_made() -> None:
    nothing_runs = plan_of("w8a8-rtn").model_copy(update={"points": ()})
    assert (
        VariantStore(Path("/home"), Path()).make_missing(nothing_runs, observer=None)
        == nothing_runs
    )  # type: ignore[arg-type]


def test_the_document_says_what_the_table_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "compatibility", "--check"], check=False
    )
    assert done.returncode == 0, "docs/recipes.md is not what scripts/compatibility writes"
