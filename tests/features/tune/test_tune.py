"""`bitbench tune`: which settings are tried, who is beaten by whom, and what is said of it."""

import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from rich.console import Console

import bitbench as bitbench_module
from bitbench.analysis.budget import Design, VarianceComponents, plan_confirmation_blocks
from bitbench.analysis.claims import Look
from bitbench.analysis.pairs import PairedRatio, PairTable
from bitbench.analysis.results.estimate import Basis, Estimate, Finding, Verdict
from bitbench.analysis.results.recommendation import Judged, Limits
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.cli.json_answers import format_json_answer, make_answer_schema
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.engines.null import NullEngine
from bitbench.engines.vllm import VllmEngine
from bitbench.features.tune.confirmation import ConfirmationPlanner
from bitbench.features.tune.race import Admission, find_admission, race
from bitbench.features.tune.types import Confirmed, Fate, RaceEnd, Tried, Tune, Tuning
from bitbench.features.tune.words import build_tuning_document
from bitbench.planning.estimate import Estimator
from bitbench.ports import Deployable, Launch, Load
from bitbench.reports.answers.recommend import format_command_lines
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config
from bitbench.study.study import EngineSetup, Measure, Study
from bitbench.study.study_file import make_study_schema, parse_study
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import ExitCode, StudyFileError
from tests.command_line import bitbench
from tests.json_answer import read_answer
from tests.support.synthetic import make_instance, make_plan, make_records, make_trial

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
A, B, C = (Config(variant="none", engine=name) for name in "abc")
FILE = """
name: x
engines:
  - {engine: null, args: {tpot: [4ms, 2ms], vary: 0.01}}
  - {engine: null, name: plain}
workloads: [interactive]
measure: {budget: 10m}
tune: {}
"""


def complaint(text: str) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse_study(text, name="s.yaml")
    return str(caught.value)


def test_a_search_is_a_study_with_a_section_of_its_own() -> None:
    study = parse_study(FILE, name="s.yaml")
    assert [setup.name for setup in study.engines] == ["null tpot=4ms", "null tpot=2ms", "plain"]
    assert study.section(Tune) == Tune(within=0.02)
    jsonschema.validate(yaml.safe_load(FILE), make_study_schema())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tune: {}", "tune: {max_quality_loss: 1%}", "add `quality: {}`"),
        ("[interactive]", "[interactive, decode_bound]", "give one of each"),
        ("tune: {}", "tune: {max_memory: 4}", "4 needs a unit"),
    ],
)
def test_what_cannot_be_searched_is_said(old: str, new: str, said: str) -> None:
    assert said in complaint(FILE.replace(old, new))


def test_a_search_is_run_by_its_own_command_and_needs_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    Path("s.yaml").write_text(FILE)
    said = bitbench(capsys, "run", "s.yaml")
    assert said.exit_code == ExitCode.USAGE
    assert "run it with: bitbench tune s.yaml" in " ".join(said.err.split())
    Path("s.yaml").write_text(FILE.replace("measure: {budget: 10m}\n", ""))
    assert "--budget 30m" in bitbench(capsys, "tune", "s.yaml").err
    Path("s.yaml").write_text(FILE.replace("tune: {}\n", ""))
    assert "needs a section `tune`" in bitbench(capsys, "tune", "s.yaml").err
    error = read_answer(bitbench(capsys, "tune", "s.yaml", "--json").out, "tune")
    assert (error["exit_code"], error["answer"]) == (ExitCode.USAGE, None)


def test_python_has_it_too() -> None:
    assert (bitbench_module.tune.__name__, bitbench_module.Tuning) == ("tune", Tuning)
    assert {"tune", "Tuning"} <= {*dir(bitbench_module)}


def pair(
    first: Config, second: Config, log_mean: float, standard_error: float = 0.01
) -> PairedRatio:
    return PairedRatio(
        first=first,
        second=second,
        log_mean=log_mean,
        standard_error=standard_error,
        degrees_of_freedom=10,
        blocks=3,
    )


def look(blocks: int, *, is_last: bool = False) -> Look:
    return Look(blocks, 0.02, is_last)


EVERYONE = frozenset((A, B, C))
TABLE = PairTable((A, B, C), (pair(A, B, 0.3), pair(A, C, 0.02), pair(C, B, 0.28)))


