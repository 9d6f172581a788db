"""Environments, with an installer that is a shell script: what is asked of it, and what becomes of its answers."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitbench.engines import environments
from bitbench.engines.environments import (
    InstalledEnvironment,
    environment_python,
    list_environments,
    versions,
)
from bitbench.engines.transformers import TransformersEngine
from bitbench.planning.readiness import (
    collect_environments,
    get_environment,
    list_main_versions,
)
from bitbench.study.environment import Device, Environment
from bitbench.util.errors import EngineEnvironmentError

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


TRANSFORMERS = TransformersEngine.own_environment


def create(
    home: Path, environment: Environment = TRANSFORMERS, **options: Any
) -> InstalledEnvironment:
    return environments.make_environment(environment, home, device="cpu", **options)


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return FakeUv(folder)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_creation(uv: FakeUv, home: Path) -> None:
    steps: list[str] = []
    info = create(home, find_links=["/wheels"], index_url="file:///index", on_step=steps.append)
    assert info.complete
    assert info.installer == "uv"
    assert TRANSFORMERS.select_main_versions(info.versions) == {"torch": "2.13.0+cpu"}
    assert info.size_bytes
    install = uv.calls[1]
    assert (
        "--require-hashes --no-deps --find-links=/wheels --index-url=file:///index --only-binary=:all: -r"
        in install
    )
    assert install.endswith("transformers-cpu.txt")
    assert "importing it once" in steps

    assert (
        environment_python("transformers", home)
        == home / "envs" / "transformers" / "bin" / "python"
    )
    assert versions("transformers", home) == {"torch": "2.13.0+cpu", "typing-extensions": "4.16.0"}
    assert [known.name for known in list_environments(home) if known.complete] == ["transformers"]


def test_a_source_is_meant_from_where_the_command_was_given(
    uv: FakeUv, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create(home, find_links=["wheels", "https://one/wheels"], index_url="index")
    assert (
        f"--find-links={tmp_path}/wheels --find-links=https://one/wheels --index-url={tmp_path}/index"
        in uv.calls[1]
    )


def test_what_is_there_is_not_made_again_unless_the_lock_changed(
    uv: FakeUv, home: Path, tmp_path: Path
) -> None:
    first = create(home)
    assert create(home) == first
    assert len(uv.calls) == 2

    other = tmp_path / "other.txt"
    other.write_text("torch==9\n")
    assert create(home, replace(TRANSFORMERS, locks={"cpu": other})).lock == "other.txt"
    assert len(uv.calls) == 4


def test_one_whose_python_was_removed_is_made_again(uv: FakeUv, home: Path) -> None:
    made = create(home)
    python = made.path / "bin" / "python"
    python.unlink(missing_ok=True)
    python.symlink_to(home / "python-of-an-older-system")
    with pytest.raises(
        EngineEnvironmentError, match=r"is incomplete .* bitbench env create transformers"
    ):
        environment_python("transformers", home)
    assert not any(info.complete for info in list_environments(home))
    assert create(home).complete
    assert len(uv.calls) == 4


def test_an_interrupted_creation_is_not_taken_for_an_environment(uv: FakeUv, home: Path) -> None:
    uv.write(install="kill -9 $$")
    with pytest.raises(EngineEnvironmentError):
        create(home)
    with pytest.raises(
        EngineEnvironmentError, match=r"is incomplete .* bitbench env create transformers"
    ):
        environment_python("transformers", home)
    assert not any(info.complete for info in list_environments(home))
    uv.write()
    assert create(home).complete


def test_a_failed_installation_shows_the_telling_lines(uv: FakeUv, home: Path) -> None:
    noise = "echo 'WARNING: Location is ignored'; echo 'Collecting a'; "
    uv.write(
        install=noise + "echo 'ERROR: No matching distribution found for torch==2.13.0' >&2; exit 1"
    )
    with pytest.raises(EngineEnvironmentError) as failed:
        create(home)
    assert "ERROR: No matching distribution found for torch==2.13.0" in str(failed.value)
    assert "WARNING" not in str(failed.value)
    assert "--find-links" in str(failed.value)
    log = home / "envs" / "transformers" / "bitbench-install.log"
    assert "WARNING: Location is ignored" in log.read_text()


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: No matching distribution found for torch==2.13.0+cpu",
        "╰─▶ Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu, …",
    ],
)
def test_where_no_source_has_the_cpu_build_of_torch_the_next_step_names_it(
    said: str, uv: FakeUv, home: Path
) -> None:
    uv.write(install=f"echo '{said}' >&2; exit 1")
    with pytest.raises(
        EngineEnvironmentError,
        match=r"folder or page with the CPU wheels of torch with --find-links",
    ):
        create(home)


def test_what_exists_as_source_only_is_built_with_what_the_lock_installed(
    uv: FakeUv, home: Path
) -> None:
    create(home, get_environment("lmeval"))
    _, wheels, source = uv.calls
    assert wheels.endswith(
        "--only-binary=:all: -r " + str(get_environment("lmeval").lock_for("cpu"))
    )
    assert "--require-hashes --no-deps --no-build-isolation -r" in source
    assert source.endswith("lmeval-source.txt")
    assert "setuptools" in get_environment("lmeval").lock_for("cpu").read_text()


def test_an_engine_that_cannot_be_imported_is_named(uv: FakeUv, home: Path) -> None:
    uv.write(check="echo \"ModuleNotFoundError: No module named 'regex'\" >&2; exit 1")
    with pytest.raises(EngineEnvironmentError, match="No module named 'regex'"):
        create(home)


def test_a_missing_environment_names_the_command(home: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="bitbench env create vllm"):
        environment_python("vllm", home)


def test_an_unknown_name_names_the_known_ones() -> None:
    names = [
        "llamacpp",
        "lmeval",
        "openvino",
        "quantize",
        "sglang",
        "transformers",
        "triton",
        "vllm",
    ]
    assert sorted(collect_environments()) == names
    with pytest.raises(EngineEnvironmentError, match=", ".join(names)):
        get_environment("tensorrt")


def test_those_of_packages_that_are_gone_are_listed_too(home: Path) -> None:
    (home / "envs" / "left-over").mkdir(parents=True)
    listed = list_environments(home, ["vllm"])
    assert [(found.name, found.complete) for found in listed] == [
        ("left-over", False),
        ("vllm", False),
    ]
    assert list_main_versions(listed[0], collect_environments()) == {}


def test_a_device_without_a_lock_of_its_own_gets_that_of_the_cpu() -> None:
    assert TRANSFORMERS.lock_for("cuda").name == "transformers-cuda.txt"
    assert get_environment("lmeval").lock_for("cuda").name == "lmeval-cpu.txt"
    only_cuda = replace(TRANSFORMERS, locks={"cuda": TRANSFORMERS.lock_for("cuda")})
    with pytest.raises(EngineEnvironmentError, match="for cuda only; this machine runs on cpu"):
        only_cuda.lock_for("cpu")


@pytest.mark.usefixtures("uv")
def test_an_environment_is_finished_between_the_packages_and_the_import(home: Path) -> None:
    def finish(environment: Path, log_file: Path, *, device: Device) -> str:
        log_file.write_text("finished\n")
        return f"{environment.name} for {device}"

    made = create(home, replace(TRANSFORMERS, finish=finish))
    assert made.prebuilt == "transformers for cpu"
    assert create(home, replace(TRANSFORMERS, finish=finish)) == made


def test_a_manifest_of_another_version_means_rebuild(uv: FakeUv, home: Path) -> None:
    info = create(home)
    manifest = info.path / "bitbench-environment.json"
    manifest.write_text(json.dumps({"name": "transformers", "unheard_of": 1}))
    assert create(home).complete
    assert len(uv.calls) == 4


LOCKS = sorted(Path(environments.__file__).parents[2].glob("**/pinned/*.txt"))
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+ \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_requirement_of_a_lock_is_pinned_once_and_hashed(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    names = [
        line.partition("==")[0].lower().replace("_", "-") for line in lines if PIN.fullmatch(line)
    ]
    assert names
    assert len(set(names)) == len(names)
    for line, following in itertools.pairwise([*lines, ""]):
        assert PIN.fullmatch(line) or HASH.fullmatch(line)
        assert bool(HASH.fullmatch(following)) == line.endswith("\\")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["llamacpp", "transformers", "vllm"])
def test_locks_for_the_cpu_have_its_build_of_torch_and_nothing_of_cuda(
    name: str, device: Device
) -> None:
    lines = get_environment(name).lock_for(device).read_text().splitlines()
    names = [
        line.partition("==")[0].lower().replace("_", "-") for line in lines if PIN.fullmatch(line)
    ]
    assert f"torch==2.13.0{'+cpu' if device == 'cpu' else ''} \\" in lines
    if device == "cpu":
        assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(names)
        assert not any(package.startswith("nvidia") for package in names)
    else:
        assert any("NOT YET RUN ON A GPU" in line for line in lines)


def test_the_lock_of_sglang_has_what_it_imports_but_none_of_cuda_on_the_cpu() -> None:
    cpu, cuda = (
        get_environment("sglang").lock_for(device).read_text() for device in ("cpu", "cuda")
    )
    assert "torch==2.13.0+cpu \\" in cpu
    assert "\ntriton==" in cpu  # never run, but imported
    assert "\nnvidia" not in cpu
    assert "NOT YET RUN ON A GPU" in cuda
    assert "\nsglang-kernel==" in cuda
