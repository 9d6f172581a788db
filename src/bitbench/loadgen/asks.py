"""What each request of a trial asks: its prompt, and how many tokens it shall have back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bitbench.loadgen.inputs import usable_texts
from bitbench.loadgen.prompts import Ids, PromptSource
from bitbench.loadgen.randomness import generator
from bitbench.loadgen.texts import Text
from bitbench.loadgen.traces import MOONCAKE_BLOCK_TOKENS, TraceRow
from bitbench.ports import LoadJob
from bitbench.study.prompts import Length, Lengths, longest
from bitbench.study.workload import Workload

Prompt = list[int] | Text


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: Prompt
    input_tokens: int | None  # None where only the server's tokenizer knows
    output_tokens: int


def draw_lengths(length: Length, count: int, seed: tuple[int, ...], purpose: str) -> list[int]:
    """So many lengths; around the mean where there is one, and then set to `min` or `max` if beyond."""
    if not isinstance(length, Lengths):
        return [length] * count
    draw = generator(seed, purpose)
    if length.mean is None or length.sd is None:
        return [int(value) for value in draw.integers(length.shortest, length.longest, size=count, endpoint=True)]
    drawn = np.rint(draw.normal(length.mean, length.sd, count))
    return [int(value) for value in np.clip(drawn, length.shortest, length.longest)]


def asks_from_trace(job: LoadJob, rows: Sequence[TraceRow]) -> Iterator[Ask]:
    """As long as the trace says, cut to what the workload allows; prompts begin alike where its blocks do."""
    source = PromptSource(job.vocabulary, job.seed)
    most_in, most_out = longest(job.workload.input_tokens), longest(job.workload.output_tokens)
    for number, row in enumerate(rows):
        length = min(row.input_tokens, most_in)
        needed = -(-length // MOONCAKE_BLOCK_TOKENS)
        blocks = [source.passage(f"block {block}", MOONCAKE_BLOCK_TOKENS) for block in row.blocks[:needed]]
        rest = max(length - len(blocks) * MOONCAKE_BLOCK_TOKENS, 0)
        parts = [*blocks, source.prompt(number, rest)] if rest else blocks
        yield Ask(np.concatenate(parts)[:length].tolist(), length, min(row.output_tokens, most_out))


def asks_from_texts(job: LoadJob, count: int) -> Iterator[Ask]:
    """Texts in a seeded random order; once each, and then again where a file has fewer than are asked for."""
    texts = usable_texts(job.workload, job.folder)
    order = generator(job.seed, "order of texts").permutation(len(texts))
    outputs = draw_lengths(job.workload.output_tokens, count, job.seed, "output lengths")
    for number, output_tokens in enumerate(outputs):
        yield Ask(texts[order[number % len(texts)]], None, output_tokens)


def asks_of_random_ids(job: LoadJob, count: int) -> Iterator[Ask]:
    """Turn after turn of each conversation; a workload without conversations has one turn in each.

    The history of a later turn holds made-up answers of the length that was asked for, not those of the server: so
    requests are the same for every config, and known before the first one is sent.
    """
    workload, seed = job.workload, job.seed
    source = PromptSource(job.vocabulary, seed)
    inputs = draw_lengths(workload.input_tokens, count, seed, "input lengths")
    outputs = draw_lengths(workload.output_tokens, count, seed, "output lengths")
    prefixes = _shared_prefixes(workload, count, seed, source)
    history: list[Ids] = []
    for number in range(count):
        if number % workload.turns == 0:
            history = []
        prefix = prefixes[number]
        said = source.prompt(number, inputs[number] - prefix.size)
        prompt = np.concatenate([*history, prefix, said])
        yield Ask(prompt.tolist(), prompt.size, outputs[number])
        if workload.turns > 1:
            history += [said, source.passage(f"answer {number}", outputs[number])]


def _shared_prefixes(workload: Workload, count: int, seed: tuple[int, ...], source: PromptSource) -> list[Ids]:
    """What each prompt begins with; empty for those that share nothing. The share is met exactly, up to rounding."""
    nothing = np.empty(0, dtype=np.int64)
    shared = workload.shared_prefix
    if shared is None:
        return [nothing] * count
    passages = [source.passage(f"shared prefix {number}", shared.tokens) for number in range(shared.prefixes)]
    draw = generator(seed, "shared prefixes")
    has_one = draw.permutation(count) < round(shared.share * count)
    which = draw.integers(shared.prefixes, size=count)
    return [passages[which[number]] if has_one[number] else nothing for number in range(count)]
