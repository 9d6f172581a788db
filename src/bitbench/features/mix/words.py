"""A search for types of tensors, as a page: how well the mix was predicted, and which tensors bear compression."""

from dataclasses import dataclass

from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.features.mix.types import ConfirmedMix, GroupChoice, Mixture
from bitbench.reports.document.model import (
    CodeBlock,
    Document,
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
    estimated,
    finding_quantity,
    times,
)
from bitbench.reports.document.words import (
    bullets,
    number_column,
    paragraph,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.study.metrics import METRICS

STEP = MetricDefinition.of(METRICS["tpot"])
DIVERGENCE = MetricDefinition.of(METRICS["kl_mean"])


def mixture_document(found: Mixture) -> Document:
    return Document(
        say("Mixed precision: ", found.model),
        (paragraph("Asked for: ", _asked(found), "."), Paragraph(_verdict(found.confirmed))),
        (_prediction(found), _sensitivity(found), _use(found), _what_to_know(found)),
    )


def _asked(found: Mixture) -> Phrase:
    limits = [
        f"{name}={value}" for name, value in found.limits.model_dump(exclude_none=True).items()
    ]
    goal = "the least divergence" if found.limits.divergence is None else "the fastest decoding"
    return say(
        goal, " of ", Name(found.model), f" in {', '.join(found.types)}, with {', '.join(limits)}"
    )


def _verdict(confirmed: ConfirmedMix) -> Phrase:
    name = Name(confirmed.mix.recipe)
    if confirmed.mix.step is None:
        verdict = strong("Nothing is confirmed: ", name, " has no result in a fresh study.")
        return say(verdict, " Why not: ", Name(f"{confirmed.folder}/report/index.html"), ".")
    heads = {
        Verdict.MET: strong("Use ", name, "."),
        Verdict.INCONCLUSIVE: strong("Inconclusive: ", name, " may meet its limits."),
        Verdict.MISSED: strong(name, " misses its limits."),
    }
    return say(
        heads[confirmed.verdict], " In a fresh study, ", _beside(confirmed), _limits(confirmed)
    )


def _beside(confirmed: ConfirmedMix) -> Phrase:
    return say(
        "it decodes at ",
        times(confirmed.speed),
        " the speed of ",
        Name(confirmed.reference.recipe),
        "; its divergence from the unquantized model less that of this recipe is ",
        estimated(confirmed.difference, DIVERGENCE),
        ", on text that the choice did not see.",
    )


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
    predicted: Quantity
    measured: Quantity | None
    reference: Quantity | None


def _prediction(found: Mixture) -> Section:
    predicted, confirmed = found.predicted, found.confirmed
    mix, other = confirmed.mix, confirmed.reference
    lines = (
        _Line(
            "divergence",
            Quantity(predicted.divergence, "nats", digits=ROUGH),
            estimated(mix.divergence, DIVERGENCE),
            estimated(other.divergence, DIVERGENCE),
        ),
        _Line(
            "decoding step",
            Quantity(predicted.step_s, Unit.SECONDS, digits=ROUGH),
            estimated(mix.step, STEP),
            estimated(other.step, STEP),
        ),
        _Line(
            "speed",
            Quantity(found.predicted_speed, Unit.RATIO),
            times(confirmed.speed),
            Quantity(1.0, Unit.RATIO),
        ),
        _Line(
            "bits per weight",
            Quantity(predicted.bits, digits=ROUGH),
            Quantity(mix.bits, digits=ROUGH),
            Quantity(other.bits, digits=ROUGH),
        ),
    )
    written = table(
        lines,
        words_column("Figure", lambda line: line.figure),
        number_column("Predicted", Unit.NONE, lambda line: line.predicted, intervals_from=0),
        number_column("Measured", Unit.NONE, lambda line: line.measured, intervals_from=0),
        number_column(Name(other.recipe), Unit.NONE, lambda line: line.reference, intervals_from=0),
    )
    return Section(say("What was predicted, and what came"), (written,), in_terminal=True)


def _sensitivity(found: Mixture) -> Section:
    total = sum(choice.group.weights for choice in found.groups)
    most = max(found.groups, key=lambda choice: choice.choice.divergence)
    groups = table(
        found.groups,
        words_column("Tensors", lambda choice: choice.group.label),
        number_column(
            "Weights", Unit.SHARE, lambda choice: Quantity(choice.group.weights / total, Unit.SHARE)
        ),
        words_column("Type", lambda choice: choice.chosen),
        number_column(
            "Divergence",
            "nats",
            lambda choice: Quantity(choice.choice.divergence, "nats", digits=ROUGH),
        ),
        number_column(
            "Step",
            Unit.SECONDS,
            lambda choice: Quantity(choice.choice.step_s, Unit.SECONDS, digits=ROUGH),
        ),
        words_column("In other types", _others, shown_from=120),
        mark=lambda choice: Mark.ALARM if choice is most else None,
    )
    note = small_print(
        "In types other than its smallest, the divergence of a group is its share of that of all layers of its kind, "
        "divided as those of the smallest type are."
    )
    return Section(say("Which tensors are sensitive"), (groups, note), in_terminal=True)


def _others(choice: GroupChoice) -> str:
    """`q8_0 0.0003`"""
    others = [option for option in choice.options if option.type != choice.chosen]
    return ", ".join(f"{option.type} {option.divergence:.2g}" for option in others)


def _use(found: Mixture) -> Section:
    lines = (
        f"bitbench quantize {found.model} --recipe {found.recipe}",
        f"recipes: [{found.recipe}]  # in a study file",
    )
    return Section(say("To use it"), (CodeBlock(lines),), in_terminal=True)


def _what_to_know(found: Mixture) -> Section:
    notes = (
        say(
            f"Single swaps were scored on {found.tokens:,} tokens. Their sum predicts the whole only while each is "
            "small; the verdict rests on the fresh study alone."
        ),
        say(
            "Times are of whole models on this machine, per weight of each type. Another machine, engine version or "
            "batch size needs its own measurement."
        ),
    )
    return Section(say("What to know"), bullets(notes), in_terminal=True)
