"""Old wording stays out of what a person reads: messages, help lines, docstrings, documents, examples."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2]

# Each with what to write instead. A short list of what was hard to read, not a style checker.
OLD_WORDS = {
    "surely": "significantly, or with 95 % confidence",
    "nobody": "no config, no process",
    "contenders?": "config",
    "headlines?": "primary metric",
    "cannot tell": "inconclusive",
    "cannot be told": "tied with, or unknown",
    "nowhere told": "tied with",
    "nothing is known": "unknown",
    "be brought": "be downloaded",
    "been brought": "is not downloaded",
    "bring the model": "download the model",
    "made anew": "recreated",
    "makes? it anew": "recreate it, starts over",
    "to mend": "to fix",
    "mends": "fixes",
    "go(es)? on with": "resume",
    "going on after": "resuming after",
    "on the front": "on the Pareto front",
    "is there": "installed, ready, exists",
    "is not there": "not installed, missing",
    "for want of": "for lack of",
    "moods": "machine noise",
    "own lateness": "send delay",
    "whose figure is it": "is the client the bottleneck?",
    "nothing vanishes": "failures are always reported",
    "that is elsewhere": "you don't have here",
    "but for noise": "equivalent within the margin",
    "indistinguishable from": "equivalent within the margin",
    "slowest percent": "tail latency",
    "bytes and operations promise": "roofline prediction",
    "cell by cell": "config by config",
    "open question": "already decided",
    "which question, which page": "find your page",
    "does my server carry": "how much load can my server handle?",
    "sends something elsewhere": "asks before contacting other hosts",
    "relative half width": "± this",
    "a fact that may differ": "ignore this mismatch",
}
# Where a word is right: (end of the path, word).
RIGHT = {("docs/statistics.md", "is there"), ("docs/accuracy.md", "own lateness")}


def literals(path: Path) -> Iterator[str]:
    """Every string of a module, docstrings included; comments are for those who read the code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def texts() -> dict[str, str]:
    found = {path: "\n".join(literals(path)) for path in (HERE / "src" / "bitbench").rglob("*.py")}
    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md")
    written = [HERE / name for name in (*names, "scripts/README.md", "tests/README.md")]
    for folder, pattern in (
        ("docs", "**/*.md"),
        ("examples", "*.y*ml"),
        ("src/bitbench/planning", "*.yaml"),
        ("src/bitbench/quantize/recipes", "*.yaml"),
    ):
        written += (HERE / folder).glob(pattern)
    return {
        str(path.relative_to(HERE)): text
        for path, text in {
            **found,
            **{path: path.read_text(encoding="utf-8") for path in written},
        }.items()
    }


TEXTS = texts()


def test_the_texts_are_found() -> None:
    assert {
        "README.md",
        "docs/index.md",
        "examples/first-look.yaml",
        "src/bitbench/cli/app.py",
    } <= TEXTS.keys()


@pytest.mark.parametrize("words", OLD_WORDS)
def test_old_words_are_gone(words: str) -> None:
    pattern = re.compile(r"\b" + words.replace(" ", "[ \n]+") + r"\b", re.IGNORECASE)
    seen = [
        f"{name}: …{text[max(found.start() - 40, 0) : found.end() + 40]!r}…"
        for name, text in TEXTS.items()
        if (name, words) not in RIGHT
        for found in pattern.finditer(text)
    ]
    assert not seen, f"write {OLD_WORDS[words]!r} instead of {words!r}:\n" + "\n".join(seen)
