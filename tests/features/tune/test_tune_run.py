"""`bitbench tune` from the file to its answer, with llama.cpp replaced by a world whose speeds and losses are known."""

from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import stdtrit

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS
from bitbench.engines.registry import load_study_engines
from bitbench.features.tune.confirmation import LEAST_TIMES, MOST_TIMES, count_confirmation_windows
from bitbench.features.tune.search import read_search_source, tune
from bitbench.features.tune.types import Fate, Tuning
from bitbench.features.tune.words import build_tuning_document
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import plan_study_points
from bitbench.ports import Observer
from bitbench.quality.material import count_windows_per_part, cut_windows
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.quality import CorpusFacts, QualityRecord
from bitbench.records.trial import Outcome, TrialMetrics, TrialRecord
from bitbench.reports.document.markdown import render_markdown
from bitbench.running import runner
from bitbench.running.offers import LogObserver
from bitbench.running.progress import Progress
from bitbench.running.runner import StudyPart
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Checkpoint
from bitbench.study.study_file import StudySource
from bitbench.study.variant import Variant
from bitbench.util.errors import ExitCode
from tests.support.synthetic import make_lock, make_trial

WINDOWS, ROOM = 8, 4000
FILE = f"""
name: known
models: [m]
recipes: [gguf-bf16, gguf-q4_0]
engines:
  - {{engine: llamacpp, kv_cache: [f16, q8_0], args: {{threads: [1, 2]}}}}
workloads:
  - {{name: four, concurrency: 4, input_tokens: 64, output_tokens: 32}}
quality: {{windows: {WINDOWS}, window_tokens: 9, answer_tokens: 16, noise_floor: true}}
tune: {{max_quality_loss: 10%}}
measure: {{budget: 30m}}
baseline: m/gguf-bf16 @ llamacpp kv=f16 threads=1
"""
BASELINE = Config(variant="m/gguf-bf16", engine="llamacpp kv=f16 threads=1")
# How a prompt is split decides what is said, too, and no split is more whole than another.
SPLIT_FILE = FILE.replace(
    "kv_cache: [f16, q8_0], args: {", "args: {batch-size: [64, 128], "
).replace("kv=f16", "batch-size=64")
SPLIT_BASELINE = Config(variant="m/gguf-bf16", engine="llamacpp batch-size=64 threads=1")
SPREAD = 0.05  # nats, from window to window


@dataclass
class Truth:
    """Nats that 4 bits cost on the search's text and on any other; with which KV cache they are the fastest."""

    loss: float = 0.065
    fresh_loss: float = 0.065
    fast: str = "f16"
    room: int = ROOM
    window_s: float = 0.1
    broken: str = ""  # a setup whose quality cannot be measured
    cache_loss: float = 0.0  # nats that the quantized cache costs


