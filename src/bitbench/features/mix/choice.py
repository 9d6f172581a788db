"""Choose a type for each group of tensors: form groups, model what a type costs, and optimize.

**Divergence** of a mix is predicted as the sum over its groups, each measured alone. Small and
independent changes of the weights move the logits independently. A KL divergence is quadratic in
that movement, so the expected divergences add. A kind of tensors may be measured as a whole in a
type. Its divergence is then divided among its groups in the proportions of the smallest type.

**Time** of a step is predicted from the model in one type at a time: t = Σ weights of type ·
seconds per weight of type. One measured model per type gives the seconds per weight. A step's
fixed time is spread over the weights. All mixes have the same number of weights, so the fixed time
counts once in each.

**The choice** is a knapsack with one item per group, solved exactly (branch and bound).
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bitbench.analysis.divergence import compute_window_means, divergence
from bitbench.analysis.intervals import estimate_t_mean
from bitbench.analysis.quality import read_short_scores
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
from bitbench.reports.labels import group_by
from bitbench.study.plan import Config
from bitbench.study.recipe import Backend, Recipe, TensorRule
from bitbench.study.variant import find_tensor_type
from bitbench.util.errors import RecipeError, UsageError

# Matrices that read the same vector: engines fuse them, or compute them in one pass.
_FUSED = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "attn_qkv"),
    **dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"), "ffn_gate_up_exps"),
}
_IN_A_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_OUTSIDE = re.compile(r"(token_embd|output)\.weight")
_LOOKED_UP = "token_embd"
_LAST = "output"
# The types in which a converter writes quantizable tensors. Norms and routers are f32.
_DENSE = ("bf16", "f16")
# With this file type no tensor falls back to another type than the requested one: its blocks of 32
# fit wherever any quantized type fits.
_FILE_TYPE = "Q8_0"
_ANY = "."
_REST = "bf16"
BANDS = 4  # bands of layers, each with its own types
RESERVE = 0.02  # share of a limit on a predicted metric that is reserved for prediction errors


def group_tensors(tensors: Sequence[GgufTensor], types: Sequence[str]) -> tuple[TensorGroup, ...]:
    """Group tensors by kind and band of layers.

    Raise RecipeError if the model has no quantizable tensors, or if no type fits a group.
    """
    layers = 1 + max(_list_layers(tensors), default=0)
    bands = min(BANDS, layers)
    groups: dict[tuple[str, int], list[GgufTensor]] = {}
    for tensor in tensors:
        kind, layer = _find_kind_and_layer(tensor)
        if kind is not None:
            band = -1
            if layer is not None:
                band = layer * bands // layers
            groups.setdefault((kind, band), []).append(tensor)
    if not groups:
        raise RecipeError("the model has no tensors that can be quantized; is it stored in bf16?")
    is_tied = all(kind != _LAST for kind, _ in groups)
    return tuple(
        _make_group(kind, members, types, is_tied) for (kind, _), members in groups.items()
    )


def _find_kind_and_layer(tensor: GgufTensor) -> tuple[str | None, int | None]:
    """Return the kind and the layer. The kind is None if the tensor's type is not chosen."""
    if tensor.type not in _DENSE or len(tensor.shape) < 2:
        return None, None
    if inside := _IN_A_LAYER.fullmatch(tensor.name):
        return _FUSED.get(inside[2], inside[2]), int(inside[1])
    if outside := _OUTSIDE.fullmatch(tensor.name):
        return outside[1], None
    return None, None


def _list_layers(tensors: Sequence[GgufTensor]) -> list[int]:
    layers = [_find_kind_and_layer(tensor)[1] for tensor in tensors]
    return [layer for layer in layers if layer is not None]


def _make_group(
    kind: str, tensors: Sequence[GgufTensor], types: Sequence[str], is_tied: bool
) -> TensorGroup:
    """Return the group of these tensors. Raise RecipeError if no type fits their rows."""
    fitting = []
    for name in types:
        block = find_tensor_type(name).block_weights
        if all(tensor.shape[0] % block == 0 for tensor in tensors):
            fitting.append(name)
    if not fitting:
        raise RecipeError(
            f"no type fits {tensors[0].name}, whose rows have {tensors[0].shape[0]} weights; "
            "add q8_0 to the types"
        )
    layers = _list_layers(tensors)
    return TensorGroup(
        kind=kind,
        first=min(layers, default=None),
        last=max(layers, default=None),
        tensors=tuple(tensor.name for tensor in tensors),
        weights=sum(tensor.weights for tensor in tensors),
        types=tuple(fitting),
        is_multiplied=kind != _LOOKED_UP or is_tied,
    )


def make_mixed_recipe(name: str, types: Mapping[TensorGroup, str], description: str = "") -> Recipe:
    """Return the recipe of a mix. Tensors outside its groups stay as in the unquantized model."""
    rules = []
    for group, type in types.items():
        names = "|".join(map(re.escape, group.tensors))
        rules.append(TensorRule(match=f"^({names})$", type=type))
    return Recipe(
        name=name,
        description=description,
        backend=Backend.GGUF,
        options={"type": _FILE_TYPE},
        tensors=(*rules, TensorRule(match=_ANY, type=_REST)),
    )


