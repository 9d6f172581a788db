"""Lets a vLLM that was forked from a prepared parent fork its own processes, too: EngineCore and the workers.

On a CPU vLLM insists on spawning them, so that each imports everything again. It sets a worker's OpenMP variables
around the start of that worker; a fork has those with which the prepared parent was loaded. A worker that would have
got others ends with a line that `engines.server` finds, and the engine is then spawned. Read in the engine's
environment by `prepared_parent.py`; written after vLLM 0.32.
"""

import multiprocessing
import os
import sys

UNLIKE = "bitbench-prefork:"  # begins that line
_EXIT = 75


def allow_forks(loaded: dict[str, str]) -> None:
    """Every module that holds `get_mp_context` gets one that forks."""
    real = sys.modules["vllm.utils.system_utils"].get_mp_context
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm") and vars(module).get("get_mp_context") is real:
            module.get_mp_context = lambda: multiprocessing.get_context("fork")  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=lambda: _bind_worker(loaded))


def _bind_worker(loaded: dict[str, str]) -> None:
    """In each process that vLLM forks: the first thread of a worker is bound as libgomp does when it is loaded."""
    wanted = {name: os.environ[name] for name in (*loaded, "OMP_NUM_THREADS") if name in os.environ}
    if "OMP_NUM_THREADS" not in wanted:
        return  # no worker
    if wanted != loaded or "GOMP_CPU_AFFINITY" not in wanted:  # how other runtimes bind was not tried
        os.write(2, f"{UNLIKE} OpenMP would have {wanted}, and was loaded with {loaded}\n".encode())
        os._exit(_EXIT)
    os.sched_setaffinity(0, {int(wanted["GOMP_CPU_AFFINITY"].split()[0])})
