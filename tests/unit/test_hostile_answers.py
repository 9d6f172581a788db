"""The documents of single commands, where every name and reason in them is hostile: it stays text in each form."""

import io
import json
from collections.abc import Callable
from functools import cache
from typing import TypeVar
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from bitbench.core.base import Json, Record
from bitbench.core.found.comparison import Comparison
from bitbench.core.found.explanation import Explanation
from bitbench.core.found.history import History
from bitbench.core.found.recommendation import Limits, Recommendation
from bitbench.report.answers.compare import comparison_document
from bitbench.report.answers.explain import explanation_document
from bitbench.report.answers.history import history_document
from bitbench.report.answers.recommend import recommendation_document
from bitbench.report.charts.svg import svg
from bitbench.report.document.data import document_data
from bitbench.report.document.markdown import markdown
from bitbench.report.document.model import Chart, Document
from bitbench.report.document.terminal import render, render_whole
from bitbench.statistics.explain import explain
from bitbench.statistics.history import find_cell, history
from bitbench.statistics.recommend import recommend
from tests.unit.explain_records import PLAIN, QUANTIZED, evidence
from tests.unit.hostile import HOSTILE
from tests.unit.test_compare import SLOWER_BY_3, against, side
from tests.unit.test_history import night
from tests.unit.test_hostile_names import Elements, harmless, printable
from tests.unit.test_recommend import study, ttft_p99

# Fields whose words are not ours: names from studies, what engines and files say.
FOREIGN = frozenset(
    {"variant", "engine", "workload", "study", "baseline", "candidate", "folder", "subject", "before", "after", "file"}
    | {
        "ids",
        "kernels",
        "notes",
        "detail",
        "reason",
        "why_no_result",
        "condition",
        "known_beforehand",
        "without_result",
    }
)
R = TypeVar("R", bound=Record)


def made_hostile(record: R, name: str) -> R:
    """The same with `name` before every foreign word: what was distinct stays so."""

    def walk(value: Json, key: str) -> Json:
        if isinstance(value, dict):
            return {field: walk(inner, field) for field, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, key) for inner in value]
        return f"{name}{value}" if isinstance(value, str) and key in FOREIGN else value

    return type(record).model_validate(walk(json.loads(record.model_dump_json()), ""))


@cache
def _recommendation() -> Recommendation:
    limits = Limits(objectives=ttft_p99("150ms"), memory_bytes=2000 * 2**20, quality_loss=0.01)
    return recommend(study(), limits, price_per_hour=1.0)


@cache
def _comparison() -> Comparison:
    before, after = (side(name, speed, 1, engines=("old", "new")) for name, speed in (("a", 1.0), ("b", 0.9)))
    return against(before, after, SLOWER_BY_3)


@cache
def _explanation() -> Explanation:
    of = evidence(lambda one, at: 0.04 + at if one == QUANTIZED else 0.03 + at, places=(1, 8))
    return explain(of, QUANTIZED, PLAIN, of.plan.study.workloads[0])


@cache
def _history() -> History:
    nights = [night(1, 1.0), night(2, 0.8, version="1.1")]
    return history(find_cell("engine / interactive", nights), "output_throughput", nights)


DOCUMENTS: dict[str, Callable[[str], Document]] = {
    "recommend": lambda name: recommendation_document(made_hostile(_recommendation(), name)),
    "compare": lambda name: comparison_document(made_hostile(_comparison(), name)),
    "explain": lambda name: explanation_document(made_hostile(_explanation(), name)),
    "history": lambda name: history_document(made_hostile(_history(), name)),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_form_is_harmless(command: str, kind: str) -> None:
    document = DOCUMENTS[command](HOSTILE[kind])
    text = markdown(document)
    rendered = str(MarkdownIt("commonmark").enable("table").render(text))
    harmless(Elements(rendered.replace('<img src="figures/', '<span title="figures/')), scripts=0)
    assert rendered.count("<h2>") == len(document.sections)  # no heading was opened or swallowed
    printable(text)
    printable(json.dumps(document_data(document), ensure_ascii=False))
    for show in (render, render_whole):
        console = Console(file=io.StringIO(), width=100)
        show(document, console)
        assert isinstance(console.file, io.StringIO)
        printable(console.file.getvalue())
        assert max(map(len, console.file.getvalue().splitlines())) <= 100


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_chart_of_a_history_is_harmless(kind: str) -> None:
    (chart,) = (block for block in DOCUMENTS["history"](HOSTILE[kind]).answer if isinstance(block, Chart))
    made = svg(chart.figure)
    ElementTree.fromstring(made)
    harmless(Elements(made), scripts=0)
    printable(made)
