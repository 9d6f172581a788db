"""A workload in a sentence."""

import pytest

from bitbench.reports.document.model import Name
from bitbench.reports.sections.workloads import describe_workload
from bitbench.study.base import Json
from bitbench.study.workload import Workload


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"concurrency": 8},
            "Concurrency 8, input 256 tokens, output 64 tokens, all at once, 8 requests per trial.",
        ),
        (
            {"arrival": {"kind": "poisson", "rate": 5}, "duration": "1m"},
            "Input 256 tokens, output 64 tokens, Poisson arrivals at 5 requests/s, 300 requests per trial.",
        ),
        (
            {"arrival": {"kind": "trace", "file": "trace.jsonl", "speed": 2}, "duration": "30s"},
            "Input up to 256 tokens, output up to 64 tokens, arrivals of the trace <trace.jsonl> at 2 times its speed, "
            "30.0 s per trial.",
        ),
        (
            {"api": "chat", "text": {"file": "t.json"}, "concurrency": 1},
            "Concurrency 1, input up to 256 tokens, output 64 tokens, texts from <t.json>, through the chat endpoint, "
            "all at once, 1 request per trial.",
        ),
        (
            {
                "input_tokens": {"min": 200, "max": 2000},
                "output_tokens": {"mean": 100, "sd": 20},
                "shared_prefix": {"tokens": 128, "share": "80%"},
                "arrival": {"kind": "poisson", "rate": 10.5},
                "duration": "10s",
            },
            "Input 200 to 2,000 tokens, output 100 ± 20, 40 to 160 tokens, 80 % of the prompts with one prefix of "
            "128 tokens, Poisson arrivals at 10.5 requests/s, 105 requests per trial.",
        ),
        (
            {
                "arrival": {"kind": "constant", "rate": 4},
                "requests": 6,
                "conversation": {"turns": 3, "think": "2s"},
            },
            "Input 256 tokens, output 64 tokens, conversations of 3 turns with 2.00 s of thinking between them, "
            "one conversation each 250 ms, 6 requests per trial.",
        ),
    ],
)
def test_sentences(asked: Json, sentence: str) -> None:
    workload = Workload.model_validate(
        {"name": "w", "input_tokens": 256, "output_tokens": 64, **asked}
    )
    said = "".join(
        f"<{part.text}>" if isinstance(part, Name) else str(part)
        for part in describe_workload(workload)
    )
    assert said == sentence
