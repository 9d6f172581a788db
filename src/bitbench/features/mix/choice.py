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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bitbench.analysis.intervals import mean_t_interval
from bitbench.analysis.quality import divergence, short_quality_scores, window_means
from bitbench.analysis.results.estimate import Estimate, Finding, check_against_limit
from bitbench.features.mix.types import GroupChoice, MixLimits, Option, Predicted, TensorGroup
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


def group_tensors(tensors: Sequence[GgufTensor], types: Sequence[str], bands: int) -> tuple[TensorGroup, ...]:
    """Kinds of tensors × bands of layers. Raises RecipeError for a group that no type fits."""
    found: dict[tuple[str, int], list[GgufTensor]] = {}
    layers = 1 + max((layer for tensor in tensors if (layer := _place(tensor)[1]) is not None), default=0)
    bands = min(bands, layers)
    for tensor in tensors:
        kind, layer = _place(tensor)
        if kind is not None:
            found.setdefault((kind, -1 if layer is None else layer * bands // layers), []).append(tensor)
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


def _group(kind: str, tensors: Sequence[GgufTensor], types: Sequence[str], is_tied: bool) -> TensorGroup:
    fitting = [
        name for name in types if all(tensor.shape[0] % tensor_type(name).block_weights == 0 for tensor in tensors)
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
    rules = [TensorRule(match=_pattern(group.tensors), type=type) for group, type in types.items()]
    return Recipe(
        name=name,
        description=description,
        backend=Backend.GGUF,
        options={"type": _FILE_TYPE},
        tensors=(*rules, TensorRule(match=_ANY, type=_REST)),
    )


def _pattern(names: Sequence[str]) -> str:
    """Exactly these: `^blk\\.(0|1)\\.(attn_q|attn_k)\\.weight$` where they are all combinations of layers and names."""
    parts = [_IN_A_LAYER.fullmatch(name) for name in names]
    inside = [(found[1], found[2]) for found in parts if found]
    layers, own = dict.fromkeys(layer for layer, _ in inside), dict.fromkeys(name for _, name in inside)
    if len(inside) == len(names) == len(layers) * len(own):
        return rf"^blk\.({'|'.join(layers)})\.({'|'.join(own)})\.weight$"
    return f"^({'|'.join(re.escape(name) for name in names)})$"


def tensors_unlike_mix_choice(tensors: Sequence[GgufTensor], types: Mapping[TensorGroup, str]) -> list[str]:
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

    @property
    def types(self) -> dict[TensorGroup, str]:
        return dict.fromkeys(self.groups, self.type)


def swaps_for_mix_choice(groups: Sequence[TensorGroup], *, thorough: bool) -> list[Swap]:
    """Each group in the smallest type that fits it, and each kind as a whole in the others; `thorough`: each group in
    each."""
    return [
        swap for own in grouped(groups, lambda group: group.kind).values() for swap in _of_kind(own, thorough=thorough)
    ]


def _of_kind(groups: Sequence[TensorGroup], *, thorough: bool) -> Iterator[Swap]:
    for group in groups:
        for type in group.types if thorough else group.types[:1]:
            yield Swap((group,), type)
    if thorough:
        return
    for type in dict.fromkeys(type for group in groups for type in group.types[1:]):
        together = tuple(group for group in groups if type in group.types[1:])
        yield Swap(together, type)


def _uniform_mix(groups: Sequence[TensorGroup], types: Sequence[str], wanted: str) -> dict[TensorGroup, str]:
    """This type wherever it fits; elsewhere the next larger one of `types` that does, or the largest."""
    order = {type: place for place, type in enumerate(types)}

    def of(group: TensorGroup) -> str:
        larger = [type for type in group.types if order[type] >= order[wanted]]
        return larger[0] if larger else group.types[-1]

    return {group: of(group) for group in groups}


def plan_uniform(groups: Sequence[TensorGroup], types: Sequence[str]) -> Mapping[str, dict[TensorGroup, str]]:
    """By type; types that fit no group are not in it."""
    fitting = [type for type in types if any(type in group.types for group in groups)]
    return {type: _uniform_mix(groups, types, type) for type in fitting}


DIVERGENCE, TIME, BITS = "divergence", "time", "bits"
FRONT_POINTS = 16
_WORDS = {DIVERGENCE: "a divergence of {:.3g} nats", TIME: "a step of {:.3g} ms", BITS: "{:.3g} bits per weight"}


def mix_options(
    groups: Sequence[TensorGroup], measured: Mapping[Swap, Estimate], weight_s: Mapping[str, float]
) -> dict[TensorGroup, tuple[Option, ...]]:
    """Each group in each type that fits it. `measured`: the divergence that each swap caused."""
    alone = {(swap.groups[0], swap.type): found for swap, found in measured.items() if len(swap.groups) == 1}
    together = {(group, swap.type): swap for swap in measured if len(swap.groups) > 1 for group in swap.groups}

    def share_of(group: TensorGroup, swap: Swap) -> float:
        """Of what a kind's swap caused, as in the smallest type; by weights where that causes nothing at all."""
        smallest = {member: alone[member, member.types[0]].value for member in swap.groups}
        if (total := sum(smallest.values())) > 0:
            return measured[swap].value * smallest[group] / total
        return measured[swap].value * group.weights / sum(member.weights for member in swap.groups)

    def option(group: TensorGroup, type: str) -> Option:
        found = alone.get((group, type))
        value = found.value if found else share_of(group, together[group, type])
        return Option(
            type=type,
            divergence=value,
            interval=found.interval if found else None,
            is_measured=found is not None,
            step_s=group.weights * weight_s[type] if group.is_multiplied else 0.0,
            size_bytes=tensor_type(type).bytes_of(group.weights),
        )

    return {group: tuple(option(group, type) for type in group.types) for group in groups}


def mix_choice_weight_times(models: Sequence[tuple[Mapping[TensorGroup, str], float]]) -> dict[str, float]:
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


@dataclass(frozen=True)
class Ceilings:
    """What a mix may have at most, in predicted figures; None: not limited."""

    divergence: float | None = None
    step_s: float | None = None
    bits: float | None = None


def choose_mix(options: Mapping[TensorGroup, Sequence[Option]], ceilings: Ceilings) -> tuple[GroupChoice, ...]:
    """The fastest mix where divergence is limited, else the one that diverges least. Raises UsageError where no mix is
    within the limits."""
    weights = sum(group.weights for group in options)
    costs = {
        DIVERGENCE: [[option.divergence for option in own] for own in options.values()],
        TIME: [[option.step_s for option in own] for own in options.values()],
        BITS: [[8 * option.size_bytes / weights for option in own] for own in options.values()],
    }
    limits = {
        name: limit
        for name, limit in ((DIVERGENCE, ceilings.divergence), (TIME, ceilings.step_s), (BITS, ceilings.bits))
        if limit is not None
    }
    aim = TIME if DIVERGENCE in limits else DIVERGENCE
    picked = _knapsack(costs[aim], [(costs[name], limit) for name, limit in limits.items()])
    if picked is None:
        raise UsageError(_why_none(costs, limits))
    return tuple(
        GroupChoice(group=group, options=tuple(own), chosen=own[place].type)
        for (group, own), place in zip(options.items(), picked, strict=True)
    )


Costs = Sequence[Sequence[float]]  # of each group, of each of its types


def _knapsack(aim: Costs, limited: Sequence[tuple[Costs, float]]) -> list[int] | None:
    """One place per group, the least in sum of those within every limit; None where no choice is."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import

    sizes = [len(own) for own in aim]
    ends = np.cumsum([0, *sizes])
    one_each = np.zeros((len(sizes), ends[-1]))
    for row, (first, after) in enumerate(pairwise(ends)):
        one_each[row, first:after] = 1
    constraints = [LinearConstraint(one_each, 1, 1)]
    for costs, limit in limited:
        scale = max(abs(limit), 1e-300)  # so that the solver's tolerance means the same for all
        constraints.append(LinearConstraint(_flat(costs)[np.newaxis] / scale, -np.inf, limit / scale))
    flat = _flat(aim)
    found = milp(
        flat / max(float(flat.max()), 1e-300),
        integrality=np.ones(ends[-1]),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return [int(np.argmax(found.x[first:after])) for first, after in pairwise(ends)]


def _flat(costs: Costs) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([cost for own in costs for cost in own], dtype=np.float64)


def _why_none(costs: Mapping[str, Costs], limits: Mapping[str, float]) -> str:
    for name, limit in limits.items():
        least = sum(min(own) for own in costs[name])
        if least > limit:
            return f"no mix of these types has {_said(name, limit)}: the least is {_said(name, least)}; add other types"
    both = " and ".join(_said(name, limit) for name, limit in limits.items())
    return f"no mix of these types has {both} at once; add other types, or lift a limit"


def _said(name: str, value: float) -> str:
    return _WORDS[name].format(1000 * value if name == TIME else value)


def predict_mix(options: Mapping[TensorGroup, Sequence[Option]], types: Mapping[TensorGroup, str]) -> Predicted:
    """By adding up."""
    chosen = [next(option for option in options[group] if option.type == type) for group, type in types.items()]
    return Predicted(
        divergence=sum(option.divergence for option in chosen),
        step_s=sum(option.step_s for option in chosen),
        bits=8 * sum(option.size_bytes for option in chosen) / sum(group.weights for group in types),
    )


def mix_choice_front(options: Mapping[TensorGroup, Sequence[Option]]) -> tuple[Predicted, ...]:
    """The mixes that diverge least at each speed, from the fastest of all to the one that diverges least of all."""
    best = predict_mix(options, chosen_mix_types(choose_mix(options, Ceilings())))
    fastest_s = sum(min(option.step_s for option in own) for own in options.values())
    steps_s = np.linspace(fastest_s * (1 + 1e-9), max(best.step_s, fastest_s * (1 + 1e-9)), FRONT_POINTS)
    found = [
        predict_mix(options, chosen_mix_types(choose_mix(options, Ceilings(step_s=float(step_s)))))
        for step_s in steps_s
    ]
    return tuple(dict.fromkeys(found))


def chosen_mix_types(choices: Sequence[GroupChoice]) -> dict[TensorGroup, str]:
    return {choice.group: choice.chosen for choice in choices}


def chosen_mix_divergence_difference(
    records: StudyRecords, mix: Config, reference: Config, baseline: Config
) -> Estimate | None:
    """Divergence of `mix` from the baseline less that of `reference`, window by window; None where one has none."""
    last = {record.config: record for record in records.quality if record.condition is Condition.ALONE}
    if any(config not in last or last[config].scores_file is None for config in (mix, reference, baseline)):
        return None
    dense, mixed, other = (short_quality_scores(records, last[config]) for config in (baseline, mix, reference))
    worse = window_means(dense.window, divergence(dense, mixed) - divergence(dense, other))
    return mean_t_interval(worse.tolist(), records.study.measure.confidence)


def judge_chosen_mix_speed(limit: str, speed: Estimate | None) -> Finding:
    """`speed`: the mix's / that of the recipe that is the limit."""
    verdict = check_against_limit(speed, 1.0, at_least=True)
    return Finding(name=f"speed of {limit}", unit="×", limit=1.0, estimate=speed, verdict=verdict)


def judge_chosen_mix_divergence(limit: float, found: Estimate | None) -> Finding:
    return Finding(
        name="divergence", unit="nats", limit=limit, estimate=found, verdict=check_against_limit(found, limit)
    )


def judge_chosen_mix_difference(limit: str, difference: Estimate | None) -> Finding:
    """`difference`: the mix's divergence less that of the recipe that is the limit."""
    return judge_chosen_mix_divergence(0.0, difference).model_copy(
        update={"name": f"divergence beyond that of {limit}"}
    )


def judge_chosen_mix_bits(limit: float, bits: float) -> Finding:
    """As stored: there is no doubt about it."""
    verdict = check_against_limit(Estimate(value=bits, low=bits, high=bits), limit)
    return Finding(name="bits per weight", unit="", limit=limit, estimate=Estimate(value=bits), verdict=verdict)


def mix_ceilings(
    limits: MixLimits, reserve: float, steps_s: Mapping[str, float], divergences: Mapping[str, float]
) -> Ceilings:
    """`steps_s` and `divergences`: as measured, of the recipes that are limits. What is predicted keeps a reserve."""
    divergence_limit = limits.divergence
    if isinstance(divergence_limit, str):
        divergence_limit = divergences[divergence_limit]
    return Ceilings(
        divergence=None if divergence_limit is None else (1 - reserve) * divergence_limit,
        step_s=None if limits.speed is None else (1 - reserve) * steps_s[limits.speed],
        bits=limits.bits,
    )
