"""Environments, with an installer that is a shell script: what is asked of it, and what becomes of its answers."""

import json
from pathlib import Path

import pytest

from bitbench import environments
from bitbench.environments import create, environment_names, list_environments, lock_file, python_of, versions
from bitbench.ground.errors import EngineEnvironmentError

# Makes a folder that looks like an environment; its python says and does what the test wants.
UV = """#!/bin/sh
echo "$@" >> "{calls}"
case "$1" in
venv)
    for folder; do :; done
    mkdir -p "$folder/bin" "$folder/lib/python3.11/site-packages/torch-2.13.0+cpu.dist-info"
    mkdir -p "$folder/lib/python3.11/site-packages/typing_extensions-4.16.0.dist-info"
    cp "{python}" "$folder/bin/python";;
pip)
    {install};;
esac
"""


class FakeUv:
    """`uv` on the PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        self.write()

    def write(self, *, install: str = "true", check: str = "exit 0") -> None:
        python = self._folder / "fake-python"
        python.write_text(f"#!/bin/sh\n{check}\n")
        python.chmod(0o755)
        uv = self._folder / "uv"
        uv.write_text(UV.format(calls=self._calls, python=python, install=install))
        uv.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(environments, "has_cuda", lambda: False)
    return FakeUv(folder)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_creation(uv: FakeUv, home: Path) -> None:
    steps: list[str] = []
    info = create("transformers", home, find_links=["/wheels"], index_url="file:///index", on_step=steps.append)
    assert info.complete
    assert info.installer == "uv"
    assert info.main_versions == {"torch": "2.13.0+cpu"}
    assert info.size_bytes
    install = uv.calls[1]
    assert "--no-deps --find-links=/wheels --index-url=file:///index -r" in install
    assert install.endswith("transformers-cpu.txt")
    assert "importing it once" in steps

    assert python_of("transformers", home) == home / "envs" / "transformers" / "bin" / "python"
    assert versions("transformers", home) == {"torch": "2.13.0+cpu", "typing-extensions": "4.16.0"}
    assert [known.name for known in list_environments(home) if known.complete] == ["transformers"]


def test_what_is_there_is_not_made_again_unless_the_lock_changed(
    uv: FakeUv, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = create("transformers", home)
    assert create("transformers", home) == first
    assert len(uv.calls) == 2

    other = tmp_path / "other.txt"
    other.write_text("torch==9\n")
    monkeypatch.setattr(environments, "lock_file", lambda _: other)
    assert create("transformers", home).lock == "other.txt"
    assert len(uv.calls) == 4


def test_an_interrupted_creation_is_not_taken_for_an_environment(uv: FakeUv, home: Path) -> None:
    uv.write(install="kill -9 $$")
    with pytest.raises(EngineEnvironmentError):
        create("transformers", home)
    with pytest.raises(EngineEnvironmentError, match=r"was not completed .* bitbench env create transformers"):
        python_of("transformers", home)
    assert not any(info.complete for info in list_environments(home))
    uv.write()
    assert create("transformers", home).complete


def test_a_failed_installation_shows_the_telling_lines(uv: FakeUv, home: Path) -> None:
    noise = "echo 'WARNING: Location is ignored'; echo 'Collecting a'; "
    uv.write(install=noise + "echo 'ERROR: No matching distribution found for torch==2.13.0' >&2; exit 1")
    with pytest.raises(EngineEnvironmentError) as failed:
        create("transformers", home)
    assert "ERROR: No matching distribution found for torch==2.13.0" in str(failed.value)
    assert "WARNING" not in str(failed.value)
    assert "--find-links" in str(failed.value)
    log = home / "envs" / "transformers" / "bitbench-install.log"
    assert "WARNING: Location is ignored" in log.read_text()


def test_a_cuda_torch_without_cuda_is_named(uv: FakeUv, home: Path) -> None:
    said = "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
    uv.write(check=f"echo '{said}' >&2; exit 1")
    with pytest.raises(
        EngineEnvironmentError, match=r"CUDA build \(libcudart\.so\.13 is missing here\).*torch==2\.13\.0"
    ):
        create("transformers", home)


def test_an_engine_that_cannot_be_imported_is_named(uv: FakeUv, home: Path) -> None:
    uv.write(check="echo \"ModuleNotFoundError: No module named 'regex'\" >&2; exit 1")
    with pytest.raises(EngineEnvironmentError, match="No module named 'regex'"):
        create("transformers", home)


def test_the_installer_can_be_chosen(uv: FakeUv, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineEnvironmentError, match="conda is not an installer"):
        create("transformers", home, installer="conda")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(EngineEnvironmentError, match="uv was asked for but is not on the PATH"):
        create("transformers", home, installer="uv")
    assert uv.calls == []


def test_a_missing_environment_names_the_command(home: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="bitbench env create vllm"):
        python_of("vllm", home)


def test_an_unknown_name_names_the_known_ones(home: Path) -> None:
    assert environment_names() == ("llamacpp", "lmeval", "quantize", "transformers", "triton", "vllm")
    with pytest.raises(EngineEnvironmentError, match="llamacpp, lmeval, quantize, transformers, triton, vllm"):
        create("tensorrt", home)


def test_a_manifest_of_another_version_means_rebuild(uv: FakeUv, home: Path) -> None:
    info = create("transformers", home)
    manifest = info.path / "bitbench-environment.json"
    manifest.write_text(json.dumps({"name": "transformers", "unheard_of": 1}))
    assert create("transformers", home).complete
    assert len(uv.calls) == 4


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("engine", ["llamacpp", "transformers", "vllm"])
def test_locks_pin_every_package_once(engine: str, kind: str) -> None:
    lines = (lock_file("vllm").parent / f"{engine}-{kind}.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    names = [line.partition("==")[0].lower().replace("_", "-") for line in pinned]
    assert all(line.count("==") == 1 for line in pinned)
    assert len(set(names)) == len(names)
    assert "torch==2.13.0" in pinned
    if kind == "cpu":
        assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(names)
        assert not any(package.startswith("nvidia") for package in names)
    else:
        assert any("NOT YET RUN ON A GPU" in line for line in lines)
