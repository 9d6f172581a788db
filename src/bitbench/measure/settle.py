"""A plan once the variants that it waited for were made, or could not be."""

from collections.abc import Iterable

from bitbench.study.plan import Plan, QualityRefusal, Refusal
from bitbench.study.variant import Variant


def settle(plan: Plan, tried: Iterable[Variant]) -> Plan:
    """The same plan with these variants as they are now. What waited for one that could not be made is refused with
    its failure; everything else was decided before, by facts that making a variant does not change."""
    now = {variant.name: variant for variant in tried}
    failures = {name: variant.failure for name, variant in now.items() if variant.failure is not None}
    return plan.model_copy(
        update={
            "variants": tuple(now.get(variant.name, variant) for variant in plan.variants),
            "points": tuple(point for point in plan.points if point.config.variant not in failures),
            "refusals": (
                *plan.refusals,
                *(
                    Refusal(point=point, reason=failures[point.config.variant], was_tried=True)
                    for point in plan.points
                    if point.config.variant in failures
                ),
            ),
            "expectations": tuple(
                expectation for expectation in plan.expectations if expectation.config.variant not in failures
            ),
            "processor_notes": tuple(note for note in plan.processor_notes if note.config.variant not in failures),
            "quality": tuple(config for config in plan.quality if config.variant not in failures),
            "quality_refusals": (
                *plan.quality_refusals,
                *(
                    QualityRefusal(config=config, reason=failures[config.variant])
                    for config in plan.quality
                    if config.variant in failures
                ),
            ),
        }
    )
