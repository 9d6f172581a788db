"""A plan after its variants were made: the same points, but for those whose variant could not be."""

from pathlib import Path

from bitbench.planning.variants import settle_variants
from bitbench.study.plan import Expectation, QualityRefusal, Refusal, Support
from tests.unit.test_compatibility import plan_of

PLAN = plan_of("bf16", "w3a16-rtn")
MADE = next(one for one in PLAN.variants if one.recipe == "w3a16-rtn")


def test_a_variant_that_was_made_changes_nothing_but_itself() -> None:
    now = MADE.model_copy(update={"path": Path("/there"), "weight_bytes": 7})
    settled = settle_variants(PLAN, [now])
    assert settled.variant(MADE.name) == now
    assert settled.model_copy(update={"variants": PLAN.variants}) == PLAN
    assert settle_variants(PLAN, []) == PLAN


def test_what_waited_for_a_variant_that_could_not_be_made_is_refused_with_the_reason() -> None:
    mine = [one for one in PLAN.configs if one.variant == MADE.name]
    others = [one for one in PLAN.configs if one.variant != MADE.name]
    expected = Expectation(config=mine[0], verdict=Support.RUNS_WITHOUT_SPEEDUP, why="slow")
    plan = PLAN.model_copy(update={"quality": tuple(PLAN.configs), "expectations": (expected,)})
    settled = settle_variants(plan, [MADE.model_copy(update={"failure": "no luck"})])
    lost = [point for point in plan.points if point.config in mine]
    assert lost
    assert settled.points == tuple(point for point in plan.points if point.config in others)
    refused = tuple(Refusal(point=point, reason="no luck", was_tried=True) for point in lost)
    assert settled.refusals == (*plan.refusals, *refused)
    assert settled.quality == tuple(others)
    assert settled.quality_refusals == tuple(
        QualityRefusal(config=one, reason="no luck") for one in mine
    )
    assert settled.expectations == ()
