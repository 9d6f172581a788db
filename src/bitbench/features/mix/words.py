"""A chosen mix as a page: its verdict, its prediction, and the sensitivity of its tensors."""

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
    make_finding_quantity,
    make_ratio,
    to_quantity,
)
from bitbench.reports.document.words import (
    build_table,
    bullets,
    make_number_column,
    make_words_column,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.study.metrics import METRICS

STEP = MetricDefinition.of(METRICS["tpot"])
DIVERGENCE = MetricDefinition.of(METRICS["kl_mean"])


def build_mixture_document(mixture: Mixture) -> Document:
    """Build the page of a chosen mix."""
    request = paragraph("Asked for: ", _describe_request(mixture), ".")
    return Document(
        say("Mixed precision: ", mixture.model),
        (request, Paragraph(_describe_verdict(mixture.confirmed))),
        (
            _build_prediction(mixture),
            _build_sensitivity(mixture),
            _build_usage(mixture),
            _build_notes(mixture),
        ),
    )


def _describe_request(mixture: Mixture) -> Phrase:
    values = mixture.limits.model_dump(exclude_none=True)
    limits = ", ".join(f"{name}={value}" for name, value in values.items())
    types = ", ".join(mixture.types)
    goal = "the fastest decoding"
    if mixture.limits.divergence is None:
        goal = "the least divergence"
    return say(goal, " of ", Name(mixture.model), f" in {types}, with {limits}")


def _describe_verdict(confirmed: ConfirmedMix) -> Phrase:
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
        heads[confirmed.verdict],
        " In a fresh study, ",
        _describe_comparison(confirmed),
        _describe_limits(confirmed),
    )


def _describe_comparison(confirmed: ConfirmedMix) -> Phrase:
    """Return the speed and the divergence of the mix compared with the reference."""
    return say(
        "it decodes at ",
        make_ratio(confirmed.speed),
        " the speed of ",
        Name(confirmed.reference.recipe),
        "; its divergence from the unquantized model less that of this recipe is ",
        to_quantity(confirmed.difference, DIVERGENCE),
        ", on text that the choice did not see.",
    )


def _describe_limits(confirmed: ConfirmedMix) -> Phrase:
    verbs = {Verdict.MET: "meets", Verdict.MISSED: "misses", Verdict.INCONCLUSIVE: "may meet"}
    sentences: list[Phrase] = []
    for finding in confirmed.findings:
        head = f" It {verbs[finding.verdict]} the limit on {finding.name}: "
        sentences.append(
            say(head, make_finding_quantity(finding), f" against {finding.limit:.3g}.")
        )
    return say(*sentences)


@dataclass(frozen=True)
class _Line:
    metric: str
    predicted: Quantity
    measured: Quantity | None
    reference: Quantity | None


def _build_prediction(mixture: Mixture) -> Section:
    """Build the section that compares the predicted with the measured mix."""
    predicted = mixture.predicted
    mix = mixture.confirmed.mix
    reference = mixture.confirmed.reference
    lines = (
        _Line(
            "divergence",
            Quantity(predicted.divergence, "nats", digits=ROUGH),
            to_quantity(mix.divergence, DIVERGENCE),
            to_quantity(reference.divergence, DIVERGENCE),
        ),
        _Line(
            "decoding step",
            Quantity(predicted.step_s, Unit.SECONDS, digits=ROUGH),
            to_quantity(mix.step, STEP),
            to_quantity(reference.step, STEP),
        ),
        _Line(
            "speed",
            Quantity(mixture.predicted_speed, Unit.RATIO),
            make_ratio(mixture.confirmed.speed),
            Quantity(1.0, Unit.RATIO),
        ),
        _Line(
            "bits per weight",
            Quantity(predicted.bits, digits=ROUGH),
            Quantity(mix.bits, digits=ROUGH),
            Quantity(reference.bits, digits=ROUGH),
        ),
    )
    comparison = build_table(
        lines,
        make_words_column("Figure", lambda line: line.metric),
        make_number_column("Predicted", Unit.NONE, lambda line: line.predicted, intervals_from=0),
        make_number_column("Measured", Unit.NONE, lambda line: line.measured, intervals_from=0),
        make_number_column(
            Name(reference.recipe), Unit.NONE, lambda line: line.reference, intervals_from=0
        ),
    )
    return Section(say("What was predicted, and what came"), (comparison,), in_terminal=True)


def _build_sensitivity(mixture: Mixture) -> Section:
    """Build the section on each group's cost. The most sensitive group is marked."""
    total = sum(choice.group.weights for choice in mixture.groups)
    worst = max(mixture.groups, key=lambda choice: choice.choice.divergence)

    def mark(choice: GroupChoice) -> Mark | None:
        return Mark.ALARM if choice is worst else None

    groups = build_table(
        mixture.groups,
        make_words_column("Tensors", lambda choice: choice.group.label),
        make_number_column(
            "Weights", Unit.SHARE, lambda choice: Quantity(choice.group.weights / total, Unit.SHARE)
        ),
        make_words_column("Type", lambda choice: choice.chosen),
        make_number_column(
            "Divergence",
            "nats",
            lambda choice: Quantity(choice.choice.divergence, "nats", digits=ROUGH),
        ),
        make_number_column(
            "Step",
            Unit.SECONDS,
            lambda choice: Quantity(choice.choice.step_s, Unit.SECONDS, digits=ROUGH),
        ),
        make_words_column("In other types", _describe_other_types, shown_from=120),
        mark=mark,
    )
    note = small_print(
        "In types other than its smallest, the divergence of a group is its share of that of all "
        "layers of its kind, divided as those of the smallest type are."
    )
    return Section(say("Which tensors are sensitive"), (groups, note), in_terminal=True)


def _describe_other_types(choice: GroupChoice) -> str:
    """Return the divergence in the types that were not chosen: `q8_0 0.0003, q6_K 0.001`."""
    others = [option for option in choice.options if option.type != choice.chosen]
    return ", ".join(f"{option.type} {option.divergence:.2g}" for option in others)


def _build_usage(mixture: Mixture) -> Section:
    lines = (
        f"bitbench quantize {mixture.model} --recipe {mixture.recipe}",
        f"recipes: [{mixture.recipe}]  # in a study file",
    )
    return Section(say("To use it"), (CodeBlock(lines),), in_terminal=True)


def _build_notes(mixture: Mixture) -> Section:
    notes = (
        say(
            f"Single swaps were scored on {mixture.tokens:,} tokens. Their sum predicts the whole "
            "only while each is small; the verdict rests on the fresh study alone."
        ),
        say(
            "Times are of whole models on this machine, per weight of each type. Another machine, "
            "engine version or batch size needs its own measurement."
        ),
    )
    return Section(say("What to know"), bullets(notes), in_terminal=True)
