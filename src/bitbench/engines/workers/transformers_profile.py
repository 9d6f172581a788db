"""torch's profiler for the transformers server. Each step has a mark in vLLM's format.

Imported by path in the transformers environment. It imports nothing of ours.
"""

from pathlib import Path
from typing import Any


class StepProfiler:
    """A profiler for the computing thread, since torch records only the thread that starts it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._name = ""
        self._profile: Any = None
        self._mark: Any = None

    def start(self, name: str) -> None:
        if self._folder is None:
            raise RuntimeError("profiling was not asked for at the start")
        if self._profile is not None:
            raise RuntimeError("it runs already")
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._name = name
        self._profile = profile(activities=activities, profile_memory=True)
        self._profile.start()

    def stop(self) -> None:
        if self._profile is None or self._folder is None:
            raise RuntimeError("it does not run")
        self.end_step()
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._folder / f"{self._name}.pt.trace.json.gz"))
        self._profile = None

    def begin_step(self, *, prompts: int = 0, prompt_tokens: int = 0, sequences: int = 0) -> None:
        """End the step before, and mark the beginning of a step in the trace."""
        if self._profile is None:
            return
        from torch.profiler import record_function

        self.end_step()
        name = f"execute_context_{prompts}({prompt_tokens})_generation_{sequences}({sequences})"
        self._mark = record_function(name)
        self._mark.__enter__()

    def end_step(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
