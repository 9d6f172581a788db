"""Calibration text: what is read, and what is refused."""

from pathlib import Path

import pytest

from bitbench.quantize import calibration
from bitbench.quantize.calibration import read_calibration
from bitbench.util.errors import QuantizeError


def test_the_default_needs_no_hub_and_is_the_same_each_time() -> None:
    text = read_calibration(None)
    assert (
        sum(len(document["text"]) for document in text.documents) > 300_000
    )  # 64 × 512 tokens are about 150,000
    assert "Python" in text.description
    assert text.content_hash == read_calibration(None).content_hash


def test_a_folder_is_read_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "weights.bin").write_bytes(b"\0\1")
    assert [document["text"] for document in read_calibration(tmp_path).documents] == [
        "first",
        "second",
    ]


def test_jsonl_holds_text_and_conversations(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(
        '{"text": "a", "id": 3}\n\n{"messages": [{"role": "user", "content": "hi", "x": 1}]}\n'
    )
    text = read_calibration(path)
    assert text.documents == ({"text": "a"}, {"messages": [{"role": "user", "content": "hi"}]})
    assert "2 conversations" in text.description


def test_the_hash_follows_the_text_and_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "b.txt").write_text("same")
    (tmp_path / "c.txt").write_text("other")
    first, second, third = (
        read_calibration(tmp_path / name).content_hash for name in ("a.txt", "b.txt", "c.txt")
    )
    assert first == second
    assert first != third


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b" \n ", "is empty; name a file"),
        ("a.txt", b"\xff\xfe\x00", "is not text"),
        ("a.txt", b"a\0b", "is not text"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: this line is not JSON"),
        ("a.jsonl", b'{"prompt": "a"}\n', r'a\.jsonl:1: each line must be \{"text"'),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', r"a\.jsonl:1"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1"),
    ],
)
def test_refusals(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(QuantizeError, match=message):
        read_calibration(tmp_path / name)


def test_what_is_not_there_and_what_holds_no_text(tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="No calibration text"):
        read_calibration(tmp_path / "none")
    with pytest.raises(QuantizeError, match=r"contains no text.*\.jsonl"):
        read_calibration(tmp_path)


def test_a_corpus_named_by_mistake_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LARGEST_SOURCE_BYTES", 10)
    (tmp_path / "a.txt").write_text("more than ten bytes")
    with pytest.raises(QuantizeError, match="name a part of it"):
        read_calibration(tmp_path / "a.txt")
