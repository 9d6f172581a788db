"""`bitbench mix`: which tensors go together, what is measured, which types are chosen, and what is said of it."""

import io
import itertools
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.cli.json_answers import format_json_answer, make_answer_schema
from bitbench.features.mix.choice import (
    BITS,
    DIVERGENCE,
    TIME,
    Swap,
    choose_mix,
    collect_options,
    compute_ceilings,
    estimate_weight_times,
    group_tensors,
    judge_mix,
    list_swaps,
    list_wrong_tensors,
    make_mixed_recipe,
    plan_uniform,
    predict_mix,
)
from bitbench.features.mix.types import (
    MixLimits,
    MixSide,
    Mixture,
    Predicted,
    TensorGroup,
    parse_mix_limits,
)
from bitbench.features.mix.words import build_mixture_document
from bitbench.quality.material import cut_windows
from bitbench.quantize import catalog
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.study.quality import Quality
from bitbench.study.recipe import TensorRule
from bitbench.study.variant import find_tensor_type
from bitbench.util.errors import ExitCode, RecipeError, UsageError
from tests.command_line import bitbench
from tests.features.mix.mixtures import (
    HIDDEN,
    TENSORS,
    TYPES,
    VOCABULARY,
    WEIGHT_S,
    layer,
    measured_swaps,
    mixture,
    model_groups,
    step_s,
    tensor,
    timed,
    true_divergence,
)


def named(groups: tuple[TensorGroup, ...]) -> dict[str, TensorGroup]:
    return {group.label: group for group in groups}


