"""Trials of study folders and of published records, for `recompute`. Imports nothing of bitbench."""

import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recompute_t import CONFIDENCE, two_sided_p

Json = Any
Config = tuple[str, str]  # variant, engine


@dataclass(frozen=True)
class Trial:
    """One trial that counts."""

    config: Config
    workload: str
    block: int
    round: int | None
    instance: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Study:
    """What a ratio or a mean is computed from."""

    trials: Sequence[Trial]
    baseline: Config | None
    models: Mapping[str, str]  # by variant
    asked: Sequence[Config]
    metric: str
    lengths: Mapping[str, Json]  # input tokens by workload

    def model(self, config: Config) -> str:
        return self.models.get(config[0], "")

    def baseline_of(self, config: Config) -> Config | None:
        """Return the config of the same model that ratios are to."""
        chosen = self.baseline
        if chosen is None:
            return None
        own = [other for other in self.asked if self.model(other) == self.model(config)]
        if chosen in own:
            return chosen
        recipe = chosen[0].rpartition("/")[2]
        same_engine = [other for other in own if other[1] == chosen[1]]
        same_recipe = [other for other in same_engine if other[0].rpartition("/")[2] == recipe]
        return next(iter([*same_recipe, *same_engine, *own]), None)


PRIMARY = {
    "output_throughput": "output_throughput",
    "latency": "latency_s",
    "ttft": "ttft_s",
    "tpot": "tpot_s",
}
MOVES_WITH = {
    "latency_s": "latency",
    "ttft_s": "ttft",
    "tpot_s": "tpot",
    "input_throughput": "ttft",
    "output_throughput": "output_throughput",
    "overall_throughput": "output_throughput",
}


def read_lines(path: Path) -> list[Json]:
    """Return the records of a file with one JSON object a line."""
    return [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]


def read_study(folder: Path) -> Study:
    """Return what counts of a study folder."""
    lock = json.loads((folder / "lock.json").read_text(encoding="utf-8"))
    plan, study = lock["plan"], lock["plan"]["study"]
    points = [(point_config(point), point["workload"]) for point in plan["points"]]
    configs = [config for config, _ in points] + [
        quality_config(config) for config in plan.get("quality", ())
    ]
    refused = [point_config(refusal["point"]) for refusal in plan["refusals"]]
    asked = list(dict.fromkeys([*configs, *refused]))
    metric = PRIMARY[study["measure"]["metric"]]
    records = taken_back(
        read_lines(folder / "trials.jsonl"), read_lines(folder / "instances.jsonl")
    )
    records = settle_turns(records, metric)
    trials = [
        trial_of(record)
        for record in records
        if record["kind"] == "measured" and record["outcome"] == "ok" and not record.get("turn", 0)
    ]
    known = set(points)
    return Study(
        trials=[trial for trial in trials if (trial.config, trial.workload) in known],
        baseline=chosen_baseline(study.get("baseline"), asked),
        models={variant["name"]: variant["model"] for variant in plan["variants"]},
        asked=asked,
        metric=metric,
        lengths={workload["name"]: workload["input_tokens"] for workload in study["workloads"]},
    )


def point_config(point: Json) -> Config:
    return point["config"]["variant"], point["config"]["engine"]


def quality_config(config: Json) -> Config:
    return config["variant"], config["engine"]


def chosen_baseline(wanted: str | None, asked: Sequence[Config]) -> Config | None:
    """Return the config that a study names, or the first on the engine it names, or the first of all."""
    if wanted is None:
        return next(iter(asked), None)
    named = [config for config in asked if f"{config[0]} @ {config[1]}" == wanted]
    on_engine = [config for config in asked if config[1] == wanted]
    return next(iter([*named, *on_engine]), None)


def taken_back(trials: list[Json], instances: list[Json]) -> list[Json]:
    """Leave out the trials of blocks that were repeated because their machine was lost."""
    last_lost = {
        own["block"]: place for place, own in enumerate(instances) if own["outcome"] == "lost"
    }
    gone = {
        own["id"] for place, own in enumerate(instances) if place < last_lost.get(own["block"], -1)
    }
    return [trial for trial in trials if trial["instance_id"] not in gone]


