"""The manifests of examples/fleet, as far as they can be checked without a cluster: fields, shell, command lines."""

import gzip
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.main import get_command

from bitbench.cli.app import app
from bitbench.features.fleet.cluster import parse_cluster_address

EXAMPLES = Path(__file__).parents[3] / "examples" / "fleet"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.sh"))
SCHEMA = Path(__file__).parent / "rayjob.schema.json.gz"  # of KubeRay's CRD, unknown fields refused


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return found


def options_of(words: list[str]) -> dict[str, Any]:
    """Of a `bitbench run`, if the command takes all of its words."""
    assert words[:2] == ["bitbench", "run"]
    command = get_command(app).get_command(None, "run")  # type: ignore[attr-defined]
    options: dict[str, Any] = command.make_context("run", words[2:]).params
    return options


def test_the_ray_job_has_the_fields_of_the_crd() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(gzip.decompress(SCHEMA.read_bytes())))
    job = load("rayjob.yaml")
    assert [error.message for error in validator.iter_errors(job)] == []
    job["spec"]["shutdownAfterJobFinish"] = True
    assert [*validator.iter_errors(job)]


def test_the_ray_job_asks_for_nodes_that_it_makes() -> None:
    spec = load("rayjob.yaml")["spec"]
    address = parse_cluster_address(options_of(shlex.split(spec["entrypoint"]))["on"])
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    resources = yaml.safe_load(
        yaml.safe_load(group["rayStartParams"]["resources"])
    )  # quoted once more for a shell
    assert resources == {address.resource: 1}
    assert spec["rayClusterSpec"]["authOptions"]["mode"] == "token"
    assert (
        spec["backoffLimit"] == 0
    )  # a second driver would be refused, or take the place of one that still runs


def test_the_indexed_job_gives_each_pod_its_block() -> None:
    job = load("kubernetes-job.yaml")["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", job["parallelism"])
    (container,) = job["template"]["spec"]["containers"]
    line = container["args"][0].removeprefix("exec ").replace("$JOB_COMPLETION_INDEX", "3")
    options = options_of(shlex.split(line))
    assert (options["block"], Path(options["into"]).name) == (3, "3")
    (machine,) = [one for one in container["env"] if one["name"] == "BITBENCH_MACHINE"]
    assert machine["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_pods_that_measure_have_a_gpu_and_shared_memory() -> None:
    group = load("rayjob.yaml")["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    for template in (group["template"], load("kubernetes-job.yaml")["spec"]["template"]):
        pod = template["spec"]
        (container,) = pod["containers"]
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert int(resources["limits"]["nvidia.com/gpu"]) > 0
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert set(mounts.values()) == set(volumes)
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert container["image"] in (EXAMPLES / "Dockerfile").read_text()


@pytest.mark.parametrize("name", [*SCRIPTS, "rayjob.yaml", "kubernetes-job.yaml"])
def test_each_says_how_it_was_tried(name: str) -> None:
    assert "# How it was tried: " in (EXAMPLES / name).read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_have_options_where_sbatch_reads_them(name: str) -> None:
    subprocess.run(["bash", "-n", EXAMPLES / name], check=True)
    lines = (EXAMPLES / name).read_text().splitlines()
    first_command = next(
        place for place, line in enumerate(lines) if line and not line.startswith("#")
    )
    options = [line for line in lines if line.startswith("#SBATCH")]
    assert options == [line for line in lines[:first_command] if line.startswith("#SBATCH")]
    assert any(re.fullmatch(r"#SBATCH --gres=gpu:\d", line) for line in options)


STAND_IN = """#!/bin/sh
printf '%s\\n' "{name}" "$@" >> "$SLURM_SUBMIT_DIR/{name}.said"
{more}
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """A job of three nodes, with stand-ins for the commands that it starts."""
    tools = {
        "scontrol": "printf 'n1\\nn2\\nn3\\n'",
        "srun": 'stat -c "%a %s" "$RAY_AUTH_TOKEN_PATH" > "$SLURM_SUBMIT_DIR/token.said"',
        "bitbench": 'echo "$BITBENCH_MACHINE" > "$SLURM_SUBMIT_DIR/machine.said"',
    }
    for name, more in tools.items():
        (tmp_path / name).write_text(STAND_IN.format(name=name, more=more))
        (tmp_path / name).chmod(0o755)
    variables = {
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_NNODES": "3",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n2",
    }
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        **variables,
    }


def started(name: str, environment: dict[str, str], tool: str) -> list[str]:
    subprocess.run(["bash", EXAMPLES / name, "my study.yaml", "out"], check=True, env=environment)
    return Path(environment["SLURM_SUBMIT_DIR"], f"{tool}.said").read_text().splitlines()


def test_a_task_measures_its_block_on_its_gpu(job: dict[str, str]) -> None:
    environment = {**job, "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_GPUS": "1"}
    options = options_of(started("slurm-array.sh", environment, "bitbench"))
    assert (str(options["study"]), options["block"], str(options["into"])) == (
        "my study.yaml",
        2,
        "out/2",
    )
    assert Path(job["SLURM_SUBMIT_DIR"], "machine.said").read_text() == "n2:gpu1\n"


def test_one_node_uses_the_gpus_that_it_was_given(job: dict[str, str]) -> None:
    assert (
        options_of(started("slurm.sh", {**job, "CUDA_VISIBLE_DEVICES": "0,1"}, "bitbench"))["on"]
        == "gpus"
    )
    Path(job["SLURM_SUBMIT_DIR"], "bitbench.said").unlink()
    assert options_of(started("slurm.sh", job, "bitbench"))["on"] is None


def test_one_ray_cluster_for_all_nodes_with_a_token_of_its_own(job: dict[str, str]) -> None:
    words = started("slurm-ray.sh", job, "srun")
    ray, measured = words[: words.index("--")], words[words.index("--") + 1 :]
    assert ray[1:] == [
        *("--nodes=3", "--ntasks=3", "--kill-on-bad-exit=1"),
        *("ray", "symmetric-run", "--address", "n1:6379", "--min-nodes", "3"),
    ]
    assert parse_cluster_address(options_of(measured)["on"]).place == "n1:6379"
    place = Path(job["SLURM_SUBMIT_DIR"])
    assert (
        place / "token.said"
    ).read_text() == "600 64\n"  # 64 hexadecimal digits, for this user alone
    assert not list(place.glob(".bitbench-token*"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_outside_of_a_job_a_script_says_what_to_do(name: str) -> None:
    done = subprocess.run(
        ["bash", EXAMPLES / name, "a", "b"],
        check=False,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "run this with sbatch" in done.stderr