def test_tensors_that_engines_fuse_are_one_group_in_each_band() -> None:
    groups = named(model_groups())
    assert list(groups) == [
        "token_embd",
        *("attn_qkv 0", "attn_output 0", "ffn_gate_up 0", "ffn_down 0"),
        *("attn_qkv 1", "attn_output 1", "ffn_gate_up 1", "ffn_down 1"),
    ]
    assert groups["attn_qkv 0"].tensors == tuple(f"blk.0.attn_{name}.weight" for name in "qkv")
    assert groups["attn_qkv 0"].weights == HIDDEN * (HIDDEN + 2 * HIDDEN // 3)
    assert sum(group.weights for group in groups.values()) == sum(
        one.weights for one in TENSORS if one.type == "bf16"
    )


def test_a_type_is_offered_where_rows_fill_its_blocks() -> None:
    groups = named(model_groups())
    assert groups["ffn_down 1"].types == ("q4_0", "q4_K", "q8_0")
    assert groups["attn_qkv 1"].types == ("q4_0", "q8_0")  # 576 columns are no blocks of 256
    with pytest.raises(
        RecipeError, match=r"no type fits token_embd\.weight, whose rows have 576 weights; add q8_0"
    ):
        model_groups(types=("q4_K", "q6_K"))


def test_there_are_four_bands_of_layers_that_differ_by_one_at_most() -> None:
    groups = group_tensors([one for number in range(10) for one in layer(number)], TYPES)
    bands = [group for group in groups if group.kind == "ffn_down"]
    assert sorted(len(group.tensors) for group in bands) == [2, 2, 3, 3]
    assert [group.layers for group in bands] == ["0–2", "3–4", "5–7", "8–9"]


def test_a_table_in_which_tokens_are_only_looked_up_costs_no_time() -> None:
    untied = [*TENSORS, tensor("output.weight", HIDDEN, VOCABULARY)]
    groups = named(group_tensors(untied, TYPES))
    assert not groups["token_embd"].is_multiplied
    assert groups["output"].is_multiplied
    assert named(model_groups())["token_embd"].is_multiplied  # the same matrix is the last one


def matching(rules: tuple[TensorRule, ...], name: str) -> str:
    """As llama-quantize reads them: the first that is found in a name."""
    return next(rule.type for rule in rules if re.search(rule.match, name))


def test_the_recipe_of_a_mix_gives_each_tensor_its_type(tmp_path: Path) -> None:
    groups = model_groups()
    types = {group: group.types[number % len(group.types)] for number, group in enumerate(groups)}
    recipe = make_mixed_recipe("mix-1", types)
    for group, type in types.items():
        assert {matching(recipe.tensors, name) for name in group.tensors} == {type}
    assert matching(recipe.tensors, "blk.10.ffn_down.weight") == "bf16"  # 1 is not 10
    (tmp_path / "mix.yaml").write_text(catalog.format_recipe_file(recipe))
    assert catalog.find_recipe("mix.yaml", tmp_path) == recipe


def test_a_file_with_another_type_than_asked_for_is_noticed() -> None:
    types = dict.fromkeys(model_groups(), "q8_0")
    made = [tensor(one.name, *one.shape, type="q8_0") for one in TENSORS if one.type == "bf16"]
    assert list_wrong_tensors(made, types) == []
    made[3] = tensor(made[3].name, *made[3].shape, type="q5_0")
    assert list_wrong_tensors(made[:-1], types) == [
        f"{made[3].name} is q5_0, not q8_0",
        f"{made[-1].name} is missing, not q8_0",
    ]


def test_each_group_is_swapped_alone_in_its_smallest_type_and_each_kind_in_the_others() -> None:
    swaps = [swap.name for swap in list_swaps(model_groups())]
    assert len(swaps) == len(set(swaps)) == len(model_groups()) + 6
    for rest in ("0to0-q4_0", "1to1-q4_0", "0to1-q4_K", "0to1-q8_0"):
        assert f"swap-ffn_down-{rest}" in swaps
    assert {name for name in swaps if "attn_qkv" in name} == {
        f"swap-attn_qkv-{rest}" for rest in ("0to0-q4_0", "1to1-q4_0", "0to1-q8_0")
    }


def test_one_type_everywhere_is_the_next_larger_one_where_it_does_not_fit() -> None:
    models = plan_uniform(model_groups(), TYPES)
    assert set(models["q4_0"].values()) == {"q4_0"}
    assert {group.kind: type for group, type in models["q4_K"].items()} == {
        "ffn_down": "q4_K",
        **dict.fromkeys(("token_embd", "attn_qkv", "attn_output", "ffn_gate_up"), "q8_0"),
    }
    attention = [group for group in model_groups() if group.kind == "attn_qkv"]
    assert list(plan_uniform(attention, TYPES)) == ["q4_0", "q8_0"]


def test_the_time_of_a_weight_follows_from_one_model_per_type() -> None:
    assert timed(model_groups()) == pytest.approx(WEIGHT_S)


def test_no_time_of_a_weight_is_below_zero() -> None:
    groups = model_groups()
    models = plan_uniform(groups, TYPES)
    noisy = [
        (types, step_s(types) * (0.5 if type == "q4_K" else 1.0)) for type, types in models.items()
    ]
    assert min(estimate_weight_times(noisy).values()) >= 0


def test_a_kind_that_was_measured_as_a_whole_is_divided_like_its_smallest_type() -> None:
    groups = model_groups()
    options = collect_options(groups, measured_swaps(groups), timed(groups))
    for group, own in options.items():
        assert [option.type for option in own] == list(group.types)
        for option in own:
            assert option.divergence == pytest.approx(true_divergence(group, option.type))
            assert option.step_s == pytest.approx(group.weights * WEIGHT_S[option.type])
            assert option.size_bytes == find_tensor_type(option.type).count_bytes(group.weights)


def test_a_type_that_loses_nothing_divides_by_weights() -> None:
    first, second = (group for group in model_groups() if group.kind == "ffn_down")
    measured = {Swap((group,), "q4_0"): 0.0 for group in (first, second)}
    measured |= {Swap((first, second), type): 0.01 for type in ("q4_K", "q8_0")}
    options = collect_options((first, second), measured, WEIGHT_S)
    assert options[first][1].divergence == pytest.approx(0.005)


def everything(groups: tuple[TensorGroup, ...]) -> list[tuple[float, float, float]]:
    """Divergence, time and bits of every mix there is."""
    weights = sum(group.weights for group in groups)
    found = []
    for types in itertools.product(*(group.types for group in groups)):
        chosen = list(zip(groups, types, strict=True))
        bits = (
            8
            * sum(find_tensor_type(type).count_bytes(group.weights) for group, type in chosen)
            / weights
        )
        found.append(
            (
                sum(true_divergence(group, type) for group, type in chosen),
                step_s(dict(chosen)),
                bits,
            )
        )
    return found


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_choice_is_the_best_of_all_mixes(share: float) -> None:
    groups = model_groups()
    options = collect_options(groups, measured_swaps(groups), timed(groups))
    all_ = np.array(everything(groups))
    low, high = all_.min(axis=0), all_.max(axis=0)
    limit = low + share * (high - low)
    slack = 1 + 1e-7  # sums in another order

    def best(aim: int, *limited: int) -> float:
        within = np.all([all_[:, one] <= limit[one] * slack for one in limited], axis=0)
        return float(all_[within, aim].min())

    def found(ceilings: dict[str, float]) -> Predicted:
        return predict_mix(choose_mix(options, ceilings))

    fast = found({TIME: float(limit[1]) * slack})
    assert fast.divergence == pytest.approx(best(0, 1))
    assert fast.step_s <= limit[1] * slack
    small = found({BITS: float(limit[2]) * slack})
    assert small.divergence == pytest.approx(best(0, 2))
    good = found({DIVERGENCE: float(limit[0]) * slack})
    assert good.step_s == pytest.approx(best(1, 0))
    both = found({TIME: float(limit[1]) * slack, BITS: float(limit[2]) * slack})
    assert both.divergence == pytest.approx(best(0, 1, 2))


def test_a_limit_that_no_mix_meets_is_told_with_the_least_there_is() -> None:
    groups = model_groups()
    options = collect_options(groups, measured_swaps(groups), timed(groups))
    with pytest.raises(
        UsageError, match=r"the least of each alone is 4\.5 bits per weight; add other types"
    ):
        choose_mix(options, {BITS: 3.0})
    least = step_s(dict.fromkeys(groups, "q4_0"))
    with pytest.raises(UsageError, match=r"nats, .* s per step"):
        choose_mix(options, {DIVERGENCE: 0.01, TIME: 1.001 * least})


def test_what_is_predicted_keeps_a_reserve_and_what_is_counted_does_not() -> None:
    limits = MixLimits(speed="gguf-q4_k_m", bits=5.0, divergence="gguf-q4_k_m")
    found = compute_ceilings(limits, 0.01, 0.02)
    assert found == {DIVERGENCE: pytest.approx(0.0196), TIME: pytest.approx(0.0098), BITS: 5.0}
    assert compute_ceilings(MixLimits(divergence=0.1), 0.01, 0.02) == {
        DIVERGENCE: pytest.approx(0.098)
    }


def test_limits_are_read_as_a_person_writes_them() -> None:
    assert parse_mix_limits(["speed=gguf-q4_k_m", "bits=4.8"]) == MixLimits(
        speed="gguf-q4_k_m", bits=4.8
    )
    assert parse_mix_limits(["divergence=0.02"]).divergence == 0.02
    assert parse_mix_limits(["divergence=gguf-q5_k_m"]).reference == "gguf-q5_k_m"
    assert MixLimits(bits=5).reference == "gguf-q4_k_m"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--limit", "fast"), "'fast' is no limit; write speed=RECIPE"),
        (("--limit", "bits=4", "--limit", "bits=5"), "bits is limited twice"),
        (("--limit", "divergence=-1"), "a limit lies above 0"),
        (
            ("--limit", "speed=gguf-q4_k_m", "--limit", "divergence=gguf-q5_k_m"),
            "limits name one recipe",
        ),
        (("--limit", "bits=5", "--types", "q4_0"), "give two types or more"),
        (("--limit", "bits=5", "--types", "q4_0,f16"), "f16 is not quantized"),
        (("--limit", "bits=5", "--types", "q4_0,q9"), "no type of GGUF tensors is called 'q9'"),
        (("--limit", "speed=gguf-q4_k"), "'gguf-q4_k' is not a recipe"),
    ],
)
def test_what_cannot_be_looked_for_is_said(
    options: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    answer = bitbench(capsys, "mix", "smollm2-135m", *options)
    assert answer.exit_code == ExitCode.USAGE
    assert said in " ".join(answer.err.split())


def test_fresh_text_lies_between_that_of_the_single_swaps() -> None:
    parts = [list(range(1000)), list(range(5000, 5600))]
    seen = {token for window in cut_windows(parts, 8, 10, []) for token in window}
    fresh = cut_windows(parts, 16, 10, [], offset=0.5)
    assert len(fresh) == 16
    assert not seen & {token for window in fresh for token in window}
    assert Quality().offset == 0.0


def verdict_of(
    limits: MixLimits, mix: MixSide, speed: Estimate | None = None, beside: Estimate | None = None
) -> Verdict:
    (finding,) = judge_mix(limits, mix, speed, beside)
    return finding.verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.05, Verdict.MET), (1.0, Verdict.INCONCLUSIVE), (0.95, Verdict.MISSED)]
)
def test_a_limit_of_speed_is_held_against_the_interval(value: float, verdict: Verdict) -> None:
    confirmed = mixture(speed=value).confirmed
    assert verdict_of(MixLimits(speed="x"), confirmed.mix, confirmed.speed) is verdict
    assert verdict_of(MixLimits(speed="x"), confirmed.mix, None) is Verdict.INCONCLUSIVE


