"""`python -m tests.durations` shows what takes longest in build/durations.jsonl, which `scripts/test` writes. With
`keep` it becomes tests/durations.json, from which the next run knows what has to begin first."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "build" / "durations.jsonl"
KEPT = ROOT / "tests" / "durations.json"
SHOWN = 30


class Took(NamedTuple):
    """Seconds, fixtures included; of the processor also those of child processes."""

    wall_s: float
    cpu_s: float


def total(parts: Iterable[Took]) -> Took:
    walls, cpus = zip(*parts, strict=True)
    return Took(round(sum(walls), 2), round(sum(cpus), 2))


def kept() -> dict[str, Took]:
    """By file."""
    return {
        file: Took(*took) for file, took in json.loads(KEPT.read_text(encoding="utf-8")).items()
    }


def written() -> dict[str, Took]:
    """By test; of several runs the last counts."""
    found: dict[str, dict[str, Took]] = defaultdict(dict)
    for line in WRITTEN.read_text(encoding="utf-8").splitlines():
        test, phase, wall_s, cpu_s = json.loads(line)
        found[test][phase] = Took(wall_s, cpu_s)
    return {test: total(phases.values()) for test, phases in found.items()}


def by_file(tests: dict[str, Took]) -> dict[str, Took]:
    files: dict[str, list[Took]] = defaultdict(list)
    for test, took in tests.items():
        files[test.partition("::")[0]].append(took)
    return {file: total(took) for file, took in files.items()}


def show(title: str, found: dict[str, Took]) -> None:
    everything = total(found.values())
    print(
        f"{everything.wall_s:8.0f} s {everything.cpu_s:8.0f} s of the processor: {len(found)} {title}"
    )
    for name, took in sorted(found.items(), key=lambda item: -item[1].cpu_s)[:SHOWN]:
        print(f"{took.wall_s:8.1f} s {took.cpu_s:8.1f} s  {name}")


def keep(files: dict[str, Took]) -> None:
    known = kept() | files
    lines = [
        f"{json.dumps(file)}: {json.dumps(known[file])}"
        for file in sorted(known)
        if (ROOT / file).exists()
    ]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    found = written()
    show("files", by_file(found))
    show("tests", found)
    if sys.argv[1:] == ["keep"]:
        keep(by_file(found))
