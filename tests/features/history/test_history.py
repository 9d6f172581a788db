"""One metric over past studies: what moved, and what else changed."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.analysis.results.comparison import ChangeVerdict
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import compare_studies
from bitbench.features.history.history import (
    History,
    build_history_document,
    find_point_for_history,
    history,
)
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import InstanceFacts
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.model import Table
from bitbench.study.base import Json
from bitbench.study.study import Count, Measure
from bitbench.util.errors import StoreError
from tests.command_line import bitbench
from tests.support.hostile import HOSTILE
from tests.support.hostile_documents import assert_every_form_is_harmless, made_hostile
from tests.support.synthetic import LOCK
from tests.unit.test_compare import side, with_study

MEASURE = Measure(starts=Count(min=4, max=4), trials=Count(min=3, max=3))


def night(number: int, speed: float, version: str = "1.0", **lock: Json) -> StudyRecords:
    """A study of the engine `engine`; its host is the same unless `lock` says otherwise."""
    return side(
        f"night-{number}",
        speed,
        number,
        measure=MEASURE,
        facts=InstanceFacts(engine_version=version, kernels=("int8",)),
        lock={**LOCK, "created_at": f"2026-11-0{number}T03:00:00.000+00:00", **lock},
    )


@pytest.fixture(scope="module")
def nights() -> list[StudyRecords]:
    return [night(1, 1.0), night(2, 1.0), night(3, 0.8, version="1.1"), night(4, 0.8)]


@pytest.fixture(scope="module")
def found(nights: list[StudyRecords]) -> History:
    return history(
        find_point_for_history("engine / interactive", nights), "output_throughput", nights
    )


def test_a_fall_is_told_and_noise_is_not(found: History) -> None:
    assert [point.move.verdict if point.move else None for point in found.points] == [
        None,
        ChangeVerdict.UNDECIDED,
        ChangeVerdict.SLOWER,
        ChangeVerdict.UNDECIDED,
    ]
    assert (move := found.points[2].move) is not None
    assert move.ratio is not None
    assert move.ratio.value == pytest.approx(0.8, abs=0.03)


def test_facts_that_changed_are_marked(found: History) -> None:
    assert [[one.fact for one in point.changes] for point in found.points] == [
        [],
        [],
        [Fact.ENGINE_VERSION],
        [Fact.ENGINE_VERSION],
    ]


def test_one_start_tells_nothing(nights: list[StudyRecords]) -> None:
    one = Measure(starts=Count(min=1, max=1), trials=Count(min=3, max=3))
    single = side("night-5", 0.5, 9, measure=one)
    points = history(
        find_point_for_history("engine / interactive", nights),
        "output_throughput",
        [*nights, single],
    ).points
    assert (move := points[-1].move) is not None
    assert move.verdict is ChangeVerdict.UNKNOWN


def test_another_shape_is_left_out_and_named(nights: list[StudyRecords]) -> None:
    study = nights[0].plan.study
    longer = tuple(one.model_copy(update={"output_tokens": 999}) for one in study.workloads)
    longest = with_study(nights[0], study.model_copy(update={"workloads": longer}))
    other = replace(longest, name="other")
    found = history(
        find_point_for_history("engine / interactive", nights),
        "output_throughput",
        [other, *nights],
    )
    assert found.other_shape == ("other",)
    assert len(found.points) == 4


def test_a_point_by_part_of_its_name(nights: list[StudyRecords]) -> None:
    assert find_point_for_history("inter", nights).workload == "interactive"
    with pytest.raises(
        StoreError,
        match="matches several points; known: engine / interactive; engine / medium_batch",
    ):
        find_point_for_history("engine", nights)
    with pytest.raises(StoreError, match="is not a point of these studies"):
        find_point_for_history("other / x", nights)


def test_the_table_has_a_row_for_each_study(found: History) -> None:
    document = build_history_document(found)
    (table,) = (block for block in document.answer if isinstance(block, Table))
    assert [row.cells[-1] for row in table.rows] == [
        ("–",),
        ("undecided",),
        ("slower *",),
        ("undecided *",),
    ]
    assert "* `night-3`: engine-version: `1.0` → `1.1`." in render_markdown(document).replace(
        "\\*", "*"
    )


def test_without_a_figure_it_says_so(found: History) -> None:
    nothing = found.model_copy(update={"points": ()})
    assert "No study has this figure for this point." in render_markdown(
        build_history_document(nothing)
    )
    failed = nothing.model_copy(update={"without_result": ("night-1", "night-2")})
    assert "Without a result: `night-1` and `night-2`." in render_markdown(
        build_history_document(failed)
    )


def test_the_command(
    nights: list[StudyRecords], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in nights:
        with StudyFolder(tmp_path / "past" / one.name).open_writer() as writer:
            writer.write_study("name: made-up\n")
            writer.write_lock(one.lock)
            for instance in one.instances:
                writer.append_instance(instance)
            for trial in one.trials:
                writer.append_trial(trial, None)
    (tmp_path / "past" / "empty").mkdir()
    (tmp_path / "past" / "empty" / "lock.json").write_text("{}")
    said = bitbench(capsys, "history", str(tmp_path / "past"), "--point", "interactive")
    assert said.exit_code == 0, said.err
    words = " ".join(said.out.split())
    assert "2026-11-03 03:00" in words
    assert "slower" in words
    assert "engine-version: 1.0 → 1.1" in words
    nothing = bitbench(capsys, "history", str(tmp_path / "past" / "empty"), "--point", "x")
    assert "no study folder below" in nothing.err


def test_quality_has_no_history(nights: list[StudyRecords]) -> None:
    with pytest.raises(StoreError, match="perplexity has no history"):
        history(find_point_for_history("engine / interactive", nights), "perplexity", nights)


def test_two_studies_get_the_verdict_of_compare(nights: list[StudyRecords]) -> None:
    """Also where a difference is found only because other points lend what they know: two starts of each."""
    few = Measure(starts=Count(min=2, max=2), trials=Count(min=3, max=3))
    engines = ("engine", "second", "third", "fourth")
    before = side("before", 1.0, 31, measure=few, engines=engines)
    after = side("after", 0.93, 32, measure=few, engines=engines)
    single = side(
        "single", 0.5, 33, measure=Measure(starts=Count(min=1, max=1), trials=Count(min=3, max=3))
    )
    for one, other in (
        (before, after),
        (nights[1], nights[2]),
        (nights[0], nights[1]),
        (nights[0], single),
    ):
        compared = compare_studies(one, other, conditions=(), allowed=list(Fact))
        for point in compared.points:
            _, newer = history(point.candidate, point.metric, [one, other]).points
            assert newer.move == point
    few_starts = history(
        find_point_for_history("engine / interactive", nights), "output_throughput", [before, after]
    )
    assert (move := few_starts.points[-1].move) is not None
    assert move.verdict is ChangeVerdict.SLOWER


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_stay_text_in_each_form(found: History, kind: str) -> None:
    assert_every_form_is_harmless(build_history_document(made_hostile(found, HOSTILE[kind])))
