"""Taking profiles into a study folder and showing them, over an engine whose steps and trace are made up."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from bitbench.features.explain import profile_run
from bitbench.features.explain.asked import ProfileSpec
from bitbench.features.explain.computing import summarize_profiles
from bitbench.features.explain.profile_run import run_profiles
from bitbench.features.explain.profile_words import build_profile_document, profile_section
from bitbench.ports import Endpoint, InstanceFailed, Launch, LoadJob, LoadResult
from bitbench.records.folder import StudyFolder
from bitbench.records.profile import OperatorProfile, Phase, ProfileGroup
from bitbench.records.request_rows import RequestParts
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import ClientHealth, Failure, InstanceFacts, LoadProgress, Outcome
from bitbench.reports.document.markdown import render_markdown, render_markdown_section
from bitbench.running.trial import RunContext
from bitbench.study.plan import Plan
from bitbench.study.study import Study
from bitbench.study.study_file import format_study, parse_study
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload
from bitbench.util.errors import StoreError
from tests.features.explain.test_profiling import event, mark, written
from tests.support.synthetic import make_lock, make_plan, make_records

PREFILL_S, DECODE_S, FIRST_S = 0.100, 0.010, 0.500
SPEC = ProfileSpec(batch=(1,), input_tokens=8, output_tokens=6)


@dataclass
class MadeUpEngine:
    """Every prefill takes 0.1 s and every decode step 10 ms; the first prefill half a second."""

    name: str = "made-up"
    environment: None = None
    needs_model: bool = False
    start_s: float = 0.0
    can_profile: bool = True
    fails: bool = False
    launches: list[Launch] = field(default_factory=list)
    pid: None = None
    stopped: int = 0

    def refuse(self, *_: object) -> None:
        return None

    def start(self, launch: Launch) -> "MadeUpEngine":
        self.launches.append(launch)
        return self

    def wait_ready(self, timeout_s: float) -> Endpoint:
        if self.fails:
            raise InstanceFailed(Failure(outcome=Outcome.CRASHED, cause="no such luck"))
        return Endpoint("http://127.0.0.1:1", "m")

    def facts(self) -> InstanceFacts:
        return InstanceFacts(engine_version="7", compile_s=12.0)

    def failure(self) -> None:
        return None

    def stop(self) -> None:
        self.stopped += 1

    def run(
        self, job: LoadJob, on_progress: Callable[[LoadProgress], None] | None = None
    ) -> LoadResult:
        """As a load client: prompts one after the other, then the tokens of each."""
        first = not self.__dict__.get("asked")
        self.__dict__["asked"] = True
        count, tokens = job.workload.concurrency, int(str(job.workload.output_tokens))
        rows = [
            {
                "request": row,
                "sent_s": 0.0,
                "chunk_s": [
                    (FIRST_S if first else PREFILL_S * (row + 1)) + DECODE_S * step
                    for step in range(tokens)
                ],
                "status": "ok",
                "error": None,
            }
            for row in range(count)
        ]
        health = ClientHealth(send_lateness_p99_s=0, loop_lag_p99_s=0, cpu_share=0)
        return LoadResult(
            RequestSums(), RequestParts.of(pa.Table.from_pylist(rows)), health, "", 1.0
        )


class Notes:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, message: str) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> MadeUpEngine:
    """Its trace: three steps of each phase, each half a product and half nothing."""

    def stop(_: Endpoint, name: str, folder: Path) -> Path:
        is_prefill = name != "decode"
        length = 1e6 * (PREFILL_S if is_prefill else DECODE_S)
        shape = {"prompts": 1, "tokens": 8} if is_prefill else {"sequences": 1}
        marks = [mark(step * length, 0.9 * length, **shape) for step in range(4)]
        products = [event("aten::mm", step * length + 1, 0.5 * length) for step in range(4)]
        return written(folder, [*marks, *products]).rename(folder / f"{name}.json.gz")

    monkeypatch.setattr(profile_run, "start_profile_run_recording", lambda *_: None)
    monkeypatch.setattr(profile_run, "stop_profile_run_recording", stop)
    return MadeUpEngine()


def plan_with(engines: list[str], spec: ProfileSpec | None = SPEC) -> Plan:
    return make_plan(engines, [BUILT_IN_WORKLOADS["interactive"]], profile=spec)


def take(folder: StudyFolder, plan: Plan, engine: MadeUpEngine) -> Notes:
    notes = Notes()
    context = RunContext(plan, {"null": engine}, python_of=Path, load=engine, observer=notes)  # type: ignore[dict-item,arg-type]
    with folder.open_writer() as writer:
        writer.write_lock(make_lock(plan))
        run_profiles(context, writer)
    return notes


@pytest.fixture
def profiles(tmp_path: Path, engine: MadeUpEngine) -> list[OperatorProfile]:
    folder = StudyFolder(tmp_path / "study")
    take(folder, plan_with(["only"]), engine)
    return folder.profiles()


def test_prefill_and_decode_are_stored_with_their_traces(
    tmp_path: Path, profiles: list[OperatorProfile]
) -> None:
    prefill, decode = profiles
    assert (prefill.phase, decode.phase) == (Phase.PREFILL, Phase.DECODE)
    assert (prefill.context_tokens, decode.context_tokens) == (8, 8 + 6 // 2)
    assert prefill.trace_file == "profiles/p0001.trace.json.gz"
    for one, seconds in ((prefill, PREFILL_S), (decode, DECODE_S)):
        assert (tmp_path / "study" / str(one.trace_file)).is_file()
        assert one.unprofiled.mean_s == pytest.approx(seconds)
        assert one.profiled.mean_s == pytest.approx(seconds)
        assert one.groups_s == pytest.approx(seconds)
        assert one.overhead == pytest.approx(0, abs=1e-9)
        assert one.agreement == pytest.approx(0, abs=1e-9)
        assert one.group_s(ProfileGroup.DENSE_MATMUL) == pytest.approx(seconds / 2)
        assert one.facts.engine_version == "7"


def test_what_is_there_is_not_taken_again(tmp_path: Path, engine: MadeUpEngine) -> None:
    folder = StudyFolder(tmp_path / "study")
    take(folder, plan_with(["only"]), engine)
    assert (len(engine.launches), engine.stopped) == (1, 1)
    assert engine.launches[0].trace_folder is not None
    take(folder, plan_with(["only"]), engine)
    assert len(engine.launches) == 1
    take(
        folder,
        plan_with(["only"], SPEC.model_copy(update={"batch": (1, 2)})),
        MadeUpEngine(fails=True),
    )
    assert len(folder.profiles()) == 2


def test_a_study_without_profile_takes_none(tmp_path: Path, engine: MadeUpEngine) -> None:
    take(StudyFolder(tmp_path / "study"), plan_with(["only"], None), engine)
    assert engine.launches == []


def test_a_profile_that_cannot_be_had_is_a_warning(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    notes = take(folder, plan_with(["only"]), MadeUpEngine(fails=True))
    assert (
        "no operator profile of only at batch 1: only did not start: no such luck"
        in notes.warnings[0]
    )
    notes = take(folder, plan_with(["only"]), MadeUpEngine(can_profile=False))
    assert "made-up has no profiler that bitbench supports" in notes.warnings[0]


def test_a_profile_of_a_newer_bitbench_is_refused(
    tmp_path: Path, profiles: list[OperatorProfile]
) -> None:
    folder = StudyFolder(tmp_path / "study")
    path = folder.profiles_folder / "p0001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(StoreError, match="newer bitbench"):
        folder.profiles()


def test_the_table_has_the_columns_of_torchs_own(profiles: list[OperatorProfile]) -> None:
    text = render_markdown(build_profile_document(profiles)).replace("\\", "")
    for column in ("Name", "Self CPU %", "CPU total", "CPU time avg", "# of Calls"):
        assert f"| {column}" in text or f" {column} |" in text
    assert "Self device" not in text  # nothing ran on a device
    assert "`aten::mm`" in text
    assert "100.0 % of the step that the client measured" in text
    assert "the profiler costs" in text
    assert "framework overhead" in text


def test_unknown_operators_are_shown(profiles: list[OperatorProfile]) -> None:
    known = profiles[0].operators[0]
    strange = known.model_copy(update={"name": "new::thing", "group": ProfileGroup.OTHER})
    shown = profiles[0].model_copy(update={"operators": (strange, known, known)})
    text = render_markdown(build_profile_document([shown]))
    assert "`new::thing`" in text
    assert "other operators" in text


def section_text(profiles: list[OperatorProfile]) -> str:
    found = summarize_profiles(make_records(plan_with(["null"]), [], profiles=profiles))
    assert found is not None
    return "\n\n".join(render_markdown_section(profile_section(found, None)))  # type: ignore[arg-type]


def test_a_sum_that_misses_the_measured_step_is_said(profiles: list[OperatorProfile]) -> None:
    off = profiles[0].model_copy(
        update={"profiled": profiles[0].profiled.model_copy(update={"seconds": (0.2,)})}
    )
    assert "differ by more than 5 %" in section_text([off])
    assert "differ by more than" not in section_text(profiles)
    assert summarize_profiles(make_records(plan_with(["null"]), [])) is None


def test_a_summary_has_the_longest_operators_and_no_word_of_the_instance(
    profiles: list[OperatorProfile],
) -> None:
    """Its facts have paths of this machine, and a report is passed on."""
    many = profiles[0].model_copy(update={"operators": profiles[0].operators[:1] * 20})
    found = summarize_profiles(make_records(plan_with(["null"]), [], profiles=[many]))
    assert found is not None
    assert 0 < len(found.profiles[0].operators) < 20
    assert many.facts != found.profiles[0].facts == InstanceFacts()


def test_profile_in_a_study_file_survives_writing_it() -> None:
    study = Study(
        name="s",
        engines=("null",),  # type: ignore[arg-type]
        workloads=(Workload(name="w", concurrency=1, input_tokens=1, output_tokens=1),),
        profile=ProfileSpec(batch=(1, 8)),
    )
    assert parse_study(format_study(study), name="study.yaml") == study
    assert ProfileSpec.model_validate({"batch": 4}).batch == (4,)
    for wrong in (0, [1, 1], [], True):
        with pytest.raises(ValidationError):
            ProfileSpec.model_validate({"batch": wrong})
