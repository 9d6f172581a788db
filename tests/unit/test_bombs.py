"""Study files that want to take all memory or all time: one sentence each, within five seconds and 500 MB."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from bitbench.util.errors import ExitCode
from tests.forked import bitbench_process, forked
from tests.support.limited import plan_within

LIMIT_S = 5
LIMIT_BYTES = 500 * 10**6
HEAD = "name: x\nengines: ['null']\nworkloads: [interactive]\n"
WORKLOAD = "name: x\nengines: ['null']\nworkloads: [{{name: w, concurrency: {}, input_tokens: {}, output_tokens: 8{}}}]\n"
LETTERS = "abcdefghi"


def chained(first: str, form: str) -> str:
    """Each anchor stands for nine of the one before."""
    steps = pairwise(LETTERS)
    return first + "".join(
        f"{name}: &{name} {form.format(','.join([f'*{before}'] * 9))}\n" for before, name in steps
    )


BOMBS = {
    "aliases": (chained("a: &a [x,x,x,x,x,x,x,x,x]\n", "[{}]") + HEAD, "more than 50,000 values"),
    "merges": (HEAD + chained("a: &a {x: 1}\n", "{{<<: [{}]}}"), "more than 50,000 values"),
    "recursive alias": (HEAD + "description: &x [*x]\n", "more than 50,000 values"),
    "recursive mapping": ("&x\n" + HEAD + "description: *x\n", "more than 50,000 values"),
    "deep lists": (HEAD + "description: " + "[" * 100_000, "more than 50 levels"),
    "deep mappings": (HEAD + "description: " + "{a: " * 100_000, "more than 50 levels"),
    "deep blocks": (HEAD + "description:\n  " + "- " * 100_000, "more than 50 levels"),
    "deep keys": ("? " * 100_000, "more than 50 levels"),
    "wide": (HEAD + "description: [" + "1," * 300_000 + "]", "more than 50,000 values"),
    "large": (HEAD + "#" * 2_000_000, "it may have 1.00 MiB at most"),
    "unknown fields": (HEAD + "".join(f"k{number}: 1\n" for number in range(20_000)), "and 19,950 more"),
    "repeated fields": (HEAD + "seed: 1\n" * 20_000, "`seed` is given twice"),
    "repeated engines": (HEAD + "recipes: [" + "a," * 1_500 + "]", "a appears more than once"),
    "too many points": (
        f"name: x\nengines: [{','.join(f'{{engine: null, name: e{n}}}' for n in range(2000))}]\n"
        f"recipes: [{','.join(f'r{n}' for n in range(2000))}]\nworkloads: [interactive]\n",
        "4,000,000 points; at most 2,000",
    ),
    "digits": (HEAD + "seed: " + "9" * 900_000, "a number without end"),
    "sexagesimal": (HEAD + "seed: 1" + ":59" * 300_000, "a number without end"),
    "hexadecimal": (HEAD + "measure: {budget: 0x" + "f" * 98 + "}\n", "is too long"),
    "not a date": (HEAD + "seed: 2026-99-99\n", "not valid YAML"),
    "not a number": (HEAD + "seed: !!int x\n", "not valid YAML"),
    "a list as a key": (HEAD + "? [a]\n: b\n", "not valid YAML: found unhashable key"),
    "an object": (HEAD + "seed: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    "a surrogate": (HEAD + 'description: "\\ud800"\n', "invalid Unicode character"),
    "infinite time": (HEAD + "measure: {budget: 1e400s}\n", "budget: '1e400s' is too large"),
    "ages": (HEAD + "limits: {request: 1e300s}\n", "the longest duration is 576h"),
    "infinite memory": (HEAD + "limits: {memory: 1e400GiB}\n", "memory: '1e400GiB' is too large"),
    "infinite share": (HEAD + "measure: {confidence: 1e400%}\n", "is too large"),
    "infinite streams": (WORKLOAD.format(".inf", 8, ""), "concurrency"),
    "infinite prompt": (WORKLOAD.format(1, "{mean: .inf, sd: .nan}", ""), "finite number"),
    "endless prompt": (WORKLOAD.format(1, 10**15, ""), "less than or equal to 10000000"),
    "endless trial": (
        WORKLOAD.format(1, 8, ", duration: 500h, arrival: {kind: poisson, rate: 1000000}"),
        "a trial has 10,000,000 requests at most",
    ),
    "endless text": (WORKLOAD.format(1, 8, ", text: {file: /dev/zero}"), "a device or a pipe, not a regular file"),
    "silent text": (WORKLOAD.format(1, 8, ", text: {file: pipe}"), "a device or a pipe, not a regular file"),
    "folder as text": (WORKLOAD.format(1, 8, ", text: {file: .}"), "it is a folder"),
    "sparse text": (WORKLOAD.format(1, 8, ", text: {file: sparse}"), "it may have 1.00 GiB at most"),
    "deep text": (WORKLOAD.format(1, 8, ", text: {file: deep.json}"), "not valid JSON"),
    "endless trace": (
        WORKLOAD.format(1, 8, ", requests: 4, arrival: {kind: trace, file: /dev/zero}"),
        "a device or a pipe, not a regular file",
    ),
    "infinite trace": (
        WORKLOAD.format(1, 8, ", requests: 4, arrival: {kind: trace, file: infinite.jsonl}"),
        "not a number of tokens",
    ),
}  # fmt: skip


def explode(study: str, place: Path) -> str:
    os.mkfifo(place / "pipe")
    (place / "sparse").touch()
    os.truncate(place / "sparse", 2**40)
    (place / "deep.json").write_text("[" * 200_000)
    (place / "infinite.jsonl").write_text(
        '{"timestamp": 0, "input_length": 1e400, "output_length": 1}\n'
    )
    done = forked(plan_within, [Path(study), LIMIT_BYTES], cwd=place, timeout_s=120)
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, _, sentence = done.stdout.partition(" ")
    assert sentence, "nothing was wrong with it"
    assert float(seconds) < LIMIT_S
    assert len(sentence) < 10_000
    return sentence


@pytest.mark.parametrize("kind", BOMBS)
def test_a_study_file_that_explodes(kind: str, tmp_path: Path) -> None:
    text, sentence = BOMBS[kind]
    (tmp_path / "s.yaml").write_text(text)
    assert sentence in explode("s.yaml", tmp_path)


@pytest.mark.parametrize(
    ("study", "sentence"),
    [
        ("/dev/zero", "/dev/zero cannot be read: it is a device or a pipe"),
        ("pipe", "pipe cannot be read: it is a device or a pipe"),
        (".", ". cannot be read: it is a folder"),
        ("sparse", "sparse cannot be read: it may have 1.00 MiB at most, and it has 1.00 TiB"),
    ],
)
def test_a_study_file_that_is_none(study: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in explode(study, tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("load", "127.0.0.1:9", "--concurrency", "inf"),
        ("load", "127.0.0.1:9", "--concurrency", "1e400"),
        ("load", "127.0.0.1:9", "--concurrency", "1e300"),
        ("load", "127.0.0.1:9", "--rate", "nan"),
        ("load", "127.0.0.1:9", "--rate", "1e308"),
        ("load", "127.0.0.1:9", "--rate", "5", "--duration", "1e400s"),
        ("load", "127.0.0.1:9", "--slo", "ttft_p99=1e400ms"),
        ("load", "127.0.0.1:9", "--slo", "ttft_p99=200ms", "--max-rate", "inf"),
        ("load", "127.0.0.1:9", "--slo", "ttft_p99=200ms", "--precision", "1e400"),
        ("load", "127.0.0.1:9", "--text", "/dev/zero"),
        ("load", "127.0.0.1:9", "--input", "1000000000000000"),
        ("run", "s.yaml", "--budget", "1e400s"),
        ("run", "s.yaml", "--budget", "1e300h"),
        ("kernels", "--batch", "1e400"),
        ("kernels", "--shapes", "1e400x8"),
        ("recommend", ".", "--max-memory", "1e400GiB"),
        ("recommend", ".", "--max-quality-loss", "1e400%"),
        ("quality", "smollm2-135m", "--recipes", "bf16", "--corpus", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_an_option_that_is_no_number_or_no_file_is_one_sentence(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(HEAD)
    variables = {**os.environ, "BITBENCH_HOME": str(tmp_path / "home")}
    done = bitbench_process(*arguments, cwd=tmp_path, env=variables, timeout_s=120)
    assert done.returncode in (ExitCode.USAGE, ExitCode.REFUSED, ExitCode.UNAVAILABLE), done.stderr
    assert "bug in bitbench" not in done.stderr
    assert "Traceback" not in done.stderr
