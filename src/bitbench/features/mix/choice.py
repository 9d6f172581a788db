"""Which type for which tensors: groups that get one together, models that tell what a type costs, and the best
choice under limits.

**Divergence** of a mix is predicted by adding up those of its groups, each measured alone. Small changes of the weights
that are independent of each other move the logits independently, and a KL divergence is quadratic in that movement, so
the expected divergences add. A kind of tensors that was measured as a whole in a type is divided among its groups as
their divergences in the smallest type are.

**Time** of a step is that of the model in one type, per weight: t = Σ weights of type · seconds per weight of type,
solved for the latter from one measured model per type. What a step takes whatever the types are is spread over the
weights, whose number is the same in every mix, so it is counted once in each.

**The choice** is a knapsack with one item per group, solved exactly (branch and bound).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bitbench.analysis.divergence import divergence, window_means
from bitbench.analysis.intervals import mean_t_interval
from bitbench.analysis.quality import short_quality_scores
from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, check_against_limit
from bitbench.features.mix.types import (
    GroupChoice,
    MixLimits,
    MixSide,
    Option,
    Predicted,
    TensorGroup,
)
from bitbench.quantize.checkpoint import GgufTensor
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import Condition
from bitbench.reports.labels import grouped
from bitbench.study.plan import Config
from bitbench.study.recipe import Backend, Recipe, TensorRule
from bitbench.study.variant import tensor_type
from bitbench.util.errors import RecipeError, UsageError

# Matrices that read the same vector: engines fuse them, or compute them in one pass.
_FUSED = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "attn_qkv"),
    **dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"), "ffn_gate_up_exps"),
}
_IN_A_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_OUTSIDE = re.compile(r"(token_embd|output)\.weight")
_LOOKED_UP, _LAST = "token_embd", "output"
_DENSE = ("bf16", "f16")  # as a converter writes what can be quantized; norms and routers are f32
# With it no tensor needs another type than was asked for: its blocks of 32 fit wherever any quantized type does.
_FILE_TYPE = "Q8_0"
_ANY, _REST = ".", "bf16"
BANDS = 4  # of layers, with types of their own
RESERVE = 0.02  # share of a limit on a predicted figure that is left to errors of prediction


def group_tensors(tensors: Sequence[GgufTensor], types: Sequence[str]) -> tuple[TensorGroup, ...]:
    """Kinds of tensors × bands of layers. Raises RecipeError for a group that no type fits."""
    found: dict[tuple[str, int], list[GgufTensor]] = {}
    layers = 1 + max(
        (layer for tensor in tensors if (layer := _place(tensor)[1]) is not None), default=0
    )
    bands = min(BANDS, layers)
    for tensor in tensors:
        kind, layer = _place(tensor)
        if kind is not None:
            found.setdefault((kind, -1 if layer is None else layer * bands // layers), []).append(
                tensor
            )
    if not found:
        raise RecipeError("the model has no tensors that can be quantized; is it stored in bf16?")
    is_tied = all(kind != _LAST for kind, _ in found)
    return tuple(_group(kind, own, types, is_tied) for (kind, _), own in found.items())


def _place(tensor: GgufTensor) -> tuple[str | None, int | None]:
    """Kind and layer; no kind: its type is not chosen."""
    if tensor.type not in _DENSE or len(tensor.shape) < 2:
        return None, None
    if inside := _IN_A_LAYER.fullmatch(tensor.name):
        return _FUSED.get(inside[2], inside[2]), int(inside[1])
    outside = _OUTSIDE.fullmatch(tensor.name)
    return (outside[1] if outside else None), None


def _group(
    kind: str, tensors: Sequence[GgufTensor], types: Sequence[str], is_tied: bool
) -> TensorGroup:
    fitting = [
        name
        for name in types
        if all(tensor.shape[0] % tensor_type(name).block_weights == 0 for tensor in tensors)
    ]
    if not fitting:
        raise RecipeError(
            f"no type fits {tensors[0].name}, whose rows have {tensors[0].shape[0]} weights; add q8_0 to the types"
        )
    layers = [layer for tensor in tensors if (layer := _place(tensor)[1]) is not None]
    return TensorGroup(
        kind=kind,
        first=min(layers, default=None),
        last=max(layers, default=None),
        tensors=tuple(tensor.name for tensor in tensors),
        weights=sum(tensor.weights for tensor in tensors),
        types=tuple(fitting),
        is_multiplied=kind != _LOOKED_UP or is_tied,
    )


def mixed_recipe(name: str, types: Mapping[TensorGroup, str], description: str = "") -> Recipe:
    """What has no type in it stays as it is in the unquantized model."""
    rules = [
        TensorRule(match=f"^({'|'.join(map(re.escape, group.tensors))})$", type=type)
        for group, type in types.items()
    ]
    return Recipe(
        name=name,
        description=description,
        backend=Backend.GGUF,
        options={"type": _FILE_TYPE},
        tensors=(*rules, TensorRule(match=_ANY, type=_REST)),
    )


def tensors_unlike_mix_choice(
    tensors: Sequence[GgufTensor], types: Mapping[TensorGroup, str]
) -> list[str]:
    """Tensors of a file that have another type than was asked for: `blk.0.attn_q.weight is q8_0, not q4_0`."""
    wanted = {name: type for group, type in types.items() for name in group.tensors}
    stored = {tensor.name: tensor.type for tensor in tensors}
    return [
        f"{name} is {stored.get(name, 'missing')}, not {type}"
        for name, type in wanted.items()
        if stored.get(name) != type
    ]


@dataclass(frozen=True)
class Swap:
    """The unquantized model with these groups, all of one kind, in another type."""

    groups: tuple[TensorGroup, ...]
    type: str

    @property
    def name(self) -> str:
        """`swap-ffn_down-0to7-q4_0`, as recipes may be called."""
        first, last = self.groups[0].first, self.groups[-1].last
        place = "" if first is None else f"-{first}to{last}"
        return f"swap-{self.groups[0].kind}{place}-{self.type}"


def swaps_for_mix_choice(groups: Sequence[TensorGroup]) -> list[Swap]:
    """Each group in the smallest type that fits it, and each kind as a whole in the others."""
    swaps = [Swap((group,), group.types[0]) for group in groups]
    for members in grouped(groups, lambda group: group.kind).values():
        for type in dict.fromkeys(type for group in members for type in group.types[1:]):
            swaps.append(Swap(tuple(group for group in members if type in group.types[1:]), type))
    return swaps


def _uniform_mix(groups: Sequence[TensorGroup], types: Sequence[str]) -> dict[TensorGroup, str]:
    """The first of these types that fits each group, or else the group's largest."""
    return {
        group: next((type for type in types if type in group.types), group.types[-1])
        for group in groups
    }