def test_limits_of_divergence_and_of_bits() -> None:
    confirmed = mixture().confirmed
    side = confirmed.mix.model_copy(update={"bits": 5.0})
    assert verdict_of(MixLimits(divergence=0.03), side) is Verdict.MET
    assert verdict_of(MixLimits(divergence=0.021), side) is Verdict.INCONCLUSIVE
    assert verdict_of(MixLimits(divergence=0.01), side) is Verdict.MISSED
    assert verdict_of(MixLimits(divergence="x"), side, beside=confirmed.difference) is Verdict.MET
    assert verdict_of(MixLimits(bits=5.0), side) is Verdict.MET
    assert verdict_of(MixLimits(bits=4.99), side) is Verdict.MISSED


@pytest.mark.parametrize(
    ("speed", "code"),
    [(1.05, ExitCode.DONE), (1.0, ExitCode.INCONCLUSIVE), (0.9, ExitCode.FAILED)],
)
def test_the_exit_code_is_that_of_the_limits(speed: float, code: ExitCode) -> None:
    assert mixture(speed=speed).exit_code is code


def terminal_text(found: Mixture, width: int = 100) -> str:
    screen = io.StringIO()
    render_in_terminal(build_mixture_document(found), Console(file=screen, width=width))
    return " ".join(screen.getvalue().split())


