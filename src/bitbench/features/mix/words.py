"""What a search for types of tensors found, as a page with its figures: the mix beside others, how well it was
predicted, which tensors bear compression."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.features.mix.types import ConfirmedMix, GroupChoice, Mixture, TypeTime
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import Layer, figure_channel
from bitbench.reports.document.model import (
    Chart,
    CodeBlock,
    Document,
    Figure,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Unit,
)
from bitbench.reports.document.numbers import (
    ROUGH,
    Scale,
    estimated,
    finding_quantity,
    percent,
    quantity_scale,
    shown,
    times,
)
from bitbench.reports.document.words import (
    bullets,
    joined,
    number_column,
    paragraph,
    plural,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.sections.quality import quality_rounding_sentences
from bitbench.study.metrics import METRICS
from bitbench.study.variant import tensor_type

SENSITIVITY, MIXES = "sensitivity", "mixes"
HEIGHT = 300
BESIDE = 9  # pixels between a mark and its name
ROW_HEIGHT = 58
OUTSIDE = "outside"
FAINTEST, DARKEST = 0.05, 0.85  # opacity of no divergence, and of the most
LINE = 9  # pixels between a point's middle and each of its two lines


def sensitivity_figure(found: Mixture) -> Figure:
    most = max(*(choice.options[0].divergence for choice in found.groups), 1e-12)
    rows = [_row(choice, most) for choice in found.groups]
    return fig.layered_figure(
        SENSITIVITY,
        "Divergence that a group of tensors causes alone in its smallest type, and the type that was chosen for it",
        (
            "Each group was compressed alone in the otherwise unquantized model, on the same text. In each point: the "
            "divergence in nats, and the chosen type.",
        ),
        _layers(found),
        rows,
        height={"step": ROW_HEIGHT},
    )


def _row(choice: GroupChoice, most: float) -> fig.Row:
    smallest = choice.options[0]
    low, high = smallest.interval or (None, None)
    return {
        "kind": choice.group.kind,
        "layers": choice.group.layers or OUTSIDE,
        "heat": sqrt(max(smallest.divergence, 0.0) / most),
        "divergence": f"{smallest.divergence:.2g}",
        "chosen": choice.chosen,
        "smallest": smallest.type,
        "shown": shown(Quantity(smallest.divergence, "nats", low, high)),
        "after": shown(Quantity(choice.choice.divergence, "nats", digits=2)),
        "size": shown(Quantity(choice.choice.size_bytes, Unit.BYTES, digits=3)),
    }


def _layers(found: Mixture) -> list[Layer]:
    bands = sorted(
        {(choice.group.first, choice.group.layers) for choice in found.groups if choice.group.first is not None}
    )
    places = [*dict.fromkeys(layers for _, layers in bands)]
    if any(choice.group.first is None for choice in found.groups):
        places.append(OUTSIDE)
    x = figure_channel("layers:N", sort=places, title="layers", axis={"labelAngle": 0, "orient": "top"})
    y = figure_channel("kind:N", sort=[*dict.fromkeys(choice.group.kind for choice in found.groups)], title=None)
    heat = figure_channel("heat:Q", scale={"domain": [0, 1], "range": [FAINTEST, DARKEST], "clamp": True}, legend=None)
    about = fig.tooltips(
        kind="Tensors",
        layers="Layers",
        smallest="Smallest type",
        shown="Divergence in it",
        chosen="Chosen",
        after="Divergence in that",
        size="Size in that",
    )
    words = [
        text.encode(x=x, y=y, text=f"{field}:N")
        for field, style, dy in (("divergence", "bright", -LINE), ("chosen", "bright", LINE))
        for text in fig.halo(fig.EVERY_ROW, style, align="center", dy=dy)
    ]
    return [fig.EVERY_ROW.mark("rect", style="heat").encode(x=x, y=y, opacity=heat, tooltip=about), *words]


def mixes_figure(found: Mixture) -> Figure:
    """What is predicted for mixes under other limits on speed; the mix and the reference as they were measured."""
    scale = quantity_scale(Unit.SECONDS, [point.step_s for point in found.front])
    rows = [_point("front", "", point.step_s, point.divergence, scale) for point in found.front]
    rows += [
        _point("type", type, predicted.step_s, predicted.divergence, scale) for type, predicted in found.uniform.items()
    ]
    confirmed = found.confirmed
    for kind, side in (("type", confirmed.reference), ("mix", confirmed.mix)) if confirmed else ():
        if side.step is not None and side.divergence is not None:
            rows.append(_point(kind, side.recipe, side.step.value, side.divergence.value, scale))
    x = fig.axis_for(f"decoding step ({scale.unit}), less is better", fig.figure_field_values(rows, "x"))
    y = fig.axis_for("divergence (nats), less is better", fig.figure_field_values(rows, "y"), zero=True)
    return fig.layered_figure(
        MIXES,
        "Divergence against time of a decoding step",
        (
            "Line: mixes that diverge least at each speed, and types wherever they fit, both predicted by adding up. "
            f"{found.reference} and the mix that was chosen: as measured in the fresh study.",
        ),
        _mixes_layers(x, y),
        rows,
        height=HEIGHT,
    )


def _point(kind: str, name: str, step_s: float, divergence: float, scale: Scale) -> fig.Row:
    return {
        "kind": kind,
        "name": name,
        "x": step_s / scale.factor,
        "y": divergence,
        "step": shown(Quantity(step_s, Unit.SECONDS, digits=3)),
        "shown": shown(Quantity(divergence, "nats", digits=3)),
    }


def _mixes_layers(x: fig.ChartAxis, y: fig.ChartAxis) -> list[Layer]:
    about = fig.tooltips(name="Type or mix", step="Step", shown="Divergence")
    line, types, best = (fig.figure_layer_where(f"datum.kind == '{kind}'") for kind in ("front", "type", "mix"))
    names = [
        text.encode(x=x.x(), y=y.y(), text="name:N")
        for layer, style in ((types, "dim"), (best, "bright"))
        for text in fig.halo(layer, style, align="left", dx=BESIDE, dy=-BESIDE)
    ]
    return [
        line.mark("line", style="front").encode(x=x.x(), y=y.y()),
        *names,
        types.mark("point", style="beaten", filled=False).encode(x=x.x(), y=y.y(), tooltip=about),
        best.mark("point", style="best", filled=True).encode(x=x.x(), y=y.y(), tooltip=about),
    ]


STEP = MetricDefinition.of(METRICS["tpot"])
DIVERGENCE = MetricDefinition.of(METRICS["kl_mean"])


def mixture_document(found: Mixture) -> Document:
    rounded = (
        quality_rounding_sentences({found.model: found.rounded_before}) if found.rounded_before is not None else ()
    )
    return Document(
        say("Mixed precision: ", found.model),
        (paragraph("Asked for: ", _asked(found), "."), Paragraph(_verdict(found)), *map(Paragraph, rounded)),
        (_prediction(found), _sensitivity(found), _times(found), _use(found), _what_to_know(found)),
    )


def _asked(found: Mixture) -> Phrase:
    limits = found.limits
    goal = "the least divergence" if limits.divergence is None else "the fastest decoding"
    asked: list[Phrase] = [say(goal, " of ", Name(found.model), " in ", ", ".join(found.types))]
    if limits.speed is not None:
        asked.append(say("no slower than ", Name(limits.speed)))
    if limits.bits is not None:
        asked.append(say(f"in at most {limits.bits:g} bits per weight"))
    if isinstance(limits.divergence, str):
        asked.append(say("with no more divergence than ", Name(limits.divergence)))
    elif limits.divergence is not None:
        asked.append(say(f"with a divergence of at most {limits.divergence:g} nats"))
    return joined(asked, ", ")


def _verdict(found: Mixture) -> Phrase:
    confirmed = found.confirmed
    if confirmed is None:
        return strong("The mix was not confirmed.")
    name = Name(confirmed.mix.recipe)
    if confirmed.mix.step is None:
        verdict = strong("Nothing is confirmed: ", name, " has no result in a fresh study.")
        return say(verdict, " Why not: ", Name(f"{confirmed.folder}/report/index.html"), ".")
    heads = {
        Verdict.MET: strong("Use ", name, "."),
        Verdict.INCONCLUSIVE: strong("Inconclusive: ", name, " may meet its limits."),
        Verdict.MISSED: strong(name, " misses its limits."),
    }
    uniform = f" Every group got {found.only_type}: under these limits no mix is better." if found.only_type else ""
    return say(heads[confirmed.verdict], " In a fresh study, ", _beside(confirmed), _limits(confirmed), uniform)


def _beside(confirmed: ConfirmedMix) -> Phrase:
    reference = Name(confirmed.reference.recipe)
    starts = f" ({plural(confirmed.starts, 'fresh start')} × {plural(confirmed.rounds, 'round')} of each)"
    return say(
        "it decodes at ",
        times(confirmed.speed),
        " the speed of ",
        reference,
        starts,
        f" and diverges {_how_much(confirmed)} from the unquantized model: by ",
        _nats(confirmed.mix.divergence),
        " against ",
        _nats(confirmed.reference.divergence),
        ", a difference of ",
        _signed(confirmed.difference),
        " on text that the choice did not see.",
    )


def _how_much(confirmed: ConfirmedMix) -> str:
    """In the direction that was measured, significant or not."""
    found = confirmed.difference
    way = "more" if found is not None and found.value > 0 else "less"
    return way if found is not None and found.excludes(0) else f"not significantly {way}"


def _limits(confirmed: ConfirmedMix) -> Phrase:
    words = {Verdict.MET: "meets", Verdict.MISSED: "misses", Verdict.INCONCLUSIVE: "may meet"}
    said: list[Phrase] = []
    for finding in confirmed.findings:
        head = f" It {words[finding.verdict]} the limit on {finding.name}: "
        said.append(say(head, finding_quantity(finding), f" against {finding.limit:.3g}."))
    return say(*said)


@dataclass(frozen=True)
class _Line:
    figure: str
    predicted: Quantity | None
    measured: Quantity | None
    reference: Quantity | None


def _prediction(found: Mixture) -> Section:
    lines = table(
        list(_lines(found)),
        words_column("Figure", lambda line: line.figure),
        number_column("Predicted", Unit.NONE, lambda line: line.predicted, intervals_from=0),
        number_column("Measured", Unit.NONE, lambda line: line.measured, intervals_from=0),
        number_column(Name(found.reference), Unit.NONE, lambda line: line.reference, intervals_from=0),
    )
    chart = Chart(mixes_figure(found))
    return Section(
        say("What was predicted, and what came"), (lines, *bullets(_how_well(found)), chart), in_terminal=True
    )


def _lines(found: Mixture) -> Iterator[_Line]:
    confirmed, predicted = found.confirmed, found.predicted
    mix, other = (confirmed.mix, confirmed.reference) if confirmed else (None, None)
    yield _Line(
        "divergence",
        Quantity(predicted.divergence, "nats", digits=ROUGH),
        _nats(mix.divergence) if mix else None,
        _nats(other.divergence) if other else None,
    )
    yield _Line(
        "decoding step",
        Quantity(predicted.step_s, Unit.SECONDS, digits=ROUGH),
        _step(mix.step) if mix else None,
        _step(other.step) if other else None,
    )
    ratio = found.reference_step.value / predicted.step_s if found.reference_step and predicted.step_s else None
    yield _Line(
        f"speed of {found.reference}",
        None if ratio is None else Quantity(ratio, Unit.RATIO),
        times(confirmed.speed) if confirmed else None,
        Quantity(1.0, Unit.RATIO),
    )
    yield _Line(
        "bits per weight",
        Quantity(predicted.bits, digits=ROUGH),
        Quantity(mix.bits, digits=ROUGH) if mix and mix.bits else None,
        Quantity(other.bits, digits=ROUGH) if other and other.bits else None,
    )


def _how_well(found: Mixture) -> Iterator[Phrase]:
    whole = found.confirmed.mix.divergence if found.confirmed else None
    if whole is not None and found.predicted.divergence > 0:
        ratio = Quantity(whole.value / found.predicted.divergence, Unit.RATIO)
        yield say("The divergence of the whole is ", ratio, " the sum of those of its groups, on other text.")
    if found.reference_predicted_s and found.reference_step:
        sum_, step = Quantity(found.reference_predicted_s, Unit.SECONDS, digits=ROUGH), _step(found.reference_step)
        checked = say("A check of the times: the same sum gives ", sum_, " for a step of ", Name(found.reference))
        yield say(checked, "; it took ", step, " beside the models that the sum is made from.")


def _sensitivity(found: Mixture) -> Section:
    total = sum(choice.group.weights for choice in found.groups)
    most = max(found.groups, key=lambda choice: choice.choice.divergence)
    groups = table(
        found.groups,
        words_column("Tensors", lambda choice: choice.group.label),
        number_column("Weights", Unit.SHARE, lambda choice: Quantity(choice.group.weights / total, Unit.SHARE)),
        words_column("Type", lambda choice: choice.chosen),
        number_column("Divergence", "nats", lambda choice: Quantity(choice.choice.divergence, "nats", digits=ROUGH)),
        number_column("Step", Unit.SECONDS, lambda choice: Quantity(choice.choice.step_s, Unit.SECONDS, digits=ROUGH)),
        words_column("In other types", _others, shown_from=120),
        mark=lambda choice: Mark.ALARM if choice is most else None,
    )
    estimated_ = any(not option.is_measured for choice in found.groups for option in choice.options)
    note = (
        small_print(
            "A divergence with ≈ was measured for all layers of its kind at once, and divided as those of the smallest "
            "type are."
        ),
    )
    return Section(
        say("Which tensors are sensitive"),
        (Chart(sensitivity_figure(found)), groups, *(note if estimated_ else ())),
        in_terminal=True,
    )


def _others(choice: GroupChoice) -> str:
    """`q8_0 ≈0.0003`"""
    others = [option for option in choice.options if option.type != choice.chosen]
    return ", ".join(f"{option.type} {'' if option.is_measured else '≈'}{option.divergence:.2g}" for option in others)


def _times(found: Mixture) -> Section:
    return Section(
        say("How fast each type is here"),
        (
            table(
                found.times,
                words_column("Type", lambda time: time.type),
                number_column("Bits", Unit.NONE, lambda time: Quantity(tensor_type(time.type).bits, digits=ROUGH)),
                number_column("Fits", Unit.SHARE, lambda time: Quantity(time.fits, Unit.SHARE)),
                number_column("Step", Unit.SECONDS, lambda time: _step(time.step)),
                number_column("Reads", "GB/s", lambda time: Quantity(_bandwidth(time), "GB/s", digits=ROUGH)),
            ),
            small_print(
                "A step of the model with this type wherever it fits, the next larger one elsewhere; and what its "
                "weights are read at, with their share of what a step takes whatever the types are."
            ),
        ),
        in_terminal=True,
    )


def _bandwidth(time: TypeTime) -> float | None:
    return tensor_type(time.type).bits / 8 / time.weight_s / 1e9 if time.weight_s else None


def _use(found: Mixture) -> Section:
    lines = (
        f"bitbench quantize {found.model} --recipe {found.recipe}",
        f"recipes: [{found.recipe}]  # in a study file",
    )
    return Section(say("To use it"), (CodeBlock(lines),), in_terminal=True)


def _what_to_know(found: Mixture) -> Section:
    notes = [
        say(
            f"Single swaps were scored on {found.tokens:,} tokens. Their sum predicts the whole only while each is "
            "small; the verdict rests on the fresh study alone."
        ),
        say(
            "Times are of whole models on this machine, per weight of each type: a type is taken to be as fast in "
            "every shape of tensor. Another machine, engine version or batch size needs its own measurement."
        ),
        say(f"The choice leaves {percent(found.reserve)} of each limit on a predicted figure to errors of prediction."),
    ]
    if found.unused_types:
        unused = ", ".join(found.unused_types)
        notes.append(say(f"{unused}: fits no tensor of this model, whose rows do not fill its blocks."))
    return Section(say("What to know"), bullets(notes), in_terminal=True)


def _step(estimate: Estimate | None) -> Quantity | None:
    return estimated(estimate, STEP)


def _nats(estimate: Estimate | None) -> Quantity | None:
    return estimated(estimate, DIVERGENCE)


def _signed(estimate: Estimate | None) -> Quantity | None:
    shown = _nats(estimate)
    return None if shown is None else Quantity(shown.value, shown.unit, shown.low, shown.high, is_signed=True)
