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
            "cells": tuple(cell for cell in plan.cells if cell.contender.variant not in failures),
            "refusals": (
                *plan.refusals,
                *(
                    Refusal(cell=cell, reason=failures[cell.contender.variant], was_tried=True)
                    for cell in plan.cells
                    if cell.contender.variant in failures
                ),
            ),
            "expectations": tuple(
                expectation for expectation in plan.expectations if expectation.contender.variant not in failures
            ),
            "processor_notes": tuple(note for note in plan.processor_notes if note.contender.variant not in failures),
            "quality": tuple(contender for contender in plan.quality if contender.variant not in failures),
            "quality_refusals": (
                *plan.quality_refusals,
                *(
                    QualityRefusal(contender=contender, reason=failures[contender.variant])
                    for contender in plan.quality
                    if contender.variant in failures
                ),
            ),
        }
    )
