"""Two studies against each other: what is told, what is refused, and how often the gate is wrong."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from bitbench.analysis.changes import parse_gate_condition
from bitbench.analysis.results.comparison import ChangeVerdict, Comparison
from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import compare_studies, compare_within_study
from bitbench.api.compare import compare
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import InstanceFacts, KernelChoice, Outcome
from bitbench.reports.answers.compare import build_comparison
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.base import Json
from bitbench.study.plan import Config, Point
from bitbench.study.study import Count, EngineSetup, Measure, Study
from bitbench.study.variant import Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import CannotCompareError, ExitCode, UsageError
from tests.command_line import bitbench
from tests.support.synthetic import (
    LOCK,
    make_instance,
    make_plan,
    make_records,
    make_trial,
    measured_trials,
    speed_metrics,
)

WORKLOADS = [BUILT_IN_WORKLOADS["interactive"], BUILT_IN_WORKLOADS["medium_batch"]]
SLOWER_BY_3 = "output_throughput < -3%"


def side(
    name: str,
    speed: float,
    seed: int,
    *,
    measure: Measure | None = None,
    engines: Sequence[str] = ("engine",),
    facts: InstanceFacts | None = None,
    lock: dict[str, Json] | None = None,
) -> StudyRecords:
    """A study whose true speed is known, with 1 % noise between starts and 1.5 % between trials."""
    measure = measure or Measure()
    plan = make_plan(engines, WORKLOADS, measure)
    rng = np.random.default_rng(seed)
    trials = [
        trial
        for point in plan.points
        for trial in measured_trials(point, measure, 1000 * speed, rng, between=0.010, within=0.015)
    ]
    instances = [
        make_instance(
            config, 0, facts=facts or InstanceFacts(engine_version="1.0", kernels=("int8",))
        )
        for config in plan.configs
    ]
    return make_records(plan, trials, instances, name=name, lock=lock)


def with_study(of: StudyRecords, study: Study) -> StudyRecords:
    plan = of.plan.model_copy(update={"study": study})
    return replace(of, lock=of.lock.model_copy(update={"plan": plan}))


def against(
    before: StudyRecords, after: StudyRecords, *limits: str, allow: Sequence[Fact] = ()
) -> Comparison:
    conditions = [parse_gate_condition(text) for text in limits]
    return compare_studies(before, after, conditions=conditions, allowed=allow)


def page(comparison: Comparison) -> str:
    return render_markdown(build_comparison(comparison))


def test_ten_percent_faster_passes_and_is_said() -> None:
    comparison = against(side("a", 1.0, 1), side("b", 1.1, 2), SLOWER_BY_3)
    assert comparison.exit_code == 0
    assert {point.verdict for point in comparison.points} == {ChangeVerdict.FASTER}
    assert all(
        point.ratio and point.ratio.value == pytest.approx(1.1, abs=0.03)
        for point in comparison.points
    )
    assert {gate.verdict for gate in comparison.gates} == {Verdict.MET}


def test_what_is_alike_is_said_once() -> None:
    plan = make_plan(["e"], WORKLOADS[:1])
    configs = [Config(variant=f"m/v{number}", engine="e") for number in range(6)]
    points = tuple(Point(config=one, workload=WORKLOADS[0].name) for one in configs)
    variants = tuple(
        Variant(name=one.variant, model="m", recipe=one.variant[2:]) for one in configs
    )
    many = plan.model_copy(update={"points": points, "variants": variants})
    trials = [
        make_trial(
            point, block, index, metrics=speed_metrics(WORKLOADS[0], 100 + block + index / 10)
        )
        for point in points
        for block in range(3)
        for index in range(3)
    ]
    both = (make_records(many, trials, name=name) for name in ("a", "b"))
    text = page(compare_studies(*both, conditions=(), allowed=()))
    assert "Output throughput against `a`: undecided on all 6 points." in text
    assert "Model: m. Engine: e." in text
    assert "m/v0" not in text


def test_the_interval_beside_a_verdict_agrees_with_it() -> None:
    """One at 95 % may exclude "equal" where the verdict, which is corrected for all points, is a tie."""
    few = Measure(starts=Count(min=3, max=3), trials=Count(min=2, max=2))
    disagreeing = 0
    for seed in range(40):
        points = against(
            side("a", 1.0, seed, measure=few), side("b", 1.015, 100 + seed, measure=few)
        ).points
        for point in points:
            assert point.ratio is not None
            assert point.ratio.interval is not None
            assert point.corrected is not None
            excludes = not point.corrected.low <= 1 <= point.corrected.high
            assert excludes is (point.verdict is not ChangeVerdict.UNDECIDED)
            disagreeing += excludes is (point.ratio.interval.low <= 1 <= point.ratio.interval.high)
    assert disagreeing > 0
    shown = page(against(side("a", 1.0, 1), side("b", 1.1, 2)))
    assert "Times better (corrected)" in shown or "Times better (98" in shown


def test_too_few_starts_are_inconclusive_and_more_decide() -> None:
    few = Measure(starts=Count(min=2, max=2), trials=Count(min=3, max=3))
    comparison = against(
        side("a", 1.0, 3, measure=few), side("b", 0.95, 4, measure=few), SLOWER_BY_3
    )
    assert comparison.exit_code == 2
    unsure = [gate for gate in comparison.gates if gate.verdict is Verdict.INCONCLUSIVE]
    assert {gate.reason for gate in unsure} == {"the interval contains the limit"}
    enough = Measure(starts=Count(min=60, max=60), trials=Count(min=3, max=3))
    assert (
        against(
            side("a", 1.0, 3, measure=enough), side("b", 0.95, 4, measure=enough), SLOWER_BY_3
        ).exit_code
        == 1
    )


def test_one_start_decides_nothing() -> None:
    one = Measure(starts=Count(min=1, max=1), trials=Count(min=10, max=10))
    comparison = against(
        side("a", 1.0, 5, measure=one), side("b", 0.5, 6, measure=one), SLOWER_BY_3
    )
    assert comparison.exit_code == 2
    assert "one side has a single start, which does not cover a restart." in page(comparison)


def running(name: str, speed: float, seed: int, trials: int) -> StudyRecords:
    """What `bitbench load` leaves: one instance that was running already."""
    measure = Measure(starts=Count(min=1, max=1), trials=Count(min=trials, max=trials))
    records = side(name, speed, seed, measure=measure)
    facts = [one.model_copy(update={"facts": one.facts.model_copy(update={"was_running": True})})
             for one in records.instances]  # fmt: skip
    return replace(records, instances=facts)


def test_an_endpoint_that_runs_already_is_judged_on_its_trials() -> None:
    slower = against(running("a", 1.0, 5, trials=3), running("b", 0.5, 6, trials=3), SLOWER_BY_3)
    assert slower.exit_code is ExitCode.FAILED
    text = page(slower)
    assert "and the intervals do not cover a restart" in text
    equal = against(
        running("a", 1.0, 5, trials=3), running("b", 1.0, 6, trials=3), "output_throughput < -30%"
    )
    assert equal.exit_code is ExitCode.DONE
    few = against(running("a", 1.0, 5, trials=2), running("b", 0.5, 6, trials=3), SLOWER_BY_3)
    assert few.exit_code is ExitCode.INCONCLUSIVE
    assert "one side has fewer than 3 trials." in page(few)


def test_inconclusive_fails_unless_told_otherwise_and_a_lost_point_always_does(
    tmp_path: Path,
) -> None:
    one = Measure(starts=Count(min=1, max=1), trials=Count(min=10, max=10))
    before, after = side("a", 1.0, 5, measure=one), side("b", 1.0, 6, measure=one)
    folders = write(before, tmp_path / "a"), write(after, tmp_path / "b")
    asked = {"fail_if": [SLOWER_BY_3]}
    assert compare(*folders, **asked).exit_code is ExitCode.INCONCLUSIVE
    allowed = compare(*folders, **asked, allow_inconclusive=True)
    assert allowed.exit_code is ExitCode.DONE
    assert "exit code 0" in page(allowed)
    lost = replace(
        after, trials=[trial for trial in after.trials if trial.point != after.plan.points[0]]
    )
    lost_folder = write(lost, tmp_path / "lost")
    assert (
        compare(folders[0], lost_folder, **asked, allow_inconclusive=True).exit_code
        is ExitCode.INCONCLUSIVE
    )


def test_limits_in_both_directions() -> None:
    slow = against(side("a", 1.0, 7), side("b", 1.2, 8), "output_throughput > 5%")
    assert slow.exit_code == 1
    assert parse_gate_condition(" ttft>+5 % ").limit == pytest.approx(1.05)
    assert parse_gate_condition("latency > 5%").metric == "latency_s"
    for wrong in (
        "output_throughput",
        "speed < -3%",
        "ttft < -100%",
        "ttft < 3 ms",
        "ttft = 3%",
        "ttft < ..%",
    ):
        with pytest.raises(UsageError):
            parse_gate_condition(wrong)
    with pytest.raises(
        UsageError, match='needs a percent sign; write "ttft > 3%" or "ttft > 300%"'
    ):
        parse_gate_condition("ttft > 3")
    assert parse_gate_condition("ttft > 0").change == 0


def chosen(kernel: str) -> InstanceFacts:
    choice = KernelChoice(kind="W4A16", kernel=kernel, source="log")
    return InstanceFacts(engine_version="1.0", kernels=("as it says",), kernel_choices=(choice,))


CHOSEN = chosen("MarlinLinearKernel").model_copy(update={"kernels": ()})


def test_variants_that_differ_only_in_kernel_are_told_apart_by_it() -> None:
    marlin, conch = chosen("MarlinLinearKernel"), chosen("ConchLinearKernel")
    against(side("a", 1.0, 9, facts=marlin), side("b", 1.0, 10, facts=marlin))
    with pytest.raises(
        CannotCompareError, match=r"W4A16: MarlinLinearKernel and W4A16: ConchLinearKernel.*--allow"
    ):
        against(side("a", 1.0, 9, facts=marlin), side("b", 1.0, 10, facts=conch))


@pytest.mark.parametrize(
    ("change", "fact", "said"),
    [
        (
            {"facts": InstanceFacts(engine_version="1.1", kernels=("int8",))},
            Fact.ENGINE_VERSION,
            "1.0 and 1.1",
        ),
        (
            {"facts": InstanceFacts(engine_version="1.0", kernels=("bf16",))},
            Fact.KERNEL,
            "int8 and bf16",
        ),
        ({"facts": InstanceFacts(engine_version="1.0")}, Fact.KERNEL, "int8 and unknown"),
        (
            {"facts": CHOSEN},
            Fact.KERNEL,
            "int8 and W4A16: MarlinLinearKernel",
        ),  # one side does not tell layers apart
        (
            {"lock": {**LOCK, "host": {**LOCK["host"], "cores": 4}}},
            Fact.HOST,
            r"host \(cores\): 2 and 4",
        ),
        (
            {"lock": {**LOCK, "environments": {"vllm": {"torch": "2.14"}}}},
            Fact.ENVIRONMENT,
            "2.13.0 and 2.14",
        ),
        ({"lock": {**LOCK, "bitbench": "9"}}, Fact.TOOL, "bitbench 0.1.0 and bitbench 9"),
    ],
)
def test_a_fact_that_differs_is_refused_by_name_and_allowed_by_name(
    change: dict[str, Json], fact: Fact, said: str
) -> None:
    before, after = side("a", 1.0, 9), side("b", 1.0, 10, **change)
    with pytest.raises(CannotCompareError, match=rf"{said}.*--allow {fact.value}"):
        against(before, after)
    comparison = against(before, after, allow=[fact])
    assert {one.fact for one in comparison.differences} == {fact}
    assert "Differs (allowed)" in page(comparison)


def test_arguments_and_shapes_are_facts() -> None:
    before, after = side("a", 1.0, 11), side("b", 1.0, 12)
    eager = EngineSetup(name="engine", engine="null", args={"enforce-eager": True})
    study = after.plan.study.model_copy(update={"engines": (eager,)})
    other = with_study(after, study)
    with pytest.raises(CannotCompareError, match=r"none and enforce-eager=True.*--allow arguments"):
        against(before, other)
    cached = after.plan.study.model_copy(
        update={"engines": (EngineSetup(name="engine", engine="null", kv_cache="q4_0"),)}
    )
    with pytest.raises(CannotCompareError, match=r"none and kv_cache=q4_0.*--allow arguments"):
        against(before, with_study(after, cached))
    keyed = EngineSetup(name="engine", engine="null", env={"HF_TOKEN": "hf_abc"})
    study = after.plan.study.model_copy(update={"engines": (keyed,)})
    other = with_study(after, study)
    assert against(before, other).differences == ()
    longer = tuple(one.model_copy(update={"input_tokens": 999}) for one in WORKLOADS)
    study = after.plan.study.model_copy(update={"workloads": longer})
    other = with_study(after, study)
    with pytest.raises(
        CannotCompareError, match="workload interactive is not the same: input_tokens 128 and 999"
    ):
        against(before, other, allow=list(Fact))


def test_a_point_that_lost_its_result_is_no_pass() -> None:
    before, after = side("a", 1.0, 13), side("b", 1.0, 14)
    lost = after.plan.points[0]
    trials = [
        *(trial for trial in after.trials if trial.point != lost),
        make_trial(lost, 0, 0, outcome=Outcome.CRASHED, cause="it ended"),
    ]
    comparison = against(before, replace(after, trials=trials), "output_throughput < -50%")
    assert comparison.exit_code == 2
    assert [one.was_lost for one in comparison.unpaired] == [True]
    text = page(comparison)
    assert "has no result in b (crashed): it had one before" in text
    assert "the candidate lacks this figure" in text


def test_a_limit_that_nothing_was_held_against_was_not_kept() -> None:
    before, after = side("a", 1.0, 20), side("b", 1.0, 21)
    assert against(before, after, "device_bytes > 5%").exit_code == 2
    empty = replace(after, trials=[])
    nothing = replace(before, trials=[])
    assert against(nothing, empty, SLOWER_BY_3).exit_code is ExitCode.NOTHING_MEASURED


def test_two_configs_of_one_study() -> None:
    both = side("a", 1.0, 15, engines=("old", "new"))
    pair = (Config(variant="none", engine="old"), Config(variant="none", engine="new"))
    comparison = compare_within_study(
        both, [pair], conditions=[parse_gate_condition("output_throughput < -20%")]
    )
    assert len(comparison.points) == 2
    assert comparison.exit_code == 0
    assert page(comparison).startswith("# `new` against `old`\n")


def test_hostile_names_do_no_harm() -> None:
    name = '<script>alert("|")</script>\u202e`**' + "x" * 10_000
    study = side(name, 1.0, 16, engines=(name,))
    text = page(against(study, side(name, 0.8, 17, engines=(name,)), SLOWER_BY_3))
    html = str(MarkdownIt("commonmark").enable("table").render(text))
    assert "<script" not in html
    assert "\u202e" not in html
    assert max(map(len, text.splitlines())) < 2_000
    for table in html.split("<table>")[1:]:
        rows = table.split("</table>")[0].split("<tr>")[1:]
        assert len({row.count("<td") + row.count("<th") for row in rows}) == 1


def write(study: StudyRecords, path: Path) -> Path:
    """As a folder, such as one that was saved as a baseline: no rows, no logs."""
    folder = StudyFolder(path)
    with folder.open_writer() as writer:
        for instance in study.instances:
            writer.append_instance(instance)
        for trial in study.trials:
            writer.append_trial(trial, None)
        writer.write_study("name: x\n")
        writer.write_lock(study.lock)
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write(side("a", 1.0, 18, engines=("old", "new")), tmp_path / "a")
    after = write(side("b", 0.8, 19, engines=("old", "new")), tmp_path / "b")
    said = bitbench(
        capsys, "compare", str(before), str(after), "--fail-if", SLOWER_BY_3, "--format", "markdown"
    )
    assert said.exit_code == 1
    assert "**Limits: 4 missed; exit code 1.**" in said.out
    corrected = "Corrected for 4 comparisons (98.75 % intervals each): the overall false-alarm rate stays below 5 %."
    assert corrected in said.out
    shown = bitbench(capsys, "compare", str(before), str(after), "--fail-if", SLOWER_BY_3)
    assert shown.out.rstrip().endswith(
        "Limits: 4 missed; exit code 1."
    )  # what is read last stays on the screen
    assert (
        bitbench(capsys, "compare", str(after), str(before), "--fail-if", SLOWER_BY_3).exit_code
        == 0
    )
    assert bitbench(capsys, "compare", str(before), str(after)).exit_code == 0
    own = bitbench(capsys, "compare", str(before), "--variants", "old", "new")
    assert own.exit_code == 0
    assert "Output throughput against old: " in " ".join(own.out.split())
    for arguments, expected in (
        ((str(before),), "give two study folders"),
        ((str(before), "--variants", "old", "nobody"), "it has old, new"),
        (
            (str(before), "--variants", "old", "new", "--allow", "host"),
            "--allow is for two study folders",
        ),
        (
            (str(before), str(after), "--fail-if", "output_thruput < -3%"),
            "did you mean `output_throughput`?",
        ),
        ((str(before), str(after), "--fail-if", "output_throughput < -3"), "needs a percent sign"),
        ((str(before), str(after), "--fail-iff", SLOWER_BY_3), "No such option"),
    ):
        wrong = bitbench(capsys, "compare", *arguments)
        assert wrong.exit_code == ExitCode.USAGE
        assert expected in wrong.err
    refused = bitbench(capsys, "compare", str(before), str(tmp_path / "none"))
    assert refused.exit_code == ExitCode.REFUSED
    assert "is not a study folder" in refused.err


def test_figures_of_every_kind_can_be_shown(tmp_path: Path) -> None:
    plan = make_plan(["engine"], WORKLOADS[:1], Measure())
    (point,) = plan.points

    def made(name: str, speed: float) -> StudyRecords:
        trials = [
            make_trial(
                point, block, index, metrics=speed_metrics(WORKLOADS[0], speed + block + index / 10)
            )
            for block in range(3)
            for index in range(3)
        ]
        return make_records(plan, trials, name=name)

    comparison = against(made("a", 200), made("b", 100), "ttft > 5%")
    assert [point.verdict for point in comparison.points] == [
        ChangeVerdict.SLOWER,
        ChangeVerdict.SLOWER,
    ]
    assert Fact.KERNEL in comparison.unknown_facts
    assert "Missing on both sides, so not checked" in page(comparison)
