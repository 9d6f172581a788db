"""The documents of single commands, where every name and reason in them is hostile: it stays text in each form."""

from collections.abc import Callable
from functools import cache

import pytest

from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.comparison import Comparison
from bitbench.analysis.results.recommendation import Limits, Recommendation
from bitbench.features.explain.computing import compute_explanation
from bitbench.features.explain.types import Explanation
from bitbench.features.explain.words import build_explanation_document
from bitbench.reports.answers.compare import build_comparison
from bitbench.reports.answers.recommend import build_recommendation
from bitbench.reports.document.model import Document
from tests.features.explain.explain_records import PLAIN, QUANTIZED, evidence
from tests.support.hostile import HOSTILE
from tests.support.hostile_documents import assert_every_form_is_harmless, made_hostile
from tests.unit.test_compare import SLOWER_BY_3, against, side
from tests.unit.test_recommend import study, ttft_p99


@cache
def _recommendation() -> Recommendation:
    limits = Limits(objectives=ttft_p99("150ms"), memory_bytes=2000 * 2**20, quality_loss=0.01)
    return recommend(study(), limits)


@cache
def _comparison() -> Comparison:
    before, after = (
        side(name, speed, 1, engines=("old", "new")) for name, speed in (("a", 1.0), ("b", 0.9))
    )
    return against(before, after, SLOWER_BY_3)


@cache
def _explanation() -> Explanation:
    of = evidence(
        lambda variant, at: 0.04 + at if variant == QUANTIZED else 0.03 + at, places=(1, 8)
    )
    return compute_explanation(of, QUANTIZED, PLAIN, of.plan.study.workloads[0])


DOCUMENTS: dict[str, Callable[[str], Document]] = {
    "recommend": lambda name: build_recommendation(made_hostile(_recommendation(), name)),
    "compare": lambda name: build_comparison(made_hostile(_comparison(), name)),
    "explain": lambda name: build_explanation_document(made_hostile(_explanation(), name)),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_form_is_harmless(command: str, kind: str) -> None:
    assert_every_form_is_harmless(DOCUMENTS[command](HOSTILE[kind]))
