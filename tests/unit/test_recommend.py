"""What is recommended under which limits: decided by intervals, with ties, open questions and no answer as answers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from bitbench.analysis.quality import KL, RISE
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.recommendation import Choice, Limits, Recommendation
from bitbench.analysis.results.summary import ConfigQuality, QualityState, StudySummary
from bitbench.analysis.summarize import summarize as summarize_records
from bitbench.api.recommend import make_deployment_command
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Memory, Outcome, TrialMetrics, TrialRecord
from bitbench.reports.answers.recommend import build_recommendation
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Point
from bitbench.study.study import Count, EngineSetup, Measure
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import ExitCode, UsageError
from tests.command_line import bitbench
from tests.support.synthetic import make_lock, make_plan, make_trial, summarize

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
WORKLOADS = [BUILT_IN_WORKLOADS["interactive"], BUILT_IN_WORKLOADS["medium_batch"]]
MEASURE = Measure(starts=Count(min=4, max=4), trials=Count(min=3, max=3))
# Tokens per second, time to first token, memory: of each engine.
TRUTH = {
    "plain": (100.0, 0.100, 1000),
    "twin": (100.3, 0.100, 900),
    "quick": (150.0, 0.290, 1500),
    "greedy": (300.0, 0.050, 5000),
}


def study(
    truth: Mapping[str, tuple[float, float, int]] = TRUTH,
    *,
    noise: float = 0.01,
    measure: Measure = MEASURE,
    requests: int = 1000,
) -> StudySummary:
    """Without the rows of its requests: only what each trial recorded is known."""
    plan = make_plan(list(truth), WORKLOADS, measure, baseline="plain")
    rng = np.random.default_rng(4)
    trials: list[TrialRecord] = []
    for point in plan.points:
        speed, ttft, mebibytes = truth[point.config.engine]
        for block in range(measure.starts.min):
            for index in range(measure.trials.min):
                factor = float(np.exp(noise * rng.normal()))
                metrics = TrialMetrics(
                    output_throughput=speed * factor, ttft_s=ttft, ttft_p99_s=ttft * factor
                )
                memory = Memory(peak_bytes=round(mebibytes * 2**20 * factor))
                trials.append(
                    make_trial(
                        point, block, index, metrics=metrics, memory=memory, requests=requests
                    )
                )
    return summarize(plan, trials, [])


def named(engine: str) -> Config:
    return Config(variant=NO_MODEL, engine=engine)


def page(found: Recommendation) -> str:
    return render_markdown(build_recommendation(found))


def ttft_p99(limit: str) -> tuple[Objective, ...]:
    return (Objective(metric="ttft", statistic="p99", limit=limit),)  # type: ignore[arg-type]


def only(found: Recommendation) -> Choice:
    (choice,) = found.choices
    return choice


def test_without_limits_the_fastest_with_its_gain() -> None:
    found = recommend(study(), Limits(), workloads=["interactive"])
    choice = only(found)
    assert choice.chosen == named("greedy")
    ratio = choice.of(named("greedy")).ratio_to_baseline
    assert ratio is not None
    assert ratio.interval is not None
    assert ratio.interval.low < 3.0 < ratio.interval.high
    assert found.exit_code == 0
    assert "**Use `greedy` on `interactive`.** Its output throughput is " in page(found)


def test_a_study_of_quality_alone_says_why_nothing_is_recommended() -> None:
    summary = study()
    asked = summary.study.model_copy(update={"workloads": ()})
    alone = summary.model_copy(update={"study": asked, "rankings": (), "points": ()})
    found = recommend(alone, Limits())
    assert found.exit_code is ExitCode.NOTHING_MEASURED
    assert "**No config has a result:** the study has no workloads, so nothing was timed." in page(
        found
    )
    with pytest.raises(UsageError, match="it has none"):
        recommend(alone, Limits(), workloads=["interactive"])


def test_a_limit_rules_out_by_its_whole_interval() -> None:
    found = recommend(study(), Limits(memory_bytes=2000 * 2**20), workloads=["interactive"])
    choice = only(found)
    assert choice.chosen == named("quick")
    assert choice.of(named("greedy")).verdict is Verdict.MISSED
    assert "| ruled out " in page(found)


def test_an_interval_that_contains_the_limit_neither_meets_nor_rules_out() -> None:
    limits = Limits(objectives=ttft_p99("290ms"), memory_bytes=2000 * 2**20)
    choice = only(recommend(study(), limits, workloads=["interactive"]))
    assert choice.of(named("quick")).verdict is Verdict.INCONCLUSIVE
    assert choice.chosen in (named("twin"), named("plain"))  # slower, but surely within
    text = page(recommend(study(), limits, workloads=["interactive"]))
    assert "Inconclusive: `ttft_p99` of `quick`: its interval contains the limit." in text


def test_equals_are_named_as_a_tie() -> None:
    limits = Limits(objectives=ttft_p99("150ms"), memory_bytes=2000 * 2**20)
    found = recommend(study(), limits, workloads=["interactive"])
    choice = only(found)
    assert {choice.chosen, *choice.undecided} == {named("twin"), named("plain")}
    text = page(found)
    assert "Undecided between it and `" in text


def test_what_speaks_against_a_choice_stands_beside_it() -> None:
    summary = study()
    quantized = [one.model_copy(update={"is_reference": False}) for one in summary.configs]
    unknown = summary.model_copy(update={"configs": tuple(quantized)})
    assert "`; its quality was not measured." in page(
        recommend(unknown, Limits(), workloads=["interactive"])
    )
    flag = ConfigQuality(
        config=named("greedy"),
        baseline=None,
        outcome=Outcome.OK,
        state=QualityState.BEYOND,
        reason="perplexity +900 %",
    )
    flagged = unknown.model_copy(update={"quality": (flag,)})
    found = recommend(flagged, Limits(), workloads=["interactive"])
    assert only(found).chosen != named("greedy")
    assert "| quality flagged | `greedy`" in page(found)
    loose = flagged.model_copy(
        update={
            "quality": (
                flag.model_copy(update={"estimates": {RISE: Estimate(value=9, low=8, high=9.5)}}),
            )
        }
    )
    kept = recommend(loose, Limits(quality_loss=10), workloads=["interactive"])
    assert only(kept).chosen == named("greedy")
    assert "`; its quality is flagged: perplexity +900 %." in page(kept)
    alone = ConfigQuality(config=named("greedy"), baseline=None, outcome=Outcome.OK)
    text = page(
        recommend(
            unknown.model_copy(update={"quality": (alone,)}), Limits(), workloads=["interactive"]
        )
    )
    assert "`; its quality is unknown." in text  # measured, with nothing to compare it with
    fine = ConfigQuality(
        config=named("quick"),
        baseline=named("plain"),
        outcome=Outcome.OK,
        state=QualityState.WITHIN,
        estimates={RISE: Estimate(value=0.01)},
    )
    text = page(
        recommend(
            unknown.model_copy(update={"quality": (flag, fine)}),
            Limits(),
            workloads=["interactive"],
        )
    )
    assert "**Use `quick` on `interactive`.**" in text
    assert "the output throughput of the baseline `plain`." in text
    assert "Caution" not in page(recommend(summary, Limits(), workloads=["interactive"]))


def test_without_limits_the_others_are_behind() -> None:
    text = page(recommend(study(), Limits(), workloads=["interactive"]))
    assert "| behind   | `quick`" in text
    assert "| meets" not in text


def test_none_is_an_answer() -> None:
    found = recommend(study(), Limits(objectives=ttft_p99("20ms")), workloads=["interactive"])
    choice = only(found)
    assert choice.chosen is None
    assert found.exit_code == 1
    assert "**No config meets ttft_p99 on `interactive`.**" in page(found)


def test_inconclusive_has_an_exit_code_of_its_own() -> None:
    found = recommend(
        study(noise=0.2), Limits(objectives=ttft_p99("50ms")), workloads=["interactive"]
    )
    assert only(found).of(named("greedy")).verdict is Verdict.INCONCLUSIVE
    assert found.exit_code == 2
    assert "**Inconclusive: ttft_p99 on `interactive`.** 1 may meet it." in page(found)
    assert "To decide, run the study again with a larger budget or more starts." in page(found)
    unknown = recommend(study(), Limits(quality_loss=0.01), workloads=["interactive"])
    assert "To decide, add quality: {} to the study and run it into a new folder." in page(unknown)
    vague = with_quality({"greedy": (0.005, 0.008, 0.012)})
    text = page(
        recommend(vague, Limits(quality_loss=0.01), workloads=["interactive"], engines=["greedy"])
    )
    assert (
        "To decide, measure quality with more `windows` or a longer `corpus`, into a new folder."
        in text
    )


@pytest.mark.parametrize("trials", [1, 5])
def test_one_start_is_no_choice(trials: int) -> None:
    once = Measure(starts=Count(min=1, max=1), trials=Count(min=trials, max=trials))
    found = recommend(study(measure=once), Limits(), workloads=["interactive"])
    choice = only(found)
    assert (choice.chosen, choice.undecided, choice.starts_needed) == (None, (), 3)
    assert found.exit_code is ExitCode.INCONCLUSIVE
    assert "Use" not in page(found)


def test_one_start_decides_nothing() -> None:
    one = Measure(starts=Count(min=1, max=1), trials=Count(min=5, max=5))
    found = recommend(
        study(measure=one), Limits(objectives=ttft_p99("1s")), workloads=["interactive"]
    )
    assert found.exit_code == 2
    assert "one start does not cover a restart" in page(found)


def test_quality_that_was_not_measured_meets_no_limit() -> None:
    found = recommend(study(), Limits(quality_loss=0.01), workloads=["interactive"])
    assert only(found).chosen is None
    assert found.exit_code == 2
    text = page(found)
    assert "quality was not measured in this study" in text
    assert "add quality: {} to the study" in text


def with_quality(rises: Mapping[str, tuple[float, float, float] | None]) -> StudySummary:
    quality = []
    for engine, rise in rises.items():
        estimates = {}
        if rise is not None:
            estimates = {RISE: Estimate(value=rise[1], low=rise[0], high=rise[2], confidence=0.95)}
        quality.append(
            ConfigQuality(
                config=named(engine),
                baseline=named("plain"),
                outcome=Outcome.OK if rise else Outcome.CRASHED,
                cause=None if rise else "it died",
                estimates=estimates,
            )
        )
    return study().model_copy(update={"quality": tuple(quality)})


def test_quality_rules_out_and_the_baseline_has_lost_nothing() -> None:
    summary = with_quality(
        {"plain": None, "greedy": (0.02, 0.03, 0.04), "quick": (0.005, 0.008, 0.012), "twin": None}
    )
    found = recommend(summary, Limits(quality_loss=0.01), workloads=["interactive"])
    choice = only(found)
    verdicts = {one.config.engine: one.verdict for one in choice.judged}
    assert verdicts == {
        "greedy": Verdict.MISSED,
        "quick": Verdict.INCONCLUSIVE,
        "twin": Verdict.INCONCLUSIVE,
        "plain": Verdict.MET,
    }
    assert choice.chosen == named("plain")
    text = page(found)
    assert "| ruled out " in text
    assert "its quality is unknown (it died)" in text


def test_a_quantized_baseline_is_held_against_the_unquantized_model() -> None:
    lossy = ConfigQuality(
        config=named("plain"), baseline=named("twin"), outcome=Outcome.OK,
        state=QualityState.BEYOND, reason="perplexity +20 %",
        estimates={RISE: Estimate(value=0.2, low=0.19, high=0.21, confidence=0.95)},
    )  # fmt: skip
    summary = study().model_copy(update={"quality": (lossy,)})
    choice = only(recommend(summary, Limits(quality_loss=0.01), workloads=["interactive"]))
    assert {one.config.engine: one.verdict for one in choice.judged}["plain"] is Verdict.MISSED


def test_a_quantized_cache_is_judged_by_its_divergence() -> None:
    """On another's text it may seem to gain by chance: its divergence is a loss all the same."""
    made = with_quality({"plain": (0.0, 0.0, 0.0), "quick": (-0.01, -0.002, 0.004)})
    diverges = {KL: Estimate(value=0.047, low=0.04, high=0.05, confidence=0.95)}
    rows = tuple(
        row.model_copy(update={"estimates": row.estimates | diverges})
        if row.config == named("quick")
        else row
        for row in made.quality
    )
    setups = tuple(
        setup.model_copy(update={"kv_cache": "q4_0"}) if setup.name == "quick" else setup
        for setup in made.study.engines
    )
    for study_of, verdict in (
        (made.study, Verdict.MET),
        (made.study.model_copy(update={"engines": setups}), Verdict.MISSED),
    ):
        summary = made.model_copy(update={"quality": rows, "study": study_of})
        choice = only(recommend(summary, Limits(quality_loss=0.01), workloads=["interactive"]))
        judged = next(one for one in choice.judged if one.config == named("quick"))
        assert judged.verdict is verdict
    assert judged.findings[0].value == pytest.approx(np.expm1(0.047))