def list_wrong_tensors(
    tensors: Sequence[GgufTensor], types: Mapping[TensorGroup, str]
) -> list[str]:
    """Describe the tensors of a file whose type is not the requested one.

    For example: `blk.0.attn_q.weight is q8_0, not q4_0`.
    """
    stored = {tensor.name: tensor.type for tensor in tensors}
    differences = []
    for group, type in types.items():
        for name in group.tensors:
            if stored.get(name) != type:
                differences.append(f"{name} is {stored.get(name, 'missing')}, not {type}")
    return differences


@dataclass(frozen=True)
class Swap:
    """The unquantized model with these groups, all of one kind, in another type."""

    groups: tuple[TensorGroup, ...]
    type: str

    @property
    def name(self) -> str:
        """The name of its recipe, such as `swap-ffn_down-0to7-q4_0`."""
        first = self.groups[0].first
        layers = ""
        if first is not None:
            layers = f"-{first}to{self.groups[-1].last}"
        return f"swap-{self.groups[0].kind}{layers}-{self.type}"


def list_swaps(groups: Sequence[TensorGroup]) -> list[Swap]:
    """Return the swaps to measure.

    These are each group in the smallest type that fits it, and each kind as a whole in the others.
    """
    swaps = [Swap((group,), group.types[0]) for group in groups]
    for members in group_by(groups, lambda group: group.kind).values():
        by_type: dict[str, list[TensorGroup]] = {}
        for group in members:
            for type in group.types[1:]:
                by_type.setdefault(type, []).append(group)
        swaps += [Swap(tuple(fitting), type) for type, fitting in by_type.items()]
    return swaps


def plan_uniform(
    groups: Sequence[TensorGroup], types: Sequence[str]
) -> dict[str, dict[TensorGroup, str]]:
    """Return one mix per type, for types that fit some group.

    A mix has its type wherever it fits, and elsewhere the next larger type, or else the group's
    largest.
    """
    mixes: dict[str, dict[TensorGroup, str]] = {}
    for index, type in enumerate(types):
        if not any(type in group.types for group in groups):
            continue
        mixes[type] = {}
        for group in groups:
            fitting = [larger for larger in types[index:] if larger in group.types]
            mixes[type][group] = fitting[0] if fitting else group.types[-1]
    return mixes


def collect_options(
    groups: Sequence[TensorGroup], measured: Mapping[Swap, float], weight_s: Mapping[str, float]
) -> dict[TensorGroup, tuple[Option, ...]]:
    """Return the cost of each group in each type that fits it.

    `measured` is the divergence of each swap, `weight_s` the seconds per weight of each type.
    """
    swaps: dict[tuple[TensorGroup, str], Swap] = {}
    for swap in measured:
        for group in swap.groups:
            swaps[group, swap.type] = swap

    def share(group: TensorGroup, swap: Swap) -> float:
        """Return the group's share of a swap's divergence.

        It is the share in the smallest types, or of the weights if these cause no divergence.
        """
        smallest = {member: measured[swaps[member, member.types[0]]] for member in swap.groups}
        total = sum(smallest.values())
        if total > 0:
            return smallest[group] / total
        return group.weights / sum(member.weights for member in swap.groups)

    def option(group: TensorGroup, type: str) -> Option:
        swap = swaps[group, type]
        step_s = group.weights * weight_s[type] if group.is_multiplied else 0.0
        return Option(
            type=type,
            divergence=measured[swap] * share(group, swap),
            step_s=step_s,
            size_bytes=find_tensor_type(type).count_bytes(group.weights),
        )

    options: dict[TensorGroup, tuple[Option, ...]] = {}
    for group in groups:
        options[group] = tuple(option(group, type) for type in group.types)
    return options


def estimate_weight_times(
    models: Sequence[tuple[Mapping[TensorGroup, str], float]],
) -> dict[str, float]:
    """Return the seconds per weight of each type, never below zero.

    `models` holds the types of each measured model and the seconds of its step.
    """
    from scipy.optimize import nnls  # half a second to import

    counts = [_count_weights_by_type(types) for types, _ in models]
    types = list(dict.fromkeys(itertools.chain.from_iterable(counts)))
    unit = max(max(count.values()) for count in counts)
    design = np.array([_list_scaled_counts(count, types, unit) for count in counts])
    solution, _ = nnls(design, np.array([step_s for _, step_s in models]))
    return {type: float(value / unit) for type, value in zip(types, solution, strict=True)}


def _list_scaled_counts(count: Counter[str], types: Sequence[str], unit: int) -> list[float]:
    return [count[type] / unit for type in types]


def _count_weights_by_type(types: Mapping[TensorGroup, str]) -> Counter[str]:
    """Count the weights that a step multiplies."""
    counts: Counter[str] = Counter()
    for group, type in types.items():
        if group.is_multiplied:
            counts[type] += group.weights
    return counts


DIVERGENCE = "nats"
TIME = "s per step"
BITS = "bits per weight"


