"""The version of an engine as an axis: names, environments, locks that are resolved, and what is missing."""

import json
from pathlib import Path

import pytest

from bitbench.engines import environments
from bitbench.engines.environments import environment_python, installed_environments, versions
from bitbench.measure.plan import plan_study_source, plan_study_with_readiness
from bitbench.measure.readiness import known_environment, known_environment_versions, known_environments
from bitbench.measure.variants import VariantStore
from bitbench.measure.workplace import Workplace
from bitbench.study.hardware import Capability
from bitbench.study.study_file import StudySource, parse_study
from bitbench.util.errors import EngineEnvironmentError, NotReadyError, StudyFileError

RESOLVED = """transformers==5.9.0 \\
    --hash=sha256:{0} \\
    --hash=sha256:{1}
tokenizers==0.22.2 \\
    --hash=sha256:{0}
"""
# Finds packages only where `{refused}` is not asked for, and makes a folder that looks like an environment.
UV = """#!/bin/sh
echo "$@" >> "{calls}"
for last; do :; done
case "$1 $2" in
"pip compile")
    cp "$last" "{asked}"
    grep -q '{refused}' "$last" && {{ echo "error: tokenizers conflicts" >&2; exit 1; }}
    for word; do case "$word" in --output-file=*) cp "{lock}" "${{word#*=}}";; esac; done;;
"pip install") ;;
*)
    mkdir -p "$last/bin" "$last/lib/python3.11/site-packages/transformers-5.9.0.dist-info"
    printf '#!/bin/sh\\nexit 0\\n' > "$last/bin/python"; chmod +x "$last/bin/python";;
esac
"""


def study(engines: str) -> str:
    return f"name: x\nmodels: [smollm2-135m]\nworkloads: [interactive]\nengines:\n{engines}"


def names(engines: str) -> list[str]:
    return [setup.name for setup in parse_study(study(engines), name="s.yaml").engines]


def said(place: Path, engines: str) -> str:
    """What `bitbench run` says where something is missing, or wrong in the file."""
    file = place / "s.yaml"
    file.write_text(study(engines))
    with pytest.raises((NotReadyError, StudyFileError)) as refused:
        plan_study_with_readiness(file, Workplace(place / "home", "cpu"))[1].require()
    return str(refused.value)


