"""The node program: `python -m bitbench.features.fleet.node [SLOT]`, a driver on stdin and stdout, one order at a time.

An order is a block of a study, which needs the study's environments and models on this machine, or a part of the
requests of a trial. Results go to the driver one by one, each when it is asked for. It ends, with its engines and load
workers, when the driver is gone, or was silent for a minute.
"""

import contextlib
import os
import sys

from bitbench.features.fleet.channel import Message
from bitbench.features.fleet.jobs import BlockJob, LoadPart
from bitbench.features.fleet.serving import Node, NodeJob

SLOT_VARIABLE = "BITBENCH_MACHINE_SLOT"  # where several simulated machines are one
_KILLED_FIRST = "/proc/self/oom_score_adj"
# What a cluster's worker processes carry, and a program that measures must not.
_FOREIGN = ("RAY_", "OMP_NUM_THREADS", "PYTHONUNBUFFERED")


def main() -> None:
    requests, results = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)  # no child may read what is meant for this program
    os.dup2(2, 1)  # whatever prints must not write into the results
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]
    with contextlib.suppress(OSError):  # a cluster may have made its workers the first to be killed
        os.write(os.open(_KILLED_FIRST, os.O_WRONLY | os.O_CLOEXEC), b"0")
    slot = "".join(sys.argv[1:2]) or os.environ.get(SLOT_VARIABLE, "")
    Node(requests, results, slot, _read).serve()


def _read(asked: Message) -> NodeJob:
    """Raises FleetError."""
    return LoadPart.read(asked) if asked.header.work == "load" else BlockJob.read(asked)


if __name__ == "__main__":
    main()