def test_one_engine_is_chosen_among_its_own_configs() -> None:
    found = recommend(study(), Limits(), workloads=["interactive"], engines=["quick", "twin"])
    assert only(found).chosen == named("quick")
    assert [one.config for one in only(found).judged] == [named("quick"), named("twin")]
    assert only(found).of(named("quick")).ratio_to_baseline is not None


def test_several_workloads_have_an_answer_each() -> None:
    found = recommend(study(), Limits())
    assert [choice.workload for choice in found.choices] == ["interactive", "medium_batch"]


def test_a_config_without_a_result_is_ruled_out_by_its_cause() -> None:
    plan = make_plan(["plain", "broken"], WORKLOADS[:1], MEASURE)
    good, bad = plan.points
    trials = [
        make_trial(good, block, 0, metrics=TrialMetrics(output_throughput=100.0 + block))
        for block in range(4)
    ] + [make_trial(bad, 0, 0, outcome=Outcome.OOM, cause="<b>needs 9 | GiB</b>")]
    text = page(recommend(summarize(plan, trials, []), Limits()))
    assert "No result of `broken`: oom: &lt;b&gt;needs 9 \\| GiB&lt;/b&gt;." in text


def test_the_p99_of_short_trials_meets_nothing_where_their_requests_were_not_kept() -> None:
    summary = study(requests=999)
    met = recommend(summary, Limits(objectives=ttft_p99("1s")), workloads=["interactive"])
    assert {one.verdict for one in only(met).judged} == {Verdict.INCONCLUSIVE}
    text = page(met)
    assert (
        "its requests were not kept, and the p99 of a single trial means something from 1,000 requests on"
        in text
    )
    missed = recommend(summary, Limits(objectives=ttft_p99("20ms")), workloads=["interactive"])
    assert {one.verdict for one in only(missed).judged} == {Verdict.MISSED}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plan = make_plan(list(TRUTH), WORKLOADS, MEASURE, baseline="plain")
    path = tmp_path / "study"
    with StudyFolder(path).open_writer() as writer:
        writer.write_study("name: made-up\n")
        writer.write_lock(make_lock(plan))
        for point in plan.points:
            speed, ttft, mebibytes = TRUTH[point.config.engine]
            for block in range(3):
                metrics = TrialMetrics(
                    output_throughput=speed * (1 + block / 100), ttft_p99_s=ttft * (1 + block / 100)
                )
                memory = Memory(peak_bytes=mebibytes * 2**20)
                trial = make_trial(point, block, 0, metrics=metrics, memory=memory, requests=1000)
                writer.append_trial(trial, None)
    return path


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("recommend", str(folder), "--slo", "ttft_p99=200ms", "--max-memory", "2GB")
    said = bitbench(capsys, *asked, "--workload", "interactive")
    assert said.exit_code == 0, said.err
    assert "use this" in said.out
    assert "Use twin on interactive. Its output throughput is" in " ".join(said.out.split()[-60:])
    assert "peak memory of at most 2 GB" in " ".join(said.out.split())
    assert bitbench(capsys, *asked, "--max-quality-loss", "1%").exit_code == 2
    assert (
        bitbench(
            capsys, "recommend", str(folder), "--slo", "ttft_p99=1ms", "--format", "markdown"
        ).exit_code
        == 1
    )


