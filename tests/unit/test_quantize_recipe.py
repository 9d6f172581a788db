"""Recipes: the built-in ones, and messages about wrong ones."""

from pathlib import Path

import pytest

from bitbench.quantize import catalog
from bitbench.study.recipe import Backend, Recipe
from bitbench.study.variant import AtLoad
from bitbench.util.errors import RecipeError

NAMES = (
    "w8a8-rtn", "w8a8-smooth-ptq", "w8a8-smooth-gptq", "w8a8-sparse-smooth-gptq",
    "w8a16-rtn", "w8a16-gptq", "w8a16-awq", "w8a16-smooth-awq", "w8a16-sparse-awq",
    "w4a16-rtn", "w4a16-gptq", "w4a16-awq", "w3a16-rtn", "w2a16-rtn", "fp8-dynamic",
)  # fmt: skip
RTN = "name: mine\nsteps:\n  - step: quantize\n    weight_bits: 8\n"


def complaint(tmp_path: Path, text: str) -> str:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        catalog.find_recipe(str(path))
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_recipe_does_what_its_name_says(name: str) -> None:
    recipe = catalog.find_recipe(name)
    assert (recipe.name, recipe.backend) == (name, Backend.LLMCOMPRESSOR)
    steps = [step.step for step in recipe.steps]
    for word, step in {
        "smooth": "smoothquant",
        "sparse": "sparsegpt",
        "awq": "awq",
        "gptq": "gptq",
    }.items():
        assert (step in steps) == (word in name.split("-"))
    assert recipe.needs_calibration == (steps != ["quantize"])
    assert recipe.scheme is not None
    bits = (recipe.scheme.weight_bits, recipe.scheme.activation_bits)
    known = {
        "w8a8": (8, 8),
        "w8a16": (8, 16),
        "w4a16": (4, 16),
        "w3a16": (3, 16),
        "w2a16": (2, 16),
        "fp8": (8, 8),
    }
    assert bits == known[name.partition("-")[0]]
    assert recipe.scheme.type == ("float" if name.startswith("fp8") else "int")
    assert recipe.scheme.group_size == (64 if name.startswith(("w4", "w3", "w2")) else None)


@pytest.mark.parametrize(
    ("name", "preset", "numbers", "needs_text"),
    [
        ("fp8-block", "FP8_BLOCK", (8, 8, "float", None), False),
        ("fp8-static-kv", "FP8", (8, 8, "float", None), True),
        ("nvfp4", "NVFP4", (4, 4, "float", 16), True),
        ("nvfp4-awq", "NVFP4", (4, 4, "float", 16), True),
        ("nvfp4-gptq", "NVFP4", (4, 4, "float", 16), True),
        ("nvfp4a16", "NVFP4A16", (4, 16, "float", 16), False),
        ("mxfp4", "MXFP4", (4, 4, "float", 32), False),
        ("mxfp4a16", "MXFP4A16", (4, 16, "float", 32), False),
        ("mxfp8", "MXFP8", (8, 8, "float", 32), False),
        ("w4afp8-gptq", "W4AFP8", (4, 8, "int", 128), True),
    ],
)
def test_a_recipe_with_a_preset_means_what_compressed_tensors_means(
    name: str, preset: str, numbers: tuple[int, int, str, int | None], needs_text: bool
) -> None:
    recipe = catalog.find_recipe(name)
    scheme = recipe.scheme
    assert scheme is not None
    assert (scheme.preset, scheme.kv_cache) == (preset, "fp8" if name == "fp8-static-kv" else None)
    assert (scheme.weight_bits, scheme.activation_bits, scheme.type, scheme.group_size) == numbers
    assert recipe.needs_calibration is needs_text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            "preset: NVFP4\n    weight_bits: 8",
            "preset: NVFP4 means weight_bits: 4; remove weight_bits",
        ),
        (
            "preset: MXFP8\n    symmetric: false",
            "preset: MXFP8 has no zero points; remove symmetric: false",
        ),
        ("weight_bits: 4\n    type: float", "or with a preset"),
        (
            "weight_bits: 8\n    activation_bits: 4",
            "activation_bits: 4 goes with a preset, such as NVFP4",
        ),
        ("preset: NVFP8", "preset"),
    ],
)
def test_a_preset_that_is_contradicted_is_told_what_it_means(
    tmp_path: Path, fields: str, said: str
) -> None:
    assert said in complaint(tmp_path, f"name: mine\nsteps:\n  - step: quantize\n    {fields}\n")


@pytest.mark.parametrize("name", ["q4_k_m-imatrix", "iq4_xs-imatrix", "iq3_xxs", "iq2_xs"])
def test_a_gguf_recipe_with_an_importance_matrix_needs_text(name: str) -> None:
    recipe = catalog.find_recipe(f"gguf-{name}")
    assert recipe.gguf_type == name.removesuffix("-imatrix").upper()
    assert recipe.has_imatrix
    assert recipe.needs_calibration


def test_a_gguf_type_that_needs_an_importance_matrix_says_so(tmp_path: Path) -> None:
    said = complaint(tmp_path, "name: mine\nbackend: gguf\noptions: {type: IQ2_XS}\n")
    assert "type: IQ2_XS needs `imatrix: true` beside it" in said
    said = complaint(tmp_path, "name: mine\nbackend: gguf\noptions: {type: BF16, imatrix: true}\n")
    assert "type: BF16 is not quantized; remove imatrix" in said


@pytest.mark.parametrize("name", ["bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"])
def test_a_gguf_recipe_is_named_for_its_type(name: str) -> None:
    recipe = catalog.find_recipe(f"gguf-{name}")
    assert (recipe.backend, recipe.gguf_type) == (Backend.GGUF, name.upper())
    assert not recipe.needs_calibration
    assert recipe.scheme is None


