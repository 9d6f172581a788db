"""What bitbench itself takes for a trial does not depend on how many cells the study has."""

from pathlib import Path

from bitbench.lab.observer import LogObserver
from bitbench.lab.study import Lab
from tests.growth import null_study, processor_s


def harness_s_per_trial(folder: Path, *, engines: int, workloads: int) -> float:
    """Processor time of the process that runs a study, without those of the load client and of the engines."""
    measure: dict[str, object] = {"instances": 1, "trials": 2, "schedule": "visits"}
    study = null_study(engines, workloads, measure)
    took_s = processor_s(lambda: Lab().run(study, folder, LogObserver()))
    trials = (folder / "trials.jsonl").read_bytes().count(b"\n")
    assert trials >= engines * workloads * 3  # with a warm-up
    return took_s / trials


def test_a_trial_among_two_hundred_cells_costs_what_one_among_ten_does(tmp_path: Path) -> None:
    harness_s_per_trial(tmp_path / "first", engines=1, workloads=1)  # what is imported once
    few_s = harness_s_per_trial(tmp_path / "few", engines=2, workloads=5)
    many_s = harness_s_per_trial(tmp_path / "many", engines=20, workloads=10)
    print(f"per trial: {1e3 * few_s:.2f} ms of 10 cells, {1e3 * many_s:.2f} ms of 200")
    assert many_s < 1.5 * few_s
