"""Studies of any size on the null engine, and the processor time that something takes."""

import time
from collections.abc import Callable
from pathlib import Path

from bitbench.study.study import Study

MANY = {"starts": 2, "trials": 2}


def null_study(engines: int, workloads: int, measure: dict[str, object] | None = None) -> Study:
    """`engines` × `workloads` points; each answer is over in a few milliseconds."""
    return Study.model_validate(
        {
            "name": "grown",
            "engines": [
                {"engine": "null", "name": f"e{number}", "args": {"ttft": "1ms", "tpot": "1ms"}}
                for number in range(engines)
            ],
            "workloads": [
                {
                    "name": f"w{number}",
                    "concurrency": 1,
                    "input_tokens": 8,
                    "output_tokens": 4 + number % 4,
                }
                for number in range(workloads)
            ],
            "measure": measure or MANY,
        }
    )


def write_null_study(path: Path, engines: int, workloads: int) -> Path:
    from bitbench.study.study_file import format_study

    path.write_text(format_study(null_study(engines, workloads)))
    return path


def processor_s(work: Callable[[], object]) -> float:
    """Of this process alone: what else runs on the machine does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began