@pytest.mark.parametrize(
    "options", ["{}", "{type: Q3_X}", "{type: q8_0}", "{type: Q8_0, threads: 2}"]
)
def test_a_gguf_recipe_with_other_options_is_told_the_types(tmp_path: Path, options: str) -> None:
    said = complaint(tmp_path, f"name: mine\nbackend: gguf\noptions: {options}\n")
    assert "`options` of backend: gguf are {type: …}, one of BF16, F16, Q8_0, Q6_K" in said


MIXED = "name: mixed\nbackend: gguf\noptions: {type: Q8_0}\ntensors:\n  - {match: 'ffn_down\\.weight$', type: Q4_k}\n"


def test_a_gguf_recipe_may_name_types_of_tensors(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(MIXED)
    recipe = catalog.find_recipe("r.yaml", tmp_path)
    assert [(rule.match, rule.type) for rule in recipe.tensors] == [(r"ffn_down\.weight$", "q4_K")]
    assert recipe.form == "gguf"
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Q4_k", "q4_z", "no type of GGUF tensors is called 'q4_z'"),
        ("ffn_down", "(ffn_down", "is not a regular expression"),
        ("ffn_down", "FFN", "reads no pattern with spaces, = or capital letters"),
        ("ffn_down", "(" * 3000 + ")" * 3000, "is not a regular expression"),
        ("Q8_0", "BF16", "`tensors` are for backend: gguf with a type that quantizes"),
        (
            "backend: gguf\noptions: {type: Q8_0}",
            "backend: none",
            "`tensors` are for backend: gguf",
        ),
    ],
)
def test_wrong_types_of_tensors_are_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in complaint(tmp_path, MIXED.replace(old, new))


def test_every_built_in_file_is_named_like_its_recipe() -> None:
    for recipe in catalog.list_built_in_recipes():
        assert catalog.find_built_in_recipe_file(recipe.name).stem == recipe.name
        assert recipe.description


def test_bf16_leaves_the_model_alone() -> None:
    assert catalog.find_recipe("bf16").backend is Backend.NONE


def test_a_recipe_for_the_engine_carries_its_options() -> None:
    options = {"engine": "transformers", "quantize": "int4"}
    recipe = Recipe.model_validate({"name": "x", "backend": "engine", "options": options})
    assert recipe.at_load == AtLoad(engine="transformers", quantize="int4")
    assert recipe.scheme is None
    assert not recipe.needs_calibration


def test_a_copy_with_a_change_is_read_relative_to_the_study(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RTN)
    assert catalog.find_recipe("mine.yaml", tmp_path).name == "mine"


def test_the_source_of_the_text_counts_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RTN + "calibration: {source: text/a.txt}\n")
    assert (
        catalog.find_recipe("mine.yaml", tmp_path).calibration.source == tmp_path / "text" / "a.txt"
    )


def test_a_misspelt_field_of_a_step_gets_its_line_and_what_is_known(tmp_path: Path) -> None:
    message = complaint(tmp_path, RTN + "    group_sise: 64\n")
    assert message.startswith(
        "r.yaml:5: steps[0].group_sise: unknown field; did you mean `group_size`?"
    )
    assert "activation_bits" in message
    assert "strength" not in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            RTN.replace("8\n", "5\n"),
            "r.yaml:4: steps[0].weight_bits: input should be 2, 3, 4 or 8, but it is 5",
        ),
        (RTN.replace("quantize", "quantise"), "r.yaml:3: steps[0]: `step` must be one of awq"),
        (
            "name: x\nsteps:\n  - weight_bits: 8\n",
            "r.yaml:3: steps[0]: `step` must be one of awq, gptq, quantize, smoothquant, sparsegpt",
        ),
        (
            "name: x\nsteps:\n  - step: awq\n",
            "the last step, and no other, must be `quantize` or `gptq`",
        ),
        (
            "name: x\nsteps:\n  - step: quantize\n",
            "r.yaml:3: the field `weight_bits` is missing in `steps[0]`",
        ),
        (RTN + "    type: float\n    group_size: 64\n", "type: float goes with"),
        (RTN + "backend: gguf\n", "`steps` are for backend: llmcompressor"),
        (
            RTN + "options: {a: 1}\n",
            "`options` are for other backends; write fields into the steps",
        ),
        (
            RTN + "backend: magic\n",
            "backend: input should be 'none', 'llmcompressor', 'gguf', 'openvino' or 'engine', but it is 'magic'",
        ),
        (
            "name: x\nbackend: openvino\n",
            "`options` of backend: openvino are {type: …}, one of bf16, int8, int4",
        ),
        ("name: x\nbackend: openvino\noptions: {type: int3}\n", "one of bf16, int8, int4"),
        (
            "name: x\nbackend: openvino\noptions: {type: int8, group_size: 64}\n",
            "group_size goes with type: int4",
        ),
        (
            "name: x\nbackend: openvino\noptions: {type: int4}\n",
            "type: int4 needs `group_size: 64`",
        ),
        (RTN.replace("mine", "w8a8-rtn"), "is a built-in recipe with other content"),
        ("- a\n", "a recipe is a mapping"),
    ],
)
def test_complaints(tmp_path: Path, text: str, part: str) -> None:
    assert part in complaint(tmp_path, text)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean `w4a16-gptq`\?"):
        catalog.find_recipe("w4a16-gptk")
    with pytest.raises(RecipeError, match="no recipe file"):
        catalog.find_recipe("nowhere.yaml")
