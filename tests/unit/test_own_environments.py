"""Engines in environments that somebody else made: names, what is missing, and what is tried there."""

import json
from pathlib import Path

import pytest

from bitbench.engines.environments import environment_python, versions
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import plan_study_source, plan_study_with_readiness
from bitbench.planning.variants import VariantStore
from bitbench.study.hardware import Capability
from bitbench.study.study_file import StudySource, parse_study
from bitbench.util.errors import NotReadyError, StudyFileError


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


def test_names_say_the_folder_of_an_environment() -> None:
    assert names(
        "  - {engine: vllm, python: /opt/old}\n  - {engine: vllm, python: /opt/new/bin/python3}\n"
    ) == [
        "vllm old",
        "vllm new",
    ]
    assert names("  - {engine: vllm, python: /opt/old, name: before}\n") == ["before"]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{engine: vllm, python: venv}", "venv is relative; give the full path"),
        (
            "{engine: llamacpp, python: /opt/old}",
            "llamacpp is not a package of a Python environment; remove `python`",
        ),
        (
            "{engine: 'null', python: /opt/old}",
            "null is not a package of a Python environment; remove `python`",
        ),
    ],
)
def test_a_mistake_is_told_with_what_to_write(tmp_path: Path, engine: str, message: str) -> None:
    assert message in said(tmp_path, f"  - transformers\n  - {engine}\n")


def test_what_is_missing_is_named_with_the_command_that_creates_it(tmp_path: Path) -> None:
    here = virtual_environment(tmp_path / "here")
    told = said(
        tmp_path,
        "  - transformers\n"
        f"  - {{engine: transformers, python: {tmp_path}/gone}}\n"
        f"  - {{engine: transformers, python: {here}/bin/python}}\n",
    )
    assert "bitbench env create transformers" in told
    assert (
        f"python3 -m venv {tmp_path}/gone && {tmp_path}/gone/bin/python -m pip install transformers"
        in told
    )
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
    assert versions(f"{place}/bin/python", tmp_path) == {
        "torch": "2.13.0+cpu",
        "transformers": "5.9.0",
    }


def test_an_environment_of_another_device_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "home/envs/transformers"
    virtual_environment(folder, "transformers-5.18.0")
    manifest = {"name": folder.name, "path": "", "complete": True, "lock": "transformers-cuda.txt"}
    (folder / "bitbench-environment.json").write_text(json.dumps(manifest))
    (tmp_path / "s.yaml").write_text(study("  - transformers\n"))
    ready = plan_study_with_readiness(tmp_path / "s.yaml", Workplace(tmp_path / "home", "cpu"))[1]
    assert "was created for cuda, and engines here run on cpu" in (
        ready.environments[folder.name] or ""
    )


def test_what_the_pinned_version_refuses_is_tried_in_another_environment(tmp_path: Path) -> None:
    text = study("  - vllm\n  - {engine: vllm, python: /opt/old}\n").replace(
        "workloads", "recipes: [w8a8-rtn]\nworkloads"
    )
    (tmp_path / "s.yaml").write_text(text)
    home, source = tmp_path / "home", StudySource.of(tmp_path / "s.yaml")
    plan = plan_study_source(
        source, VariantStore(home, tmp_path), Workplace(home), Capability(10, 0)
    )
    assert [refusal.point.config.engine for refusal in plan.refusals] == ["vllm"]
    assert [expectation.config.engine for expectation in plan.expectations] == ["vllm old"]