def test_who_is_beaten_leads_or_may_be_better() -> None:
    found = race([(look(2), TABLE)], EVERYONE, Admission(EVERYONE, EVERYONE), within=0.005)
    assert (set(found.left), found.leader, found.end) == ({A, C}, A, None)
    assert found.shortfall == pytest.approx(
        0.0077, abs=0.0005
    )  # exp(-0.02 + 2.76 standard errors) − 1
    wide = race([(look(2), TABLE)], EVERYONE, Admission(EVERYONE, EVERYONE), within=0.02)
    assert wide.end is RaceEnd.FOUND


def test_the_budget_ends_it_and_so_does_nobody_left() -> None:
    assert race(
        [(look(2, is_last=True), TABLE)], EVERYONE, Admission(EVERYONE, EVERYONE), within=0
    ).end is (RaceEnd.BUDGET)
    nobody = race([(look(2), TABLE)], EVERYONE, Admission(frozenset(), frozenset()), within=0)
    assert (nobody.end, nobody.leader) == (RaceEnd.NONE_MEETS, None)


def test_one_that_misses_a_limit_beats_nobody() -> None:
    """At this look it is known to; the looks before are then taken again without it."""
    others = EVERYONE - {A}
    found = race(
        [(look(2), TABLE), (look(3), TABLE)], EVERYONE, Admission(others, others), within=0.02
    )
    assert (found.leader, found.left) == (C, (C,))
    unsure = race([(look(2), TABLE)], EVERYONE, Admission(EVERYONE, frozenset({B})), within=0.02)
    assert (unsure.leader, set(unsure.left)) == (
        B,
        {A, B, C},
    )  # the faster ones may meet the limits: they stay
    assert unsure.shortfall is not None
    assert unsure.shortfall > 0.3


def finding(verdict: Verdict, value: float | None, reason: str = "") -> Finding:
    known = None if value is None else Estimate(value=value)
    return Finding(name="ttft", unit="s", limit=0.1, estimate=known, verdict=verdict, reason=reason)


def judged(config: Config, *findings: Finding, failed: int = 0) -> Judged:
    return Judged(
        config=config, figure=estimate(100.0), findings=findings, trials=4, failed_trials=failed
    )


def estimate(mean: float) -> Estimate:
    return ratio(mean).model_copy(
        update={"basis": Basis(starts=3, trials=9, relative_half_width=0.03)}
    )


def test_who_may_win_and_who_may_beat_others() -> None:
    found = find_admission(
        [
            judged(A, finding(Verdict.MET, 0.05)),
            judged(B, finding(Verdict.INCONCLUSIVE, 0.12)),
            judged(C, finding(Verdict.MISSED, 0.3)),
        ]
    )
    assert (found.able, found.fit) == ({A, B}, {A})
    assert find_admission([judged(A, finding(Verdict.INCONCLUSIVE, 0.09))]).fit == {A}
    assert find_admission([judged(A, finding(Verdict.INCONCLUSIVE, None))]).fit == set()
    assert find_admission([judged(A, failed=1)]).able == set()


def test_a_confirmation_takes_no_more_time_than_it_needs() -> None:
    design = Design(configs=2, starts_s=10.0, round_s=4.0)
    calm, noisy = VarianceComponents(0.002, 0.003), VarianceComponents(0.06, 0.1)
    assert plan_confirmation_blocks(design, 600.0, 0.95, calm, target=0.02).seconds <= 150
    assert plan_confirmation_blocks(design, 600.0, 0.95, noisy, target=0.02).seconds > 500
    assert plan_confirmation_blocks(design, 1.0, 0.95, noisy, target=0.02).blocks == 3


def test_the_first_starts_of_a_confirmation_are_not_forgotten() -> None:
    """The search's own first ones took 50 s, and later ones 5 s."""
    plan = make_plan(["a", "b"], [WORKLOAD], Measure(budget=600.0))
    trials = [
        make_trial(point, block, 0, duration_s=4.0) for point in plan.points for block in range(2)
    ]

    def planned(first_s: float) -> Measure:
        estimator = Estimator(plan, {"null": NullEngine()})
        for one in plan.configs:
            for block, ready_s in ((1, 5.0), (0, first_s)):
                estimator.add(make_instance(one, block, ready_s=ready_s))
        for trial in trials:
            estimator.add(trial)
        searched = make_records(plan, trials)
        baseline, chosen = plan.configs
        return ConfirmationPlanner(
            plan.study, searched, estimator, chosen, chosen, baseline, 300.0
        ).plan()[0]

    alike, slow_first = planned(5.0), planned(50.0)
    seconds = [
        measure.starts.min * (2 * 6.0 + measure.trials.min * (2 * 4.5))
        for measure in (alike, slow_first)
    ]
    assert 300 - 25 < seconds[0] <= 301
    assert 210 - 25 < seconds[1] <= 211