def test_the_command_to_deploy_is_the_one_that_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Variant(
        name="m/bf16", model="m", recipe="bf16", path=Path("$BITBENCH_HOME/models/m"), form="dense"
    )
    fast, slow, bare = (
        Config(variant=model.name, engine=name) for name in ("fast", "slow", "bare")
    )
    plan = make_plan(["slow"], WORKLOADS[:1], MEASURE, baseline=slow.name)
    engines = (
        EngineSetup(
            name="fast", engine="vllm", args={"enforce-eager": True}, env={"HF_TOKEN": "secret"}
        ),
        EngineSetup(name="slow", engine="llamacpp"),
        EngineSetup(name="bare", engine="transformers"),
    )
    points = [Point(config=one, workload=WORKLOADS[0].name) for one in (fast, slow, bare)]
    plan = plan.model_copy(
        update={
            "study": plan.study.model_copy(update={"engines": engines}),
            "variants": (model,),
            "points": tuple(points),
            "in_float32": (fast,),
        }
    )
    speeds = {"fast": 300.0, "slow": 100.0, "bare": 50.0}
    path = tmp_path / "study"
    with StudyFolder(path).open_writer() as writer:
        writer.write_study("name: made-up\n")
        writer.write_lock(make_lock(plan))
        for point in points:
            for block in range(3):
                metrics = TrialMetrics(
                    output_throughput=speeds[point.config.engine] * (1 + block / 100)
                )
                writer.append_trial(make_trial(point, block, 0, metrics=metrics), None)
    said = bitbench(capsys, "recommend", str(path))
    assert said.exit_code == 0, said.err
    assert "To deploy m/bf16 @ fast" in said.out
    lines = said.out.splitlines()
    first = lines.index("  --dtype float32 \\") - 1
    assert lines[first] == '  --model "$BITBENCH_HOME"/models/m \\'
    command = '"$BITBENCH_HOME"/envs/vllm/bin/python -m vllm.entrypoints.openai.api_server'
    assert lines[first - 1].endswith(f" HF_TOKEN=••• {command} \\")
    assert lines[first + 2 : first + 6] == [
        "  --max-model-len 208 \\",
        "  --max-num-seqs 1 \\",
        "  --no-enable-prefix-caching \\",
        "  --enforce-eager",
    ]
    records = StudyFolder(path).read()
    server, *rest = make_deployment_command(records, slow, tmp_path)
    assert server in (
        "llama-server",
        '"$BITBENCH_HOME"/envs/llamacpp/bin/llama-server',
    )  # one on the PATH is used
    assert rest[:2] == ["--model", '"$BITBENCH_HOME"/models/m']
    assert (
        make_deployment_command(records, bare, tmp_path) == ()
    )  # it is no command that people start


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--slo", "ttft_p98=1s", "unknown objective 'ttft_p98'"),
        ("--slo", "ttft_p99=200", "--slo: ttft_p99: 200 needs a unit; write 200ms, 200s or 200m"),
        ("--slo", "tpott_p99=20ms", "did you mean `tpot_p99`?"),
        ("--max-memory", "much", "expected a size such as"),
        ("--engine", "vllm", "this study has no engine vllm; it has plain, twin, quick, greedy"),
        ("--max-memory", "4", "--max-memory: 4 needs a unit; write 4GB, 4MB or 4B"),
        ("--max-quality-loss", "1", "--max-quality-loss: 1 needs a percent sign; write 1% or 100%"),
        (
            "--workload",
            "nights",
            "this study has no workload nights; it has interactive, medium_batch",
        ),
    ],
)
def test_a_question_that_is_not_understood_is_no_answer(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, words: str
) -> None:
    said = bitbench(capsys, "recommend", str(folder), option, value)
    assert said.exit_code == ExitCode.USAGE
    assert words in said.err