def plan_uniform(
    groups: Sequence[TensorGroup], types: Sequence[str]
) -> dict[str, dict[TensorGroup, str]]:
    """Each type wherever it fits, the next larger one elsewhere; types that fit no group are not in it."""
    fitting = {type for group in groups for type in group.types}
    return {
        type: _uniform_mix(groups, types[place:])
        for place, type in enumerate(types)
        if type in fitting
    }


def mix_options(
    groups: Sequence[TensorGroup], measured: Mapping[Swap, float], weight_s: Mapping[str, float]
) -> dict[TensorGroup, tuple[Option, ...]]:
    """Each group in each type that fits it. `measured`: the divergence that each swap caused."""
    swaps = {(group, swap.type): swap for swap in measured for group in swap.groups}

    def share(group: TensorGroup, swap: Swap) -> float:
        """Of what a swap caused, as in the smallest type; by weights where that causes nothing at all."""
        smallest = {member: measured[swaps[member, member.types[0]]] for member in swap.groups}
        if (total := sum(smallest.values())) > 0:
            return smallest[group] / total
        return group.weights / sum(member.weights for member in swap.groups)

    def option(group: TensorGroup, type: str) -> Option:
        swap = swaps[group, type]
        return Option(
            type=type,
            divergence=measured[swap] * share(group, swap),
            step_s=group.weights * weight_s[type] if group.is_multiplied else 0.0,
            size_bytes=tensor_type(type).bytes_of(group.weights),
        )

    return {group: tuple(option(group, type) for type in group.types) for group in groups}


def mix_choice_weight_times(
    models: Sequence[tuple[Mapping[TensorGroup, str], float]],
) -> dict[str, float]:
    """Seconds per weight of each type, from models and what a step of each takes; none is below zero."""
    from scipy.optimize import nnls  # half a second to import

    counts = [_weights_by_type(types) for types, _ in models]
    types = list(dict.fromkeys(type for count in counts for type in count))
    unit = max(max(count.values()) for count in counts)
    design = np.array([[count[type] / unit for type in types] for count in counts])
    found, _ = nnls(design, np.array([step_s for _, step_s in models]))
    return {type: float(value / unit) for type, value in zip(types, found, strict=True)}


def _weights_by_type(types: Mapping[TensorGroup, str]) -> Counter[str]:
    """Of what is multiplied in a step."""
    counts: Counter[str] = Counter()
    for group, type in types.items():
        if group.is_multiplied:
            counts[type] += group.weights
    return counts


DIVERGENCE, TIME, BITS = "nats", "s per step", "bits per weight"