@dataclass
class World:
    """Stands in for what plans and measures."""

    at: Workplace
    truth: Truth = field(default_factory=Truth)
    scored: list[tuple[str, Config]] = field(default_factory=list)

    def plan(self, study: Path | StudySource, at: Workplace) -> Plan:
        source = StudySource.of(study)
        return plan_study_points(source.study, load_study_engines(source.study), resolve, "cpu")

    def measure(
        self, study: StudySource, into: Path, observer: Observer, at: Workplace, *, part: StudyPart
    ) -> StudyFolder:
        plan, folder = part.of(self.plan(study, at)), StudyFolder(into)
        if folder.lock() is not None:
            return folder
        with folder.open_writer() as writer:
            writer.write_study(study.text)
            writer.write_lock(make_lock(plan))
            progress = Progress(plan)
            while left := [one for one in plan.quality if progress.is_quality_due(one)]:
                self.scored.append((into.name, left[0]))
                progress.add([writer.append_quality(*self._scored(plan, left[0]))])
            block, going_on = 0, frozenset(plan.points)
            while going_on and block < plan.study.measure.starts.max:
                for point in sorted(going_on, key=lambda one: one.name):
                    for index in range(2):
                        writer.append_trial(self._trial(point, block, index), None)
                block += 1
                if part.goes_on and block >= 2:
                    going_on = part.goes_on(folder, block)
        return folder

    def _trial(self, point: Point, block: int, index: int) -> TrialRecord:
        kv, threads = (word.partition("=")[2] for word in point.config.engine.split()[1:])
        is_fast = point.config.variant.endswith("q4_0")
        speed = (
            100
            * (2 if is_fast else 1)
            * (1.5 if threads == "2" else 1)
            * (1.0 if kv == self.truth.fast else 0.8)
        )
        noise = np.random.default_rng(crc32(f"{point.name} {block} {index}".encode())).normal()
        metrics = TrialMetrics(output_throughput=speed * float(np.exp(0.01 * noise)))
        at = f"2026-11-16T10:{2 * block:02d}:{index:02d}.000+00:00"
        return make_trial(point, block, index, round=index, metrics=metrics, started_at=at)

    def _scored(self, plan: Plan, config: Config) -> tuple[QualityRecord, pa.Table | None]:
        """Windows lose more and less than the mean, in turn."""
        quality = plan.study.quality
        assert quality is not None
        windows, length = quality.windows, quality.window_tokens - 1
        window = np.repeat(np.arange(windows), length)
        mean = self.truth.loss if quality.offset == 0 else self.truth.fresh_loss
        loss = (mean + SPREAD * np.where(window % 2, 1, -1)) * config.variant.endswith("q4_0")
        loss = loss + self.truth.cache_loss * ("kv=q8_0" in config.engine)
        rows = pa.table(
            {
                "window": pa.array(window, pa.int32()),
                "position": pa.array(np.tile(np.arange(1, length + 1), windows), pa.int32()),
                "token": pa.array(np.ones(len(window)), pa.int32()),
                "logprob": pa.array(-1.0 - loss, pa.float32()),
                "top_tokens": pa.array([[1]] * len(window), pa.list_(pa.int32())),
                "top_logprobs": pa.array((-1.0 - loss)[:, None].tolist(), pa.list_(pa.float32())),
            }
        )
        is_broken = config.engine == self.truth.broken
        facts = CorpusFacts(
            description="made up", text_hash="x", windows_hash=f"{quality.offset}", windows=windows,
            window_tokens=quality.window_tokens, room=self.truth.room,
        )  # fmt: skip
        record = QualityRecord(
            id="", config=config, instance_id="i", started_at="2026-11-16T10:00:30.000+00:00",
            duration_s=self.truth.window_s * windows, outcome=Outcome.CRASHED if is_broken else Outcome.OK,
            cause="It ended." if is_broken else None, corpus=facts, top_tokens=1, tokens=rows.num_rows,
        )  # fmt: skip
        return record, None if is_broken else rows


def resolve(model: str, recipe: str | Checkpoint) -> Variant:
    assert isinstance(recipe, str)
    form = "gguf/dense" if recipe == "gguf-bf16" else "gguf/q4_0"
    return Variant(name=f"{model}/{recipe}", model=model, recipe=recipe, form=form)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    Path("tune.yaml").write_text(FILE)
    world = World(Workplace(tmp_path / "home", "cpu"))
    monkeypatch.setattr("bitbench.features.tune.search.plan_study", world.plan)
    monkeypatch.setattr("bitbench.features.tune.search.StudyReport.write", lambda *_: None)
    monkeypatch.setattr(runner, "measure_study", world.measure)
    return world


def answer(world: World) -> Tuning:
    return tune(read_search_source(Path("tune.yaml")), Path("out"), LogObserver(), world.at)


def quality_of(found: Tuning) -> Finding:
    assert found.confirmed is not None
    return next(one for one in found.confirmed.findings if one.name == QUALITY_LOSS)


def in_search(found: Tuning) -> Finding:
    best = next(one for one in found.tried if one.config == found.chosen)
    return next(one for one in best.findings if one.name == QUALITY_LOSS)


def fresh() -> StudyRecords:
    return StudyFolder.existing(Path("out/confirmation")).read()


def test_the_search_measures_quality_once_per_variant_and_cache(world: World) -> None:
    answer(world)
    searched = [one for place, one in world.scored if place == "search"]
    assert sorted(one.name for one in searched) == [
        f"m/{recipe} @ llamacpp kv={kv} threads=1"
        for recipe in ("gguf-bf16", "gguf-q4_0")
        for kv in ("f16", "q8_0")
    ]


