"""A model of two layers whose tensors cost what is known: for tests of choosing types."""

from bitbench.analysis.results.estimate import Basis, Estimate
from bitbench.features.mix.choice import (
    TIME,
    Swap,
    choose_mix,
    collect_options,
    estimate_weight_times,
    group_tensors,
    judge_mix,
    list_swaps,
    plan_uniform,
    predict_mix,
)
from bitbench.features.mix.types import ConfirmedMix, MixLimits, MixSide, Mixture, TensorGroup
from bitbench.quantize.checkpoint import GgufTensor

TYPES = ("q4_0", "q4_K", "q8_0")
HIDDEN, INNER, VOCABULARY, LAYERS = 576, 1536, 1000, 2
ERRORS = {"q4_0": 1.0, "q4_K": 0.6, "q8_0": 0.02}  # of a type, whatever the tensor
SENSITIVITY = {
    "token_embd": 8.0,
    "attn_qkv": 3.0,
    "attn_output": 1.0,
    "ffn_gate_up": 2.0,
    "ffn_down": 4.0,
}
WEIGHT_S = {"q4_0": 1.0e-10, "q4_K": 1.1e-10, "q8_0": 1.6e-10}  # fixed costs included


def tensor(name: str, columns: int, rows: int, type: str = "bf16") -> GgufTensor:
    weights = columns * rows
    return GgufTensor(name, type, (columns, rows), weights, 2 * weights)


def layer(number: int) -> list[GgufTensor]:
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN, HIDDEN // 3),
        "attn_v": (HIDDEN, HIDDEN // 3),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (HIDDEN, INNER),
        "ffn_up": (HIDDEN, INNER),
        "ffn_down": (INNER, HIDDEN),
    }
    norm = GgufTensor(f"blk.{number}.attn_norm.weight", "f32", (HIDDEN,), HIDDEN, 4 * HIDDEN)
    return [
        norm,
        *(tensor(f"blk.{number}.{name}.weight", *shape) for name, shape in shapes.items()),
    ]


TENSORS = [
    tensor("token_embd.weight", HIDDEN, VOCABULARY),
    *(one for number in range(LAYERS) for one in layer(number)),
    GgufTensor("output_norm.weight", "f32", (HIDDEN,), HIDDEN, 4 * HIDDEN),
]


def model_groups(types: tuple[str, ...] = TYPES) -> tuple[TensorGroup, ...]:
    """Of each layer: there are more bands than layers."""
    return group_tensors(TENSORS, types)


def true_divergence(group: TensorGroup, type: str) -> float:
    """The first layers bear less."""
    place = 2.0 if group.first == 0 else 1.0
    return 0.001 * place * SENSITIVITY[group.kind] * ERRORS[type]


def quality(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value, confidence=0.95)


def time(value: float) -> Estimate:
    return Estimate(
        value=value,
        low=0.99 * value,
        high=1.01 * value,
        confidence=0.95,
        basis=Basis(starts=2, trials=12, relative_half_width=0.01),
    )


def measured_swaps(groups: tuple[TensorGroup, ...]) -> dict[Swap, float]:
    return {
        swap: sum(true_divergence(group, swap.type) for group in swap.groups)
        for swap in list_swaps(groups)
    }


def step_s(types: dict[TensorGroup, str]) -> float:
    return sum(
        group.weights * WEIGHT_S[type] for group, type in types.items() if group.is_multiplied
    )


def timed(groups: tuple[TensorGroup, ...]) -> dict[str, float]:
    """Seconds per weight, as found from one model per type."""
    return estimate_weight_times(
        [(types, step_s(types)) for types in plan_uniform(groups, TYPES).values()]
    )


def mixture(*, speed: float = 1.02, difference: float = -0.02) -> Mixture:
    """Found and confirmed under a limit of speed."""
    groups = model_groups()
    options = collect_options(groups, measured_swaps(groups), timed(groups))
    reference_s = 0.8 * step_s(dict.fromkeys(groups, "q8_0"))
    choices = choose_mix(options, {TIME: reference_s})
    limits = MixLimits(speed="gguf-q4_k_m")
    ratio = Estimate(value=speed, low=speed - 0.01, high=speed + 0.01, confidence=0.95)
    beside = Estimate(
        value=difference, low=difference - 0.01, high=difference + 0.01, confidence=0.95
    )
    predicted = predict_mix(choices)
    side = MixSide(
        recipe="mix-12345678",
        step=time(reference_s / speed),
        divergence=quality(0.02),
        bits=predicted.bits,
    )
    return Mixture(
        model="small",
        limits=limits,
        types=TYPES,
        groups=choices,
        predicted=predicted,
        predicted_speed=reference_s / predicted.step_s,
        tokens=512,
        recipe="out/mix-12345678.yaml",
        confirmed=ConfirmedMix(
            folder="out/confirmation",
            mix=side,
            reference=MixSide(
                recipe="gguf-q4_k_m", step=time(reference_s), divergence=quality(0.04), bits=6.1
            ),
            speed=ratio,
            difference=beside,
            findings=tuple(judge_mix(limits, side, ratio, beside)),
        ),
    )