@pytest.mark.parametrize("width", ["80", "60"])
def test_a_narrow_terminal_keeps_the_limits(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    said = bitbench(
        capsys, "recommend", str(GALLERY / "first-look"), "--slo", "ttft=300ms,tpot=50ms"
    ).out
    title = next(line for line in said.splitlines() if "ttft" in line and "tpot" in line)
    assert title.split()[:3] == ["Output", "ttft", "tpot"]
    assert "✓ the whole interval meets the limit" in " ".join(said.split())


def test_a_baseline_on_another_engine_comes_with_the_unquantized_model_on_the_same_one() -> None:
    """The same engine's 16 bits say what quantization alone brought."""
    summary = summarize_records(StudyFolder.existing(GALLERY / "cpu-shootout").read())
    (one, _) = recommend(summary, Limits()).choices
    known = {judged.config.name: judged for judged in one.judged}
    chosen = known["smollm2-135m/gguf-q8_0 @ llamacpp"]
    assert chosen.same_engine is not None
    assert chosen.same_engine.unquantized.name == "smollm2-135m/gguf-bf16 @ llamacpp"
    assert chosen.ratio_to_baseline is not None
    assert 1 < chosen.same_engine.ratio.value < chosen.ratio_to_baseline.value
    of_its_own = (
        "smollm2-135m/w8a8-rtn @ vllm",
        "smollm2-135m/gguf-bf16 @ llamacpp",
        "smollm2-135m/bf16 @ vllm",
    )
    assert all(known[name].same_engine is None for name in of_its_own)
