"""Small study folders on disk, each with another kind of report: a comparison, a sweep over rates, quality."""

from pathlib import Path

from bitbench.core.asked.study import Count, Measure
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Contender
from bitbench.core.recorded.quality import Answer, TaskResult
from bitbench.core.recorded.trial import ObjectiveResult, Outcome, TrialMetrics, TrialRecord
from bitbench.core.recorded.variant import NO_MODEL
from bitbench.store.folder import StudyFolder, Writer
from tests.unit.synthetic import demo_study, make_lock, make_plan, make_trial
from tests.unit.test_statistics_quality import logits, noisy, plan, record, rows

SERVED = 50.0  # requests per second, at most


def write_demo(writer: Writer) -> None:
    """A winner, a tie, an outlier, a failed contender and a refused cell."""
    _, trials, instances, lock = demo_study()
    writer.write_lock(lock)
    for instance in instances:
        writer.append_instance(instance)
    for trial in trials:
        writer.append_trial(trial, None)


def write_sweep(writer: Writer) -> None:
    """Three rates; at the highest one trial fails its objective and the other is overloaded."""
    plan = make_plan(
        ["server"],
        [_at_rate(rate) for rate in (160.0, 40.0, 10.0)],
        Measure(instances=Count(min=1, max=1), trials=Count(min=2, max=2)),
        objectives={"ttft_p99": "200ms"},
    )
    writer.write_lock(make_lock(plan))
    for rate in (10.0, 40.0, 160.0):
        for index in range(2):
            writer.append_trial(_trial_at(rate, index), None)


def _at_rate(rate: float) -> Workload:
    shape = {"input_tokens": 128, "output_tokens": 64, "duration": "10s"}
    arrival = {"kind": "poisson", "rate": rate}
    return Workload.model_validate({"name": f"rate-{rate:g}", "arrival": arrival, **shape})


def _trial_at(rate: float, index: int) -> TrialRecord:
    cell = Cell(contender=Contender(variant=NO_MODEL, engine="server"), workload=f"rate-{rate:g}")
    if rate > SERVED and index == 1:
        return make_trial(cell, 0, index, outcome=Outcome.OVERLOADED, cause="HTTP 429: no.", failed_requests=7)
    served = min(rate, SERVED)
    metrics = TrialMetrics(
        offered_rate=rate,
        achieved_rate=served + index,
        goodput=served,
        output_throughput=64 * (served + index),
        ttft_p50_s=0.02 + rate / 1000,
        ttft_p99_s=0.03 + rate / 200,
        tpot_s=0.002,
    )
    why_not = "ttft_p99 was 830 ms" if rate > SERVED else None
    return make_trial(cell, 0, index, metrics=metrics, objectives=ObjectiveResult(holds=not why_not, why_not=why_not))


def write_quality(writer: Writer) -> None:
    """A baseline, a variant as good, one that is flagged, and one without a result."""
    asked = plan("bf16", "w8", "w4", "w2")
    writer.write_lock(make_lock(asked))
    same = Answer(prompt="Why?", text="Because.", tokens=(1, 2, 3))
    other = Answer(prompt="Why?", text="No.", tokens=(1, *[9] * 20))
    task = TaskResult(task="capitals", metric="acc,none", value=0.75, standard_error=0.09, samples=24)
    writer.append_quality(record("bf16").model_copy(update={"answers": (same,), "tasks": (task,)}), rows(logits(1)))
    worse = task.model_copy(update={"value": 0.5})
    writer.append_quality(record("w8").model_copy(update={"answers": (same,), "tasks": (worse,)}), rows(noisy(0.1)))
    writer.append_quality(record("w4").model_copy(update={"answers": (other,)}), rows(noisy(1.5)))
    writer.append_quality(record("w2", Outcome.OOM).model_copy(update={"cause": "Too large."}), None)


WRITERS = {"demo": write_demo, "sweep": write_sweep, "quality": write_quality}


def write_folder(kind: str, path: Path) -> StudyFolder:
    folder = StudyFolder(path)
    with folder.writing() as writer:
        WRITERS[kind](writer)
        writer.write_study(f"name: {kind}\n")
    return folder