def choose_mix(
    options: Mapping[TensorGroup, Sequence[Option]], ceilings: Mapping[str, float]
) -> tuple[GroupChoice, ...]:
    """Return the fastest mix if divergence is limited, else the mix that diverges least.

    Raise UsageError if no mix is within the limits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import

    every = list(itertools.chain.from_iterable(options.values()))
    sizes = [len(group_options) for group_options in options.values()]
    costs = _collect_costs(every, sum(group.weights for group in options))
    one_of_each = np.repeat(np.eye(len(sizes)), sizes, axis=1)
    constraints = [LinearConstraint(one_of_each, 1, 1)]
    for name, limit in ceilings.items():
        # Divided by the limit, so that the solver's tolerance means the same for all.
        constraints.append(LinearConstraint(costs[name][np.newaxis] / limit, -np.inf, 1))
    objective = costs[TIME if DIVERGENCE in ceilings else DIVERGENCE]
    solution = milp(
        objective / max(float(objective.max()), 1e-300),
        integrality=np.ones(len(every), dtype=int),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        starts = np.cumsum([0, *sizes[:-1]])
        least = []
        for name in ceilings:
            total = np.minimum.reduceat(costs[name], starts).sum()
            least.append(f"{total:.3g} {name}")
        raise UsageError(
            "no mix of these types is within the limits: the least of each alone is "
            f"{', '.join(least)}; add other types, or lift a limit"
        )
    picked = [option for option, share in zip(every, solution.x, strict=True) if share > 0.5]
    choices = []
    for (group, group_options), option in zip(options.items(), picked, strict=True):
        choice = GroupChoice(group=group, options=tuple(group_options), chosen=option.type)
        choices.append(choice)
    return tuple(choices)


def _collect_costs(options: Sequence[Option], weights: int) -> dict[str, npt.NDArray[np.float64]]:
    """Return the divergence, the time and the bits per weight of each option."""
    return {
        DIVERGENCE: np.array([option.divergence for option in options]),
        TIME: np.array([option.step_s for option in options]),
        BITS: np.array([8 * option.size_bytes / weights for option in options]),
    }


def predict_mix(choices: Sequence[GroupChoice]) -> Predicted:
    """Predict a mix by adding up its groups."""
    chosen = [choice.choice for choice in choices]
    size_bytes = sum(option.size_bytes for option in chosen)
    weights = sum(choice.group.weights for choice in choices)
    return Predicted(
        divergence=sum(option.divergence for option in chosen),
        step_s=sum(option.step_s for option in chosen),
        bits=8 * size_bytes / weights,
    )


def get_chosen_types(choices: Sequence[GroupChoice]) -> dict[TensorGroup, str]:
    """Return the chosen type of each group."""
    return {choice.group: choice.chosen for choice in choices}


def estimate_divergence_difference(
    records: StudyRecords, mix: Config, reference: Config, baseline: Config
) -> Estimate | None:
    """Return the divergence of `mix` from the baseline less the divergence of `reference`.

    The difference is by window of text. Return None if a config has no scores.
    """
    last = {}
    for record in records.quality:
        if record.condition is Condition.ALONE:
            last[record.config] = record
    compared = (baseline, mix, reference)
    if any(config not in last or last[config].scores_file is None for config in compared):
        return None
    dense, mixed, other = (read_short_scores(records, last[config]) for config in compared)
    excess = compute_window_means(dense.window, divergence(dense, mixed) - divergence(dense, other))
    return estimate_t_mean(excess.tolist(), records.study.measure.confidence)


def judge_mix(
    limits: MixLimits, mix: MixSide, speed: Estimate | None, difference: Estimate | None
) -> list[Finding]:
    """Compare the confirmed mix with each limit. Its bits are exact, so they have no interval."""
    findings = []
    if limits.speed is not None:
        finding = Finding(
            name=f"speed of {limits.speed}",
            unit="×",
            limit=1.0,
            estimate=speed,
            verdict=check_against_limit(speed, 1.0, at_least=True),
        )
        findings.append(finding)
    if limits.bits is not None:
        verdict = Verdict.MET if mix.bits <= limits.bits else Verdict.MISSED
        finding = Finding(
            name="bits per weight",
            unit="",
            limit=limits.bits,
            estimate=Estimate(value=mix.bits),
            verdict=verdict,
        )
        findings.append(finding)
    if limits.divergence is not None:
        findings.append(_judge_divergence(limits.divergence, mix.divergence, difference))
    return findings


def _judge_divergence(
    limit: float | str, measured: Estimate | None, difference: Estimate | None
) -> Finding:
    """Compare the divergence with a number, or the difference with a recipe's divergence."""
    if isinstance(limit, str):
        return Finding(
            name=f"divergence beyond that of {limit}",
            unit="nats",
            limit=0.0,
            estimate=difference,
            verdict=check_against_limit(difference, 0.0),
        )
    return Finding(
        name="divergence",
        unit="nats",
        limit=limit,
        estimate=measured,
        verdict=check_against_limit(measured, limit),
    )


def compute_ceilings(
    limits: MixLimits, reference_step_s: float, reference_divergence: float
) -> dict[str, float]:
    """Return the maximum of each limited metric. Predicted metrics keep a reserve."""
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
