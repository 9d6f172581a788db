"""Files that lie: each is read or refused in a sentence, within seconds and half a gigabyte."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts
from bitbench.machine.workplace import get_default_home
from bitbench.reports.write import StudyReport
from bitbench.util.errors import ModelError
from bitbench.util.model_files import read_safetensors_header
from tests.forked import forked
from tests.in_memory import MEMORY
from tests.length import IS_LONG, by_length
from tests.support.hostile_inputs import DATA, INPUTS, TOOLS, is_read
from tests.support.limited import read_input
from tests.support.mutations import mutations
from tests.unit.test_quantize_gguf import text

EXAMPLES = by_length(2_000, 100_000)  # of all kinds together
REPORTS = by_length(2, 200)  # of each kind
mutated = settings(
    max_examples=EXAMPLES // len(INPUTS),
    derandomize=not IS_LONG,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("kind", INPUTS)
def test_an_honest_file_is_read(kind: str) -> None:
    assert is_read(kind, INPUTS[kind].honest)


@pytest.mark.parametrize("kind", INPUTS)
@mutated
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_in_a_sentence(kind: str, data: st.DataObject) -> None:
    is_read(kind, data.draw(mutations(INPUTS[kind].honest)))


def test_an_architecture_with_an_endless_name_is_refused_in_a_sentence() -> None:
    assert not is_read("config", json.dumps({"architectures": ["x" * 50_000]}).encode())


@pytest.mark.parametrize("kind", TOOLS)
@settings(mutated, max_examples=REPORTS)
@given(data=st.data())
def test_what_is_imported_can_be_reported(kind: str, data: st.DataObject) -> None:
    assert_reported(kind, data.draw(mutations((DATA / kind).read_bytes())))


def assert_reported(kind: str, content: bytes) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / kind
        path.write_bytes(content)
        if is_read(kind, content):
            study = import_files([path], TOOLS[kind], ImportedStarts.PER_FILE, path.parent / "out")
            if study.study_file.exists():
                StudyReport(study, get_default_home()).write()


def header(entries: object, data: bytes = b"") -> bytes:
    content = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(content)) + content + data


def entry(
    dtype: object = "I8", shape: object = (2,), offsets: object = (0, 2)
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "too short"),
        (struct.pack("<Q", 2**63) + b"{}", "claims 9223372036854775808 bytes"),
        (struct.pack("<Q", 100) + b"{}", "claims 100 bytes, of at most 2"),
        (header([]), "not a JSON object"),
        (header(b"\xff\xfe{}"), "can't decode"),
        (header(b'{"a":' * 5_000), "nested too deeply"),
        (header({"a": []}), "unknown dtype"),
        (header({"a": entry("I9")}, b"12"), "a has the unknown dtype 'I9'"),
        (header({"a": entry(shape=[-2])}, b"12"), "the shape of a"),
        (header({"a": entry(shape=[True, 2])}, b"12"), "the shape of a"),
        (header({"a": entry(shape=[1] * 10**5)}, b"12"), "the shape of a"),
        (header({"a": entry(offsets=(0, 3))}, b"12"), "the place of a is outside the file"),
        (header({"a": entry(offsets=(2, 0))}, b"12"), "the place of a is outside the file"),
        (header({"a": entry(shape=[2**62, 2**62])}, b"12"), "do not fit its shape"),
        (
            header(b'{"\\ud800":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}', b"12"),
            "surrogates not allowed",
        ),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=problem) as refused:
        read_safetensors_header(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 500


def _sparse_gguf(path: Path) -> None:
    """A terabyte of empty strings, of which none takes room on the disk."""
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("x") + struct.pack("<IIQ", 9, 8, 2**36)
    )
    with path.open("r+b") as file:
        file.truncate(2**40)


def _many_tensors(path: Path) -> None:
    one = text("") + struct.pack("<IIQ", 0, 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 10**5, 0) + one * 10**5 + bytes(4))


def _nested(path: Path) -> None:
    path.write_bytes(b"[" * 10**7)


def _objects(path: Path) -> None:
    path.write_bytes(b"[" + b",".join([b'{"a":1}'] * (10**7 // 8)) + b"]")


def _many_engines(path: Path) -> None:
    (test, *_) = json.loads((DATA / "llama-bench.json").read_text())
    small = {key: test[key] for key in ("model_filename", "n_prompt", "n_gen", "avg_ns")}
    path.write_text(json.dumps([small | {"n_threads": number} for number in range(5_000)]))


BOMBS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "safetensors: a header of small objects": (
        "safetensors",
        lambda path: path.write_bytes(
            header(b'{"a":[' + b",".join([b'{"a":1}'] * 1_249_000) + b"]}")
        ),
    ),
    "safetensors: nested": (
        "safetensors",
        lambda path: path.write_bytes(header(b'{"a":' * (2 * 10**6 - 1))),
    ),
    "gguf: a sparse terabyte": ("gguf", _sparse_gguf),
    "gguf: many tensors": ("gguf", _many_tensors),
    "config: nested": ("config", _nested),
    "config: small objects": ("config", _objects),
    "tokenizer: lists": (
        "tokenizer",
        lambda path: path.write_bytes(b'{"a":[' + b"[],[1]," * 10**6 + b"0]}"),
    ),
    "tokenizer: numbers": (
        "tokenizer",
        lambda path: path.write_bytes(b'{"a":[' + b"1e9," * 8_900_000 + b"0]}"),
    ),
    "import: nested": ("vllm-serve-1.json", _nested),
    "import: small objects": ("vllm-serve-1.json", _objects),
    "import: many engines of one name": ("llama-bench.json", _many_engines),
    "import: a line of spaces": (
        "published-backends.md",
        lambda path: path.write_bytes(b"| **Backend** |" + b" " * 10**7 + b"x |\n"),
    ),
    "import: lines of spaces": (
        "published-grids.rst",
        lambda path: path.write_text(
            "The environment of the evaluation with vllm is:\n+====\n"
            + ("-" + " " * 9_000 + "\n") * 500
        ),
    ),
    "import: digits": (
        "published-backends.md",
        lambda path: path.write_text(
            "| **Backend** | a |\n| **Model** | m |\n| **TTFT** | " + "9" * 9_900 + "x |\n"
        ),
    ),
}
SLOWEST = 2.0  # of a processor of 2.5 GHz that is shared with other work, to one of 2023 at rest


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_takes_neither_memory_nor_time(bomb: str, tmp_path: Path) -> None:
    kind, write = BOMBS[bomb]
    path = tmp_path / INPUTS[kind].name
    write(path)
    child = forked(read_input, [kind, path], cwd=tmp_path, timeout_s=120)
    assert child.returncode == 0, child.stderr[-2_000:]
    kibibytes, seconds = child.stdout.split()
    assert int(kibibytes) < 500 * 1024
    assert float(seconds) < SLOWEST * 5
