"""The corpus, its windows, and what is asked of an endpoint about them."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from bitbench.analysis.quality import find_quality_baseline
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.engines.transformers import TransformersEngine
from bitbench.engines.vllm import VllmEngine
from bitbench.planning.estimate import Estimator
from bitbench.planning.plan import list_engine_loads, plan_study_points
from bitbench.ports import Endpoint, Launch, Load
from bitbench.quality.logprobs import AskingFailed, InstanceConnection, PromptLogprobs
from bitbench.quality.material import cut_windows, read_corpus
from bitbench.quality.measure import QualityJob, ask_answers, measure_quality_again, score_windows
from bitbench.quality.tasks import TaskTools, run_tasks
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import (
    SCORE_COLUMNS,
    Condition,
    CorpusFacts,
    Prompt,
    QualityMaterial,
    QualityRecord,
)
from bitbench.records.strict_reader import make_arrow_schema
from bitbench.records.trial import Failure, InstanceFacts, Outcome
from bitbench.running.group import run_group
from bitbench.running.quality import QualityDraft, QualityKit
from bitbench.running.quality_study import QualityOptions, quality_study
from bitbench.running.trial import RunContext
from bitbench.study.plan import Config, Group, Member, Plan
from bitbench.study.quality import Quality, Scoring
from bitbench.study.study import EngineSetup, Measure, Study
from bitbench.study.variant import Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import QualityError, StudyFileError
from tests.support.paper_study import PaperStudy
from tests.support.quality_server import QualityServer, logprob
from tests.support.synthetic import make_instance, make_lock, make_plan
from tests.unit.test_group import NoLoad, Silent

WINDOWS = ((1, 5, 9, 2), (3, 3, 60, 4))
MATERIAL = QualityMaterial(
    facts=CorpusFacts(
        description="d", text_hash="t", windows_hash="w", windows=2, window_tokens=4, room=8
    ),
    windows=WINDOWS,
    prompts=(Prompt(text="Why?", tokens=(1, 2)),),
    end_tokens=(0,),
)


@pytest.fixture
def server() -> Iterator[QualityServer]:
    running = QualityServer()
    yield running
    running.shutdown()
    running.server_close()


def test_the_default_corpus_is_the_same_each_time_and_not_what_recipes_were_fitted_to() -> None:
    from pydoc_data.topics import topics

    corpus = read_corpus((), Path())
    assert corpus == read_corpus((), Path())
    prose, code = corpus.parts
    assert len(prose) > 200_000
    assert len(code) > 200_000
    assert "PSF license" in corpus.description
    assert topics["lambda"][:200] not in prose + code


def test_files_that_a_user_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.jsonl").write_text(
        '{"text": "one"}\n\n{"text": "two\u2028lines"}\n', encoding="utf-8"
    )
    corpus = read_corpus(("a.txt", "b.jsonl"), tmp_path)
    assert corpus.parts == ("some text", "one\n\ntwo\u2028lines")
    assert "a.txt" in corpus.description
    assert corpus.text_hash != read_corpus(("a.txt",), tmp_path).text_hash


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n", r"line 1: each line must be \{\"text\""),
        (b"nothing", "line 1: not JSON"),
        (b"", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "c.jsonl").write_bytes(content)
    with pytest.raises(StudyFileError, match=message) as caught:
        read_corpus(("c.jsonl",), tmp_path)
    assert caught.value.location == ("quality", "corpus", 0)
    with pytest.raises(StudyFileError, match="No such file"):
        read_corpus(("none.txt",), tmp_path)


def test_windows_are_spread_over_each_part_and_begin_as_the_model_wants_it() -> None:
    parts = [list(range(100, 200)), list(range(500, 530))]
    windows = cut_windows(parts, 5, 10, [1])
    assert windows == (
        (1, *range(100, 109)),
        (1, *range(127, 136)),
        (1, *range(163, 172)),
        (1, *range(500, 509)),
        (1, *range(509, 518)),
    )
    with pytest.raises(
        QualityError,
        match="Part 2 of the corpus has room for 3 windows of 10 tokens, but 4 are needed",
    ):
        cut_windows(parts, 8, 10, [])


def test_every_token_but_the_first_of_a_window_is_scored(server: QualityServer) -> None:
    seen: list[str] = []
    with InstanceConnection(server.endpoint, 5.0) as connection:
        table = score_windows(PromptLogprobs(connection), WINDOWS, 3, seen.append)
    rows = table.to_pylist()
    assert seen == ["window 1 of 2", "window 2 of 2"]
    assert [(row["window"], row["position"], row["token"]) for row in rows] == [
        (0, 1, 5), (0, 2, 9), (0, 3, 2), (1, 1, 3), (1, 2, 60), (1, 3, 4),
    ]  # fmt: skip
    for row in rows:
        before = WINDOWS[row["window"]][row["position"] - 1]
        assert row["logprob"] == pytest.approx(logprob(before, row["token"]), rel=1e-6)
        assert row["top_logprobs"] == sorted(row["top_logprobs"], reverse=True)
        assert row["top_tokens"][0] == 2 * before % 64
        assert len(row["top_tokens"]) == 3
    assert server.asked[0]["prompt_logprobs"] == 3
    assert server.asked[0]["key"] == "Bearer key"
    assert server.asked[0]["temperature"] == 0


def test_answers_end_before_the_first_special_token(server: QualityServer) -> None:
    with InstanceConnection(server.endpoint, 5.0) as connection:
        asker = PromptLogprobs(connection)
        (whole,) = ask_answers(asker, MATERIAL.prompts, 5, (0,), lambda _: None)
        (none,) = ask_answers(asker, MATERIAL.prompts, 5, (7,), lambda _: None)
    assert (whole.prompt, whole.text, whole.tokens) == ("Why?", "ttttt", (7,) * 5)
    assert none.tokens == ()
    assert server.asked[0]["return_token_ids"] is True


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        ((500, b"out of luck"), Outcome.INVALID, "HTTP 500: out of luck"),
        ((200, b"[]"), Outcome.INVALID, "not a completion"),
        ((200, b'{"choices": []}'), Outcome.INVALID, "not a completion"),
        ((200, b"no"), Outcome.INVALID, "not JSON"),
        (
            (200, json.dumps({"choices": [{"text": ""}]}).encode()),
            Outcome.UNSUPPORTED,
            "lacks `prompt_logprobs`",
        ),
        (
            (200, json.dumps({"choices": [{"prompt_logprobs": [None, {}, {}, {}]}]}).encode()),
            Outcome.INVALID,
            "the prompt's own tokens",
        ),
    ],
)
def test_an_answer_that_is_none_becomes_an_outcome(
    server: QualityServer, answer: tuple[int, bytes], outcome: Outcome, message: str
) -> None:
    server.answers_with = answer
    with (
        InstanceConnection(server.endpoint, 5.0) as connection,
        pytest.raises(AskingFailed, match=message) as caught,
    ):
        score_windows(PromptLogprobs(connection), WINDOWS, 3, lambda _: None)
    assert caught.value.failure.outcome is outcome


def test_a_server_that_is_gone_is_a_crash(server: QualityServer) -> None:
    endpoint = server.endpoint
    server.shutdown()
    server.server_close()
    with (
        InstanceConnection(endpoint, 5.0) as connection,
        pytest.raises(AskingFailed, match="connection broke") as caught,
    ):
        connection.ask("/v1/completions", prompt=[1], max_tokens=1)
    assert caught.value.failure.outcome is Outcome.CRASHED


def planned(*recipes: str, engine: str = "transformers", **quality: object) -> Plan:
    forms = {
        "bf16": "dense",
        "w8a8-rtn": "compressed-tensors/w8a8-int",
        "gguf-bf16": "gguf/dense",
        "gguf-q4_0": "gguf",
    }
    study = Study.model_validate(
        {"name": "s", "models": ["m"], "recipes": recipes, "engines": [engine], "quality": quality}
    )
    engines = {
        "transformers": TransformersEngine(),
        "vllm": VllmEngine(),
        "llamacpp": LlamaCppEngine(),
    }

    def resolve(model: str, recipe: str) -> Variant:
        return Variant(
            name=f"{model}/{recipe}",
            model=model,
            recipe=recipe,
            path=Path("/m"),
            form=forms[recipe],
        )

    return plan_study_points(study, engines, resolve, "cpu")


def test_quality_is_measured_where_only_speed_means_nothing() -> None:
    plan = planned("bf16", "w8a8-rtn", "gguf-q4_0")
    assert [one.name for one in plan.quality] == [
        "m/bf16 @ transformers",
        "m/w8a8-rtn @ transformers",
    ]
    (refusal,) = plan.quality_refusals
    assert "not GGUF files" in refusal.reason
    assert plan.points == ()
    assert plan.configs == plan.quality
    (setup,) = plan.study.engines
    assert list_engine_loads(plan, setup) == (Load(1, 256 + 48),)
    assert list_engine_loads(planned("bf16", window_tokens=4000), setup) == (Load(1, 4001),)
    elsewhere = plan.model_copy(
        update={"quality": ()}
    )  # the part of a plan that a machine of a fleet has
    assert list_engine_loads(elsewhere, setup) == ()  # and no point either
    asked = planned("bf16", tasks=({"name": "gsm8k", "concurrency": 8},))
    assert list_engine_loads(asked, setup) == (Load(8, 2048),)


def test_llama_cpp_is_measured_against_its_own_unquantized_file() -> None:
    plan = planned("bf16", "gguf-bf16", "gguf-q4_0", engine="llamacpp")
    assert [one.name for one in plan.quality] == [
        "m/gguf-bf16 @ llamacpp",
        "m/gguf-q4_0 @ llamacpp",
    ]
    (refusal,) = plan.quality_refusals
    assert "add the recipe gguf-bf16" in refusal.reason
    for config in plan.quality:
        assert find_quality_baseline(config, plan) == plan.quality[0]


@pytest.mark.parametrize(
    ("engine", "recipes"),
    [
        ("llamacpp", ("gguf-bf16", "gguf-q4_0")),
        ("vllm", ("bf16", "gguf-q4_0")),
        ("transformers", ("bf16", "gguf-q4_0")),
    ],
)
def test_the_command_adds_the_baseline_that_its_engine_can_load(
    engine: str, recipes: tuple[str, ...], tmp_path: Path
) -> None:
    options = QualityOptions(model="m", recipes=("gguf-q4_0",), engine=engine)
    assert quality_study(options, tmp_path, "cpu").recipes == recipes


def test_a_recipe_file_of_ones_own_counts_from_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = QualityOptions(model="m", recipes=("w4a16-gptq", "own.yaml"))
    study = quality_study(options, Path("quality-m"), "cpu")
    assert study.recipes == ("bf16", "w4a16-gptq", "../own.yaml")


def test_a_revision_of_a_hubs_model_gets_a_name_that_a_study_may_have(tmp_path: Path) -> None:
    options = QualityOptions(model="Qwen/Qwen3-0.6B@main", recipes=())
    assert quality_study(options, tmp_path, "cpu").name == "quality-Qwen3-0.6B-main"


def test_more_top_tokens_than_vllm_gives_are_asked_for_at_its_start() -> None:
    from bitbench.engines.vllm import command_line

    def command(top: int) -> list[str]:
        launch = Launch(
            setup=EngineSetup(name="vllm", engine="vllm"),
            variant=Variant(name="v", model="m", recipe="r", path=Path("/m")),
            python=Path("/env/bin/python"),
            log_file=Path("log"),
            loads=(Load(1, 64),),
            seed=0,
            top_tokens=top,
        )
        return command_line(launch, 8000)

    assert "--max-logprobs" not in command(20)
    words = command(32)
    assert words[words.index("--max-logprobs") + 1] == "32"


class Ready:
    """An engine and its instance in one, that is up at once."""

    name, environment, needs_model, start_s, scoring = (
        "transformers",
        None,
        True,
        0.0,
        Scoring.PROMPT_LOGPROBS,
    )
    pid = os.getpid()

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def start(self, launch: Launch) -> "Ready":
        return self

    def can_freeze(self, setup: object) -> bool:
        return True

    def thaw(self) -> None:
        pass

    def wait_ready(self, timeout_s: float) -> Endpoint:
        return self._endpoint

    def facts(self) -> InstanceFacts:
        return InstanceFacts()

    def failure(self) -> Failure | None:
        return None

    def stop(self) -> None:
        pass


STARTS = count(1)


def drafts(
    plan: Plan, group: Group, server: QualityServer, tmp_path: Path, study: PaperStudy | None = None
) -> list[QualityDraft]:
    kits = {"m": QualityKit(MATERIAL, None)}
    engines = {"transformers": Ready(server.endpoint)}
    context = RunContext(plan, engines, lambda _: tmp_path, NoLoad(), Silent(), quality=kits)  # type: ignore[arg-type]
    start = f"i{next(STARTS)}"
    found = run_group(
        group, context, (study or PaperStudy(plan)).progress, lambda: (start, tmp_path / "log")
    )
    return [draft for draft in found if isinstance(draft, QualityDraft)]


def test_a_group_measures_quality_once_and_its_records_say_so(
    server: QualityServer, tmp_path: Path
) -> None:
    plan = planned("bf16", top_tokens=3, answer_tokens=5)
    study = PaperStudy(plan)
    group = study.next_group()
    assert group == Group(
        block=0, members=(Member(config=plan.quality[0], workloads=()),), rounds=0
    )
    (draft,) = drafts(plan, group, server, tmp_path)
    folder = StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        record = writer.append_quality(draft.record, draft.scores)
    assert (record.id, record.outcome, record.tokens, len(record.answers)) == (
        "q0001",
        Outcome.OK,
        6,
        1,
    )
    assert folder.read_quality_records() == [record]
    assert folder.scores_of(record).num_rows == 6
    study.add([record])
    assert study.next_group() is None


def test_quality_that_fails_is_a_record_and_tried_once_more(
    server: QualityServer, tmp_path: Path
) -> None:
    plan = planned("bf16")
    study, attempts = PaperStudy(plan), 0
    server.answers_with = (500, b"no")
    while (group := study.next_group()) is not None:
        (draft,) = drafts(plan, group, server, tmp_path)
        assert draft.record.outcome is Outcome.INVALID
        assert draft.scores is None
        study.add([draft.record])
        attempts += 1
    assert attempts == 2
    unsupported = PaperStudy(plan)
    unsupported.add([draft.record.model_copy(update={"outcome": Outcome.UNSUPPORTED})])
    assert unsupported.next_group() is None


def test_rows_without_their_line_are_dropped_and_the_material_stays(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.write_lock(make_lock(make_plan(["e"], [BUILT_IN_WORKLOADS["base"]])))
        writer.write_material("a/m", MATERIAL)
        (folder.quality / "q0001.parquet").write_bytes(b"half")
    schema = make_arrow_schema(SCORE_COLUMNS)
    with folder.open_writer() as writer:
        draft = QualityRecord(
            id="",
            config=Config(variant="m/bf16", engine="e"),
            instance_id="i",
            started_at="2026-11-02T10:00:00.000+00:00",
            duration_s=1.0,
            outcome=Outcome.OK,
        )
        writer.append_quality(
            draft,
            pa.table({field.name: pa.nulls(1, field.type) for field in schema}, schema=schema),
        )
    assert folder.material("a/m") == MATERIAL
    assert (
        folder.material("b/m") is None
    )  # another model, although its folder has the same last name
    assert folder.scores_of(folder.read_quality_records()[0]).num_rows == 1


def test_a_study_asks_for_speed_or_quality_or_both() -> None:
    base = {"name": "s", "models": ["m"], "engines": ["vllm"]}
    with pytest.raises(ValueError, match="it asks nothing"):
        Study.model_validate(base)
    assert Study.model_validate({**base, "quality": {"corpus": "a.txt"}}).quality == Quality(
        corpus=("a.txt",)
    )


def test_a_task_that_cannot_run_is_a_failure_of_that_task(
    server: QualityServer, tmp_path: Path
) -> None:
    """Our own interpreter has no lm-eval."""
    tools = TaskTools(Path(sys.executable), tmp_path, tmp_path, 64)
    outcome = run_tasks(
        server.endpoint,
        Scoring.PROMPT_LOGPROBS,
        Quality(tasks=("capitals",)),
        tools,
        lambda _: None,
    )
    (failure,) = outcome.failures
    assert failure.task == "capitals"
    assert "No module named 'lm_eval'" in failure.cause
    assert outcome.results == ()


def test_a_study_of_quality_alone_starts_each_config_once() -> None:
    plan = planned("bf16", "w8a8-rtn")
    engines = {"transformers": TransformersEngine()}
    low_s, high_s = Estimator(plan, engines).estimate_range_s()
    assert (
        low_s == high_s == 2 * TransformersEngine.start_s
    )  # nothing is known about the size of this model
    estimator = Estimator(plan, engines)
    estimator.add(make_instance(plan.quality[0], 0, ready_s=None))
    assert estimator.remaining_s() == TransformersEngine.start_s


def test_quality_comes_on_top_of_a_budget() -> None:
    plan = planned("bf16", "w8a8-rtn")
    study = plan.study.model_copy(update={"measure": Measure(budget=600.0)})
    estimator = Estimator(
        plan.model_copy(update={"study": study}), {"transformers": TransformersEngine()}
    )
    assert estimator.quality_s == 2 * TransformersEngine.start_s
    assert estimator.estimate_range_s() == (estimator.quality_s, 600.0 + estimator.quality_s)


def test_the_baseline_alone_gets_a_floor_and_its_quality_stays_one_measurement(
    server: QualityServer,
    tmp_path: Path,
) -> None:
    asked = planned("bf16", "w8a8-rtn", top_tokens=3, answer_tokens=5, noise_floor=True)
    study = PaperStudy(asked)
    seen: list[tuple[str, Condition]] = []
    while (group := study.next_group()) is not None:
        made = drafts(asked, group, server, tmp_path, study)
        seen += [(draft.record.config.variant, draft.record.condition) for draft in made]
        study.add([draft.record for draft in made])
    assert sorted(seen) == [
        ("m/bf16", Condition.ALONE),
        ("m/bf16", Condition.RESTARTED),
        ("m/w8a8-rtn", Condition.ALONE),
    ]


def test_a_second_start_scores_some_windows_again_once(
    server: QualityServer, tmp_path: Path
) -> None:
    asked = planned("bf16", top_tokens=3, answer_tokens=0)
    config, study = asked.quality[0], PaperStudy(asked)
    group = Group(block=0, members=(Member(config=config, workloads=()),), rounds=0)
    assert study.progress.find_score_condition(config, "any") is Condition.ALONE
    (first,) = drafts(asked, group, server, tmp_path, study)
    study.add([first.record])
    assert study.progress.find_score_condition(config, first.record.instance_id) is None
    assert study.next_group() is None  # no start is made for that alone
    (second,) = drafts(asked, group, server, tmp_path, study)
    assert second.record.condition is Condition.RESTARTED
    assert second.scores is not None
    assert first.scores is not None
    assert second.scores.equals(first.scores)  # of fewer than eight windows, all
    study.add([second.record])
    assert drafts(asked, group, server, tmp_path, study) == []


def test_some_windows_keep_their_numbers(server: QualityServer) -> None:
    windows = tuple((number % 60, 5, 9) for number in range(20))
    facts = MATERIAL.facts.model_copy(update={"windows": 20})
    material = MATERIAL.model_copy(update={"windows": windows, "facts": facts})
    job = QualityJob(
        server.endpoint, Scoring.PROMPT_LOGPROBS, Quality(top_tokens=3), material, None, 5.0
    )
    again = measure_quality_again(job)
    assert sorted(set(again["window"].to_pylist())) == [0, 2, 5, 7, 10, 12, 15, 17]
    assert again["position"].to_pylist() == [1, 2] * 8