def test_what_the_search_leaves_open_is_decided_on_fresh_text(world: World) -> None:
    found = answer(world)
    assert found.chosen == Config(variant="m/gguf-q4_0", engine="llamacpp kv=f16 threads=2")
    assert in_search(found).verdict is Verdict.INCONCLUSIVE
    assert quality_of(found).verdict is Verdict.MET
    assert found.exit_code is ExitCode.DONE
    assert found.confirmed is not None
    assert found.confirmed.windows == 40  # five times those of the search, by its spread
    assert "% on 40 windows of fresh text against 10 %" in render_markdown(
        build_tuning_document(found)
    )
    dense = Config(variant="m/gguf-bf16", engine=found.chosen.engine)
    assert {one for place, one in world.scored if place == "confirmation"} == {dense, found.chosen}
    asked = fresh().study.quality
    assert asked is not None
    assert (asked.windows, asked.offset, asked.answer_tokens, asked.noise_floor) == (
        40,
        0.5,
        0,
        False,
    )


def test_the_loss_that_counts_is_that_of_the_fresh_text(world: World) -> None:
    world.truth = Truth(fresh_loss=0.12)
    found = answer(world)
    assert quality_of(found).verdict is Verdict.MISSED
    assert found.exit_code is ExitCode.FAILED


def test_a_loss_at_the_limit_stays_open_and_the_answer_says_so(world: World) -> None:
    world.truth = Truth(fresh_loss=0.095)
    found = answer(world)
    assert quality_of(found).verdict is Verdict.INCONCLUSIVE
    assert found.exit_code is ExitCode.INCONCLUSIVE
    text = render_markdown(build_tuning_document(found))
    assert "on 40 windows of fresh text against 10 % (its interval contains the limit)" in text


def test_what_the_winner_is_compared_with_is_started_for_that_alone_where_the_baseline_is_something_else(
    world: World,
) -> None:
    Path("tune.yaml").write_text(SPLIT_FILE)
    world.truth = Truth(fast="128")
    found = answer(world)
    assert found.chosen is not None
    assert found.chosen.engine == "llamacpp batch-size=128 threads=2"
    other = Config(variant="m/gguf-bf16", engine=found.chosen.engine)
    assert {one for place, one in world.scored if place == "confirmation"} == {found.chosen, other}
    assert {trial.point.config for trial in fresh().trials} == {found.chosen, SPLIT_BASELINE}
    assert quality_of(found).verdict is Verdict.MET


def test_a_winner_with_a_quantized_cache_is_compared_with_the_whole_one(world: World) -> None:
    world.truth = Truth(fast="q8_0")
    found = answer(world)
    assert found.chosen is not None
    assert found.chosen.engine == "llamacpp kv=q8_0 threads=2"
    whole = Config(variant="m/gguf-bf16", engine="llamacpp kv=f16 threads=2")
    assert {one for place, one in world.scored if place == "confirmation"} == {found.chosen, whole}


def test_a_quantized_cache_that_loses_too_much_is_ruled_out(world: World) -> None:
    """The same weights in another cache: their divergence is what counts, on whatever text."""
    world.truth = Truth(fast="q8_0", loss=0.0, fresh_loss=0.0, cache_loss=1.0)
    found = answer(world)
    assert found.chosen is not None
    assert found.chosen.engine == "llamacpp kv=f16 threads=2"
    ruled_out = {one.config.engine for one in found.tried if one.fate is Fate.RULED_OUT}
    assert ruled_out == {"llamacpp kv=q8_0 threads=1", "llamacpp kv=q8_0 threads=2"}


def test_without_fresh_text_the_windows_of_the_search_are_what_is_known(world: World) -> None:
    world.truth = Truth(room=WINDOWS)
    found = answer(world)
    assert found.confirmed is not None
    assert found.confirmed.windows is None
    assert quality_of(found) == in_search(found)
    assert fresh().study.quality is None
    assert "on the search's own windows against 10 %" in render_markdown(
        build_tuning_document(found)
    )


def test_quality_takes_no_more_than_half_of_the_time_that_is_left(world: World) -> None:
    world.truth = Truth(window_s=20.0)
    found = answer(world)
    assert found.confirmed is not None
    assert found.confirmed.windows is not None
    assert WINDOWS <= found.confirmed.windows < 40
    assert found.confirmed.windows * 2 * 20.0 <= 0.5 * found.budget_s