def virtual_environment(folder: Path, *packages: str) -> Path:
    for package in packages or ("pip-23.2.1",):
        (folder / "lib/python3.11/site-packages" / f"{package}.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text("#!/bin/sh\n")
    (folder / "bin/python").chmod(0o755)
    return folder


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes `uv` with what it refuses; returns the folder where `asked` and `calls` are."""
    (tmp_path / "lock").write_text(RESOLVED.format("0" * 64, "1" * 64))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def write_uv(place: Path, refused: str = "nothing of this kind") -> None:
    parts = {name: place / name for name in ("calls", "asked", "lock")}
    (place / "uv").write_text(UV.format(refused=refused, **parts))
    (place / "uv").chmod(0o755)


def test_names_say_the_version_or_the_folder_of_an_environment() -> None:
    assert names("  - transformers\n  - {engine: transformers, version: 5.18.0}\n") == [
        "transformers",
        "transformers 5.18.0",
    ]
    assert names("  - {engine: vllm, version: [0.31.0, 0.32.0], kv_cache: [auto, fp8]}\n") == [
        "vllm 0.31.0 kv=auto",
        "vllm 0.31.0 kv=fp8",
        "vllm 0.32.0 kv=auto",
        "vllm 0.32.0 kv=fp8",
    ]
    assert names("  - {engine: vllm, python: /opt/old}\n  - {engine: vllm, python: /opt/new/bin/python3}\n") == [
        "vllm old",
        "vllm new",
    ]
    assert names("  - {engine: vllm, python: /opt/old, name: before}\n") == ["before"]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{engine: vllm, version: 0.31}", 'put it in quotes: version: "0.31"'),
        ("{engine: vllm, version: ../../elsewhere}", "version"),
        ("{engine: vllm, python: venv}", "venv is relative; give the full path"),
        ("{engine: vllm, python: /opt/old, version: 0.31.0}", "give `python` or `version`"),
        ("{engine: llamacpp, python: /opt/old}", "llamacpp is not a package of a Python environment; remove `python`"),
        ("{engine: 'null', python: /opt/old}", "null is not a package of a Python environment; remove `python`"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(tmp_path: Path, engine: str, message: str) -> None:
    assert message in said(tmp_path, f"  - transformers\n  - {engine}\n")


def test_what_is_missing_is_named_with_the_command_that_creates_it(tmp_path: Path) -> None:
    here = virtual_environment(tmp_path / "here")
    told = said(
        tmp_path,
        "  - {engine: transformers, version: 5.18.0}\n"
        f"  - {{engine: transformers, python: {tmp_path}/gone}}\n"
        f"  - {{engine: transformers, python: {here}/bin/python}}\n",
    )
    assert "bitbench env create transformers==5.18.0" in told
    assert f"python3 -m venv {tmp_path}/gone && {tmp_path}/gone/bin/python -m pip install transformers" in told
    assert f"&& {here}/bin/python -m pip install transformers" in told


def test_an_environment_of_somebody_else_is_ready_where_it_has_the_engine(tmp_path: Path) -> None:
    place = virtual_environment(tmp_path / "mine", "transformers-5.9.0", "torch-2.13.0+cpu")
    (tmp_path / "s.yaml").write_text(study(f"  - {{engine: transformers, python: {place}}}\n"))
    ready = plan_study_with_readiness(tmp_path / "s.yaml", Workplace(tmp_path / "home", "cpu"))[1]
    assert ready.environments[str(place)] is None
    assert (
        environment_python(str(place), tmp_path)
        == environment_python(f"{place}/bin/python", tmp_path)
        == place / "bin/python"
    )
    assert versions(f"{place}/bin/python", tmp_path) == {"torch": "2.13.0+cpu", "transformers": "5.9.0"}


def test_a_version_is_resolved_close_to_the_lock_and_written_down(uv: Path, tmp_path: Path) -> None:
    write_uv(uv)
    home = tmp_path / "home"
    made = environments.make_environment(known_environment("transformers==5.9.0", home), home, device="cpu")
    assert made.name == "transformers==5.9.0"
    asked = (uv / "asked").read_text().splitlines()
    assert asked[0] == "transformers==5.9.0"
    assert "torch==2.13.0+cpu" in asked  # a build for this device, which no order of versions chooses
    assert "tokenizers<=0.23.3" in asked
    lock = (home / "envs" / "transformers==5.9.0-cpu.txt").read_text()
    assert "#   tokenizers 0.23.3 -> 0.22.2" in lock
    assert "#   transformers 5.19.0 -> 5.9.0" in lock
    assert lock.endswith(RESOLVED.format("0" * 64, "1" * 64).partition("tokenizers")[0])
    assert known_environment_versions(made, known_environments()) == {"transformers": "5.9.0"}
    assert [found.name for found in installed_environments(home)] == ["transformers==5.9.0"]

    calls = (uv / "calls").read_text()
    assert environments.make_environment(known_environment("transformers==5.9.0", home), home, device="cpu") == made
    assert (uv / "calls").read_text() == calls


def test_newer_packages_are_taken_only_where_older_ones_do_not_fit(uv: Path, tmp_path: Path) -> None:
    write_uv(uv, refused="<=")
    environments.make_environment(
        known_environment("transformers==5.9.0", tmp_path / "home"), tmp_path / "home", device="cpu"
    )
    assert {"tokenizers", "torch==2.13.0+cpu"} <= set((uv / "asked").read_text().splitlines())


def test_where_nothing_fits_the_installer_is_quoted(uv: Path, tmp_path: Path) -> None:
    write_uv(uv, refused="transformers")
    with pytest.raises(
        EngineEnvironmentError, match=r"uv found no packages .* error: tokenizers conflicts\. `pip index"
    ):
        environments.make_environment(
            known_environment("transformers==5.9.0", tmp_path / "home"), tmp_path / "home", device="cpu"
        )
    assert not (tmp_path / "home" / "envs").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorrt==1", "Unknown environment tensorrt"),
        ("vllm==", r"write it as vllm==1\.2\.3"),
        ("vllm==../x", r"write it as vllm==1\.2\.3"),
    ],
)
def test_a_name_that_cannot_be_created(name: str, message: str) -> None:
    with pytest.raises(EngineEnvironmentError, match=message):
        known_environment(name, Path("/nowhere"))


def test_an_environment_of_another_device_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "home/envs/transformers==5.18.0"
    virtual_environment(folder, "transformers-5.18.0")
    manifest = {"name": folder.name, "path": "", "complete": True, "lock": "transformers==5.18.0-cuda.txt"}
    (folder / "bitbench-environment.json").write_text(json.dumps(manifest))
    (tmp_path / "s.yaml").write_text(study("  - {engine: transformers, version: 5.18.0}\n"))
    ready = plan_study_with_readiness(tmp_path / "s.yaml", Workplace(tmp_path / "home", "cpu"))[1]
    assert "was created for cuda, and engines here run on cpu" in (ready.environments[folder.name] or "")


def test_what_the_pinned_version_refuses_is_tried_with_another(tmp_path: Path) -> None:
    text = study("  - vllm\n  - {engine: vllm, version: 0.31.0}\n").replace(
        "workloads", "recipes: [w8a8-rtn]\nworkloads"
    )
    (tmp_path / "s.yaml").write_text(text)
    home, source = tmp_path / "home", StudySource.of(tmp_path / "s.yaml")
    plan = plan_study_source(source, VariantStore(home, tmp_path), Workplace(home), Capability(10, 0))
    assert [refusal.point.config.engine for refusal in plan.refusals] == ["vllm"]
    assert [expectation.config.engine for expectation in plan.expectations] == ["vllm 0.31.0"]
