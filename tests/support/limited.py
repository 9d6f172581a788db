"""Work in a process whose memory is limited, or measured, before anything is read: see tests/forked.py."""

import resource
import time
from pathlib import Path

from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import plan_study
from bitbench.util.errors import BitbenchError


def plan_within(study: Path, limit_bytes: int) -> None:
    """What Python and its libraries have mapped before does not count. Prints the seconds and the sentence."""
    at, mapped = (
        Workplace(Path("home")),
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize(),
    )
    resource.setrlimit(resource.RLIMIT_AS, (mapped + limit_bytes,) * 2)
    began = time.process_time()
    try:
        plan_study(study, at)
    except BitbenchError as error:
        print(f"{time.process_time() - began:.3f}", error)


def read_input(kind: str, path: Path) -> None:
    """Prints how many kibibytes it took at most, and the seconds."""
    from tests.support.hostile_inputs import INPUTS

    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        INPUTS[kind].read(path)
    except BitbenchError as error:
        said = str(error)
        assert "\n" not in said
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - began)