def settle_turns(trials: list[Json], metric: str) -> list[Json]:
    """Let the second trial of a first turn count where first and second trials of an engine differ."""
    pairs: dict[str, list[tuple[Json, Json]]] = {}
    found: dict[tuple[str, str, int, int | None], list[Json]] = {}
    seconds = {turn_key(trial) for trial in trials if trial.get("turn", 0)}
    for trial in trials:
        if turn_key(trial) in seconds and trial["kind"] == "measured" and trial["outcome"] == "ok":
            found.setdefault(turn_key(trial), []).append(trial)
    for own in found.values():
        if len(own) == 2:
            first, second = sorted(own, key=lambda trial: int(trial["index"]))
            pairs.setdefault(first["point"]["config"]["engine"], []).append((first, second))
    for own_pairs in pairs.values():
        if first_trials_differ(own_pairs, metric):
            for first, second in own_pairs:
                first["turn"], second["turn"] = 1, 0
    return trials


def turn_key(trial: Json) -> tuple[str, str, int, int | None]:
    """Return what the two trials of a turn share."""
    config = "\n".join(point_config(trial["point"]))
    return config, trial["point"]["workload"], trial["block"], trial.get("round")


def first_trials_differ(pairs: Sequence[tuple[Json, Json]], metric: str) -> bool:
    """Return True if a t test over the pairs says so."""
    differences = []
    for first, second in pairs:
        before, after = first["metrics"][metric], second["metrics"][metric]
        if before and after:
            differences.append(math.log(before) - math.log(after))
    if len(differences) < 2:
        return False
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if error == 0:
        return mean != 0
    return two_sided_p(len(differences) - 1, mean / error) < 1 - CONFIDENCE


def trial_of(record: Json) -> Trial:
    """Return a trial with the figures that are certain."""
    uncertain = record.get("uncertain", ())
    known = {**record["metrics"], **record["memory"]}
    metrics = {
        name: float(value)
        for name, value in known.items()
        if isinstance(value, int | float) and MOVES_WITH.get(name) not in uncertain
    }
    return Trial(
        point_config(record["point"]),
        record["point"]["workload"],
        record["block"],
        record.get("round"),
        record["instance_id"],
        metrics,
    )


# Copies of records


def read_published_runs(path: Path) -> Study:
    """Return the single runs of a published record, each as a start of its own."""
    trials: list[Trial] = []
    for configuration in path.read_text(encoding="utf-8").split("\n## Configuration: ")[1:]:
        details = configuration.split("\n#### ")[1:]
        names = [detail.split("\n", 1)[0].strip() for detail in details]
        workload = next(
            name.removeprefix("original_") for name in names if name.startswith("original_")
        )
        for name, detail in zip(names, details, strict=True):
            trials += published_trials(name.removesuffix(f"_{workload}"), workload, detail)
    configs = list(dict.fromkeys(trial.config for trial in trials))
    return Study(trials, configs[0], {}, configs, "output_throughput", {})


def published_trials(variant: str, workload: str, detail: str) -> Iterator[Trial]:
    """Yield the runs of one variant at one workload."""
    latencies = re.findall(r"Latency: ([\d.]+)s\n", detail)
    throughputs = re.findall(r"Output Throughput: ([\d.]+) tok/s\n", detail)
    for place, (latency, throughput) in enumerate(zip(latencies, throughputs, strict=True)):
        figures = {"latency_s": float(latency), "output_throughput": float(throughput)}
        yield Trial(
            (variant, "unknown"), workload, place, None, f"{variant} {workload} {place}", figures
        )


def read_published_backends(path: Path) -> Study:
    """Return the columns of a published record: one trial each."""
    rows = {cells[0].strip("* "): cells[1:] for cells in published_cells(path)}
    trials = []
    for place, engine in enumerate(rows["Backend"]):
        figures = {
            f"{name.lower()}_s": float(rows[name][place].removesuffix("ms")) / 1000
            for name in ("TTFT", "TPOT")
        }
        trials.append(
            Trial((rows["Model"][place], engine), "unspecified", 0, None, engine, figures)
        )
    configs = [trial.config for trial in trials]
    return Study(trials, configs[0], {}, configs, "tpot_s", {})


def published_cells(path: Path) -> Iterator[list[str]]:
    """Yield the rows of the first table of a record."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def starts_of(trials: Iterable[Trial], metric: str) -> dict[tuple[int, str], list[float]]:
    """Return the values of each start."""
    starts: dict[tuple[int, str], list[float]] = {}
    for trial in trials:
        if metric in trial.metrics:
            starts.setdefault((trial.block, trial.instance), []).append(trial.metrics[metric])
    return starts