def test_the_same_command_plans_nothing_anew(world: World) -> None:
    first = answer(world)
    scored = len(world.scored)
    world.truth = Truth(fresh_loss=0.5)
    assert answer(world) == first
    assert len(world.scored) == scored


def test_an_engine_without_an_unquantized_variant_is_named_before_the_search(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    Path("tune.yaml").write_text(
        FILE.replace("recipes: [gguf-bf16, ", "recipes: [").replace("bf16 @", "q4_0 @")
    )
    with caplog.at_level("WARNING"):
        answer(world)
    assert (
        "no config on" not in caplog.text
    )  # the baseline's own weights are what they are compared with
    Path("tune.yaml").write_text(
        FILE.replace("recipes: [gguf-bf16, gguf-q4_0]", "recipes: [gguf-q4_0, gguf-q8_0]").replace(
            "bf16 @", "q4_0 @"
        )
    )
    with caplog.at_level("WARNING"):
        tune(read_search_source(Path("tune.yaml")), Path("other"), LogObserver(), world.at)
    assert "no config on llamacpp can meet max_quality_loss" in caplog.text


def test_how_many_windows_decide() -> None:
    near, far = [0.05, 0.15], [0.001, 0.003]  # means 0.1 and 0.002
    assert count_confirmation_windows(far * 4, 0.1, 0.95, 10_000) == 8 * LEAST_TIMES
    assert (
        count_confirmation_windows(near * 4, float(np.expm1(0.1)), 0.95, 10_000) == 8 * MOST_TIMES
    )
    between = count_confirmation_windows(near * 4, float(np.expm1(0.13)), 0.95, 10_000)
    assert between == 40  # (3.24 · 0.0535 / 0.03)² = 33
    assert count_confirmation_windows(near * 4, 0.1, 0.95, 100) == 96
    assert count_confirmation_windows(near * 4, 0.1, 0.95, 7) == 0


def decided(distance: float, searches: int = 400) -> tuple[float, float]:
    """Shares of simulated searches with 8 windows, of which the figure met the limit, that fresh windows decide, and
    wrongly. `distance` of the limit above the true loss, in standard deviations; some windows lose much more."""
    rng, spread, outcomes = np.random.default_rng(5), 0.05, []
    limit = distance * spread

    def windows(count: int) -> np.ndarray:
        return np.asarray(spread * (rng.gamma(4.0, 1.0, count) - 4.0) / 2.0)

    while len(outcomes) < searches:
        seen = windows(WINDOWS)
        if seen.mean() > limit:
            continue
        fresh = windows(
            count_confirmation_windows(seen.tolist(), float(np.expm1(limit)), 0.95, 10_000)
        )
        half = float(stdtrit(len(fresh) - 1, 0.975)) * fresh.std(ddof=1) / np.sqrt(len(fresh))
        met, broken = fresh.mean() + half <= limit, fresh.mean() - half > limit
        outcomes.append((met or broken, broken if distance > 0 else met))
    found = np.array(outcomes, dtype=float).mean(axis=0)
    return float(found[0]), float(found[1])


@pytest.mark.parametrize(("distance", "least"), [(1.0, 0.97), (0.5, 0.8), (-0.3, 0.8)])
def test_a_limit_that_is_not_too_near_is_decided_and_hardly_ever_wrongly(
    distance: float, least: float
) -> None:
    share, wrong = decided(distance)
    assert share >= least
    assert wrong <= 0.03


@pytest.mark.parametrize(("offset", "times"), [(0.0, 4), (0.0, 7), (0.5, 4), (0.5, 7), (0.25, 32)])
def test_fresh_windows_touch_none_of_the_search(offset: float, times: int) -> None:
    parts = [list(range(8 * 400)), list(range(100_000, 100_000 + 8 * 300))]
    assert count_windows_per_part(parts, 8, ()) == [400, 300]
    searched = cut_windows(parts, 8, 8, (), offset)
    other = cut_windows(parts, 8 * times, 8, (), (times * offset + 0.5) % 1)
    assert len(other) == len(set(other)) == 8 * times
    assert not {token for window in searched for token in window} & {
        token for window in other for token in window
    }