def choose_mix(
    options: Mapping[TensorGroup, Sequence[Option]], ceilings: Mapping[str, float]
) -> tuple[GroupChoice, ...]:
    """The fastest mix where divergence is limited, else the one that diverges least. Raises UsageError where no mix is
    within the limits."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import

    every = [option for own in options.values() for option in own]
    weights = sum(group.weights for group in options)
    costs = {
        DIVERGENCE: np.array([option.divergence for option in every]),
        TIME: np.array([option.step_s for option in every]),
        BITS: np.array([8 * option.size_bytes / weights for option in every]),
    }
    sizes = [len(own) for own in options.values()]
    one_of_each = np.repeat(np.eye(len(sizes)), sizes, axis=1)
    constraints = [LinearConstraint(one_of_each, 1, 1)]
    for (
        name,
        limit,
    ) in ceilings.items():  # divided by it, so that the solver's tolerance means the same for all
        constraints.append(LinearConstraint(costs[name][np.newaxis] / limit, -np.inf, 1))
    aim = costs[TIME if DIVERGENCE in ceilings else DIVERGENCE]
    found = milp(
        aim / max(float(aim.max()), 1e-300),
        integrality=np.ones(len(every), dtype=int),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        starts = np.cumsum([0, *sizes[:-1]])
        least = ", ".join(
            f"{np.minimum.reduceat(costs[name], starts).sum():.3g} {name}" for name in ceilings
        )
        raise UsageError(
            f"no mix of these types is within the limits: the least of each alone is {least}; add other types, or lift "
            "a limit"
        )
    picked = [option for option, share in zip(every, found.x, strict=True) if share > 0.5]
    return tuple(
        GroupChoice(group=group, options=tuple(options[group]), chosen=option.type)
        for group, option in zip(options, picked, strict=True)
    )


def predict_mix(choices: Sequence[GroupChoice]) -> Predicted:
    """By adding up."""
    chosen = [choice.choice for choice in choices]
    return Predicted(
        divergence=sum(option.divergence for option in chosen),
        step_s=sum(option.step_s for option in chosen),
        bits=8
        * sum(option.size_bytes for option in chosen)
        / sum(choice.group.weights for choice in choices),
    )


def chosen_mix_types(choices: Sequence[GroupChoice]) -> dict[TensorGroup, str]:
    return {choice.group: choice.chosen for choice in choices}


def chosen_mix_divergence_difference(
    records: StudyRecords, mix: Config, reference: Config, baseline: Config
) -> Estimate | None:
    """Divergence of `mix` from the baseline less that of `reference`, window by window; None where one has none."""
    last = {
        record.config: record for record in records.quality if record.condition is Condition.ALONE
    }
    if any(
        config not in last or last[config].scores_file is None
        for config in (mix, reference, baseline)
    ):
        return None
    dense, mixed, other = (
        short_quality_scores(records, last[config]) for config in (baseline, mix, reference)
    )
    worse = window_means(dense.window, divergence(dense, mixed) - divergence(dense, other))
    return mean_t_interval(worse.tolist(), records.study.measure.confidence)


def judge_mix(
    limits: MixLimits, mix: MixSide, speed: Estimate | None, difference: Estimate | None
) -> list[Finding]:
    """Hold the confirmed mix against each limit. Its bits are as stored: there is no doubt about them."""
    findings = []
    if limits.speed is not None:
        verdict = check_against_limit(speed, 1.0, at_least=True)
        findings.append(
            Finding(
                name=f"speed of {limits.speed}",
                unit="×",
                limit=1.0,
                estimate=speed,
                verdict=verdict,
            )
        )
    if limits.bits is not None:
        verdict = Verdict.MET if mix.bits <= limits.bits else Verdict.MISSED
        estimate = Estimate(value=mix.bits)
        findings.append(
            Finding(
                name="bits per weight",
                unit="",
                limit=limits.bits,
                estimate=estimate,
                verdict=verdict,
            )
        )
    if limits.divergence is not None:
        name, limit, known = "divergence", limits.divergence, mix.divergence
        if isinstance(limit, str):
            name, limit, known = f"divergence beyond that of {limit}", 0.0, difference
        verdict = check_against_limit(known, limit)
        findings.append(
            Finding(name=name, unit="nats", limit=limit, estimate=known, verdict=verdict)
        )
    return findings


def mix_ceilings(
    limits: MixLimits, reference_step_s: float, reference_divergence: float
) -> dict[str, float]:
    """What a mix may have at most, in predicted figures. What is predicted keeps a reserve."""
    ceilings = {}
    if isinstance(limits.divergence, str):
        ceilings[DIVERGENCE] = (1 - RESERVE) * reference_divergence
    elif limits.divergence is not None:
        ceilings[DIVERGENCE] = (1 - RESERVE) * limits.divergence
    if limits.speed is not None:
        ceilings[TIME] = (1 - RESERVE) * reference_step_s
    if limits.bits is not None:
        ceilings[BITS] = limits.bits
    return ceilings
