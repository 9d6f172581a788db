"""A model of four layers whose tensors cost what is known: for tests of choosing types."""

from bitbench.analysis.results.estimate import Basis, Estimate
from bitbench.features.mix.choice import (
    Ceilings,
    Swap,
    choose_mix,
    chosen_mix_types,
    group_tensors,
    judge_chosen_mix_speed,
    mix_choice_front,
    mix_choice_weight_times,
    mix_options,
    plan_uniform,
    predict_mix,
    swaps_for_mix_choice,
)
from bitbench.features.mix.types import ConfirmedMix, MixLimits, MixSide, Mixture, TensorGroup, TypeTime
from bitbench.quantize.checkpoint import GgufTensor

TYPES = ("q4_0", "q4_K", "q8_0")
HIDDEN, INNER, VOCABULARY, LAYERS = 576, 1536, 1000, 4
ERRORS = {"q4_0": 1.0, "q4_K": 0.6, "q8_0": 0.02}  # of a type, whatever the tensor
SENSITIVITY = {"token_embd": 8.0, "attn_qkv": 3.0, "attn_output": 1.0, "ffn_gate_up": 2.0, "ffn_down": 4.0}
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
    return [norm, *(tensor(f"blk.{number}.{name}.weight", *shape) for name, shape in shapes.items())]


TENSORS = [
    tensor("token_embd.weight", HIDDEN, VOCABULARY),
    *(one for number in range(LAYERS) for one in layer(number)),
    GgufTensor("output_norm.weight", "f32", (HIDDEN,), HIDDEN, 4 * HIDDEN),
]


def model_groups(bands: int = 2, types: tuple[str, ...] = TYPES) -> tuple[TensorGroup, ...]:
    return group_tensors(TENSORS, types, bands)


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


def measured_swaps(groups: tuple[TensorGroup, ...], *, thorough: bool = False) -> dict[Swap, Estimate]:
    return {
        swap: quality(sum(true_divergence(group, swap.type) for group in swap.groups))
        for swap in swaps_for_mix_choice(groups, thorough=thorough)
    }


def step_s(types: dict[TensorGroup, str]) -> float:
    return sum(group.weights * WEIGHT_S[type] for group, type in types.items() if group.is_multiplied)


def timed(groups: tuple[TensorGroup, ...]) -> dict[str, float]:
    """Seconds per weight, as found from one model per type."""
    return mix_choice_weight_times([(types, step_s(types)) for types in plan_uniform(groups, TYPES).values()])


def mixture(*, speed: float = 1.02, difference: float = -0.02) -> Mixture:
    """Found and confirmed under a limit of speed."""
    groups = model_groups()
    weight_s = timed(groups)
    options = mix_options(groups, measured_swaps(groups), weight_s)
    reference_s = 0.8 * step_s(dict.fromkeys(groups, "q8_0"))
    choices = choose_mix(options, Ceilings(step_s=reference_s))
    ratio = Estimate(value=speed, low=speed - 0.01, high=speed + 0.01, confidence=0.95)
    predicted = predict_mix(options, chosen_mix_types(choices))
    return Mixture(
        model="small",
        limits=MixLimits(speed="gguf-q4_k_m"),
        reserve=0.02,
        types=TYPES,
        reference="gguf-q4_k_m",
        groups=choices,
        times=tuple(TypeTime(type=type, step=time(0.01), weight_s=weight_s[type], fits=1.0) for type in TYPES),
        predicted=predicted,
        front=mix_choice_front(options),
        uniform={type: predict_mix(options, types) for type, types in plan_uniform(groups, TYPES).items()},
        reference_predicted_s=reference_s,
        reference_step=time(reference_s),
        reference_divergence=quality(0.04),
        tokens=512,
        recipe="out/mix-12345678.yaml",
        folder="out",
        confirmed=ConfirmedMix(
            folder="out/confirmation",
            starts=3,
            rounds=6,
            mix=MixSide(
                recipe="mix-12345678", step=time(reference_s / speed), divergence=quality(0.02), bits=predicted.bits
            ),
            reference=MixSide(recipe="gguf-q4_k_m", step=time(reference_s), divergence=quality(0.04), bits=6.1),
            speed=ratio,
            difference=Estimate(value=difference, low=difference - 0.01, high=difference + 0.01, confidence=0.95),
            findings=(judge_chosen_mix_speed("gguf-q4_k_m", ratio),),
        ),
    )