def launch(engine: str, path: Path, **args: object) -> Launch:
    return Launch(
        setup=EngineSetup(name="x", engine=engine, args=args, env={"OMP_NUM_THREADS": "2"}),
        variant=Variant(
            name="m/v", model="m", recipe="v", path=path, facts=ModelFacts(context_tokens=8192)
        ),
        python=None,
        log_file=Path(),
        loads=(Load(8, 192),),
        seed=0,
    )


def test_the_command_to_deploy(tmp_path: Path) -> None:
    variables, words = VllmEngine().deployment(launch("vllm", Path("/m/v"), block_size=64))
    assert shlex.join(words) == (
        "python -m vllm.entrypoints.openai.api_server --model /m/v --dtype bfloat16 --max-model-len 208 "
        "--max-num-seqs 8 --no-enable-prefix-caching "
        "--block-size 64"
    )
    assert variables == {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2"}
    inside = replace(launch("vllm", Path("/m/v")), python=Path("/envs/vllm/bin/python"))
    _, words = VllmEngine().deployment(inside)
    assert words[:3] == [
        "/envs/vllm/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
    ]  # as bitbench starts it
    (tmp_path / "m.gguf").touch()
    _, words = LlamaCppEngine().deployment(launch("llamacpp", tmp_path, threads=2))
    assert shlex.join(words) == (
        f"llama-server --model {tmp_path}/m.gguf --parallel 8 --ctx-size 2048 --cont-batching --no-cache-prompt "
        "--cache-ram 0 --threads 2"
    )
    assert not isinstance(NullEngine(), Deployable)
    assert format_command_lines(
        ("A=1", "vllm", "serve", "/m", "--dtype", "bfloat16", "--no-x")
    ) == [
        "A=1 vllm serve /m \\",
        "--dtype bfloat16 \\",
        "--no-x",
    ]


def ratio(value: float) -> Estimate:
    return Estimate(value=value, low=0.97 * value, high=1.03 * value, confidence=0.95, p_value=0.01)


MET, MISSED = finding(Verdict.MET, 0.05), finding(Verdict.MISSED, 0.3)
FOUND = Tuning(
    name="x",
    primary_metric=MetricDefinition.of(METRICS["output_throughput"]),
    limits=Limits(
        objectives=Study.model_validate(
            yaml.safe_load(FILE) | {"objectives": {"ttft": 0.1}}
        ).objectives
    ),
    workload="interactive",
    baseline=A,
    tried=(
        Tried(
            config=B,
            fate=Fate.BEST,
            starts=4,
            figure=estimate(150),
            ratio_to_baseline=ratio(1.5),
            findings=(MET,),
        ),
        Tried(config=A, fate=Fate.BEATEN, starts=2, figure=estimate(100), findings=(MET,)),
        Tried(config=C, fate=Fate.RULED_OUT, starts=2, figure=estimate(190), findings=(MISSED,)),
    ),
    refused=(),
    end=RaceEnd.FOUND,
    chosen=B,
    shortfall=0.0,
    confidence=0.95,
    confirmed=Confirmed(
        folder="x/confirmation",
        starts=5,
        rounds=4,
        ratio=ratio(1.4),
        is_gain=True,
        figure=estimate(140),
        findings=(MET,),
    ),
    deploy=("vllm", "serve", "/m/v", "--dtype", "bfloat16"),
    search_folder="x/search",
    budget_s=1800,
    took_s=900,
)


def with_confirmed(**changes: object) -> Tuning:
    assert FOUND.confirmed is not None
    return FOUND.model_copy(update={"confirmed": FOUND.confirmed.model_copy(update=changes)})


NONE_CHOSEN = FOUND.model_copy(
    update={"chosen": None, "confirmed": None, "deploy": (), "shortfall": None}
)
ANSWERS = {
    "Use b. In a fresh study, its output throughput is 140": (FOUND, ExitCode.DONE),
    "The gain of b is not confirmed.": (
        with_confirmed(is_gain=False, ratio=ratio(1.01)),
        ExitCode.INCONCLUSIVE,
    ),
    "inconclusive: ttft 120": (
        with_confirmed(
            findings=(finding(Verdict.INCONCLUSIVE, 0.12, "its interval contains the limit"),)
        ),
        ExitCode.INCONCLUSIVE,
    ),
    "Use b, but whether it meets its limits is inconclusive.": (
        with_confirmed(
            findings=(finding(Verdict.INCONCLUSIVE, 0.09, "its interval contains the limit"),)
        ),
        ExitCode.INCONCLUSIVE,
    ),
    "The best of the search, b, misses its limits.": (
        with_confirmed(findings=(MISSED,)),
        ExitCode.FAILED,
    ),
    "Nothing is confirmed: the best of the search, b, has no result in a fresh study.": (
        with_confirmed(figure=None, ratio=None, is_gain=False, findings=()),
        ExitCode.FAILED,
    ),
    "its output throughput is 140 [136, 144] tok/s; the baseline has too few results": (
        with_confirmed(ratio=None, is_gain=False),
        ExitCode.INCONCLUSIVE,
    ),
    "Keep the baseline a.": (
        FOUND.model_copy(update={"chosen": A, "confirmed": None}),
        ExitCode.DONE,
    ),
    "Inconclusive. Keep the baseline a for now. Some have too few results beside it": (
        FOUND.model_copy(update={"chosen": A, "confirmed": None, "shortfall": None}),
        ExitCode.INCONCLUSIVE,
    ),
    "No config meets the limits.": (
        NONE_CHOSEN.model_copy(
            update={
                "end": RaceEnd.NONE_MEETS,
                "tried": tuple(
                    one.model_copy(update={"fate": Fate.RULED_OUT}) for one in FOUND.tried
                ),
            }
        ),
        ExitCode.FAILED,
    ),
    "Inconclusive: no config is known to meet the limits.": (
        NONE_CHOSEN.model_copy(update={"end": RaceEnd.BUDGET}),
        ExitCode.INCONCLUSIVE,
    ),
    "No config has a result.": (
        NONE_CHOSEN.model_copy(
            update={
                "tried": (
                    Tried(config=A, fate=Fate.NO_RESULT, starts=0, reason="crashed: it ended"),
                ),
            }
        ),
        ExitCode.NOTHING_MEASURED,
    ),
}


@pytest.mark.parametrize("sentence", ANSWERS)
def test_each_answer_has_its_sentence_and_its_exit_code(sentence: str) -> None:
    found, code = ANSWERS[sentence]
    stream = io.StringIO()
    render_in_terminal(build_tuning_document(found), Console(file=stream, width=60))
    lines = stream.getvalue().splitlines()
    assert sentence in " ".join(stream.getvalue().split())
    assert max(map(len, lines)) <= 60
    assert found.exit_code is code
    said = json.loads(format_json_answer("tune", found, code))
    jsonschema.validate(said, make_answer_schema("tune"))


def test_it_says_what_was_searched_and_ruled_out_and_how_to_deploy() -> None:
    text = render_markdown(build_tuning_document(FOUND))
    assert "Searched 3 configs in" in text
    assert "Ruled out: ttft 300.0 ms against 100 ms: `c`." in text
    assert "vllm serve /m/v \\\n--dtype bfloat16" in text
    left = replace_fate(FOUND, A, Fate.LEFT).model_copy(update={"shortfall": 0.031})
    assert (
        "1 other may be as good or better, with 95 % confidence by at most 3.1 %"
        in render_markdown(build_tuning_document(left))
    )


def test_what_looks_better_than_the_choice_is_said_with_why_it_is_not_it() -> None:
    beyond = finding(Verdict.INCONCLUSIVE, 0.12, "its interval contains the limit")
    tried = tuple(
        one.model_copy(update={"fate": Fate.LEFT, "findings": (beyond,)})
        if one.config == C
        else one
        for one in FOUND.tried
    )
    text = render_markdown(build_tuning_document(FOUND.model_copy(update={"tried": tried})))
    assert (
        "May be as good: ttft 120.0 ms against 100 ms (its interval contains the limit): `c`."
        in text
    )


def replace_fate(found: Tuning, config: Config, fate: Fate) -> Tuning:
    return found.model_copy(
        update={
            "tried": tuple(
                one.model_copy(update={"fate": fate}) if one.config == config else one
                for one in found.tried
            )
        }
    )