def test_the_answer_says_what_to_use_and_what_it_asks_for() -> None:
    said = terminal_text(mixture())
    assert "the least divergence of small in q4_0, q4_K, q8_0, with speed=gguf-q4_k_m." in said
    assert (
        "Use mix-12345678. In a fresh study, it decodes at 1.02× [1.01, 1.03] the speed of gguf-q4_k_m"
        in said
    )
    assert "recipes: [out/mix-12345678.yaml]" in said


@pytest.mark.parametrize(
    ("speed", "head"),
    [
        (0.9, "mix-12345678 misses its limits."),
        (1.0, "Inconclusive: mix-12345678 may meet its limits."),
    ],
)
def test_no_gain_is_claimed_that_the_interval_does_not_show(speed: float, head: str) -> None:
    said = terminal_text(mixture(speed=speed))
    assert head in said
    assert "Use mix-12345678" not in said


def test_a_mix_without_a_result_is_not_to_be_used() -> None:
    """A limit on bits is met by its file alone."""
    found = mixture()
    side = found.confirmed.mix.model_copy(update={"step": None, "divergence": None})
    confirmed = found.confirmed.model_copy(
        update={
            "mix": side,
            "speed": None,
            "difference": None,
            "findings": tuple(judge_mix(MixLimits(bits=9.0), side, None, None)),
        }
    )
    failed = found.model_copy(update={"confirmed": confirmed})
    assert failed.exit_code is ExitCode.NOTHING_MEASURED
    said = terminal_text(failed)
    assert "out/confirmation/report/index.html" in said
    assert "Use mix-12345678" not in said


def test_the_page_shows_every_group_once() -> None:
    text = render_markdown(build_mixture_document(mixture()))
    assert text.count("| ffn_down 0 ") == 1


def test_the_answer_as_json_follows_its_schema() -> None:
    found = mixture()
    printed = json.loads(format_json_answer("mix", found, found.exit_code))
    jsonschema.validate(printed, make_answer_schema("mix"))
    assert Mixture.model_validate(printed["answer"]) == found
