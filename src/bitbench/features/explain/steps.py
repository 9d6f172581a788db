"""The steps of an engine: where they begin in a trace, and how long they take for a client that watches from outside.

vLLM marks every step in its trace with what it computes, such as `execute_context_1(128)_generation_0(0)`: one prompt
of 128 tokens and no running sequence. The transformers server marks its steps alike.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from bitbench.features.explain.trace import ChromeTrace, Span
from bitbench.records.profile import Phase
from bitbench.util.errors import ProfileError

_MARK = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_ARRIVING = 2  # full steps


class Step(NamedTuple):
    """From its own beginning to that of the next step, in microseconds: nothing between two steps is lost."""

    thread: int
    start: float
    end: float
    mark: str = ""  # what the engine calls it


class StepShape(NamedTuple):
    phase: Phase
    batch: int
    input_tokens: int

    def is_marked(self, name: str) -> bool:
        """Whether a mark is that of a full step of this phase, and not one in which some sequences are missing."""
        found = _MARK.fullmatch(name)
        if found is None:
            return False
        prompts, prompt_tokens, sequences, _ = map(int, found.groups())
        if self.phase is Phase.DECODE:
            return prompts == 0 and sequences == self.batch
        return sequences == 0 and prompts == self.batch and prompt_tokens == self.batch * self.input_tokens


def steps_in(trace: ChromeTrace, shape: StepShape) -> list[Step]:
    """The full steps of a phase that another step of work followed at once."""
    marks = sorted((span for span in trace.spans if _MARK.fullmatch(span.name)), key=lambda span: span.start)
    steps = [
        Step(mark.thread, mark.start, following.start, mark.name)
        for mark, following in itertools.pairwise(marks)
        if shape.is_marked(mark.name) and _does_work(following) and mark.thread == following.thread
    ]
    if not steps:
        seen = ", ".join(sorted({mark.name for mark in marks})[:5]) or "none"
        raise ProfileError(
            f"the trace has no {shape.phase.value} step of {shape.batch} sequences that another one follows "
            f"(marks in it: {seen}); try a smaller batch or shorter prompts, which the engine does not split"
        )
    # While the first ones are computed the other prompts are still arriving; the client leaves them out as well.
    return steps[_ARRIVING:] if shape.phase is Phase.PREFILL and len(steps) > _ARRIVING else steps


def _does_work(mark: Span) -> bool:
    """vLLM makes an empty step to clear up when nothing is left to do, and then waits."""
    found = _MARK.fullmatch(mark.name)
    return found is not None and any(int(count) for count in found.groups())


def prefill_seconds(first_tokens: Sequence[float], batch: int) -> tuple[float, ...]:
    """From the arrival of first tokens when prompts wait in line: one step for each `batch` of them.

    Tokens of a step arrive together, so from a token to the one `batch` places later is one step, wherever the steps
    begin. The first and the last step may be smaller, and the second may begin while prompts still arrive: left out.
    """
    arrivals = sorted(first_tokens)[2 * batch - 1 : len(first_tokens) - batch]
    times = arrivals[::batch]
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


def decode_seconds(streams: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """From the arrival of tokens in each stream: the gaps of one stream while all of them were decoding.

    Without the last: in the trace no step follows it, so its end is not known there.
    """
    begun, ended = max(times[0] for times in streams), min(times[-1] for times in streams)
    times = [at for at in streams[0] if begun <= at <= ended][:-1]
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))
