"""The manifests of examples/fleet, as far as they can be checked without a cluster: fields, shell, command lines."""

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
from bitbench.features.fleet.roster import _wanted

EXAMPLES = Path(__file__).parents[3] / "examples" / "fleet"


def only(required: tuple[str, ...], **properties: object) -> dict[str, Any]:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def strings() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": "string"}}


TEXT, COUNT, YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
POD = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["name", "image"],
                        "properties": {"resources": only((), requests=strings(), limits=strings())},
                    },
                }
            },
        }
    },
}
# Fields of ray.io/v1 in KubeRay's CRD of August 2026, by name and type, as far as a study needs them.
CLUSTER = only(
    ("headGroupSpec",),
    rayVersion=TEXT,
    authOptions=only((), mode={"enum": ["disabled", "token"]}, secretName=TEXT, enableK8sTokenAuth=YES),
    headGroupSpec=only(("template",), rayStartParams=strings(), template=POD, serviceType=TEXT),
    workerGroupSpecs={
        "type": "array",
        "items": only(
            ("groupName", "minReplicas", "maxReplicas", "template"),
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            numOfHosts=COUNT,
            rayStartParams=strings(),
            template=POD,
        ),
    },
)
RAY_JOB = only(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=only(("name",), name={"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"}, namespace=TEXT),
    spec=only(
        (),
        entrypoint=TEXT,
        backoffLimit=COUNT,
        shutdownAfterJobFinishes=YES,
        ttlSecondsAfterFinished=COUNT,
        activeDeadlineSeconds=COUNT,
        submissionMode=TEXT,
        runtimeEnvYAML=TEXT,
        suspend=YES,
        rayClusterSpec=CLUSTER,
    ),
)


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text())
    return found


def test_the_ray_job_has_the_fields_of_the_crd(job: dict[str, Any]) -> None:
    jsonschema.validate(job, RAY_JOB)
    spoiled = {**job, "spec": {**job["spec"], "shutdownAfterJobFinish": True}}
    with pytest.raises(jsonschema.ValidationError, match="shutdownAfterJobFinish"):
        jsonschema.validate(spoiled, RAY_JOB)


def test_the_ray_job_asks_for_a_token_and_finishes_by_itself(job: dict[str, Any]) -> None:
    spec = job["spec"]
    assert spec["rayClusterSpec"]["authOptions"]["mode"] == "token"
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["backoffLimit"] == 0  # a second driver would be refused, or take the place of one that still runs


def test_its_machines_are_whole_and_have_what_the_driver_asks_for(job: dict[str, Any]) -> None:
    words = command_line(job["spec"]["entrypoint"])
    resource, label = _wanted(words[words.index("--on") + 1].partition("?")[2])
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    offered = yaml.safe_load(yaml.safe_load(group["rayStartParams"]["resources"]))  # quoted once more for a shell
    assert label is None
    assert offered == {resource: 1}
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert group["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]


def test_head_and_machines_have_the_same_version_study_and_home(job: dict[str, Any]) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"]["template"]["spec"], cluster["workerGroupSpecs"][0]["template"]["spec"]]
    first, second = (pod["containers"][0] for pod in pods)
    assert first["image"] == second["image"]
    assert first["volumeMounts"] == second["volumeMounts"]
    homes = [
        [one["value"] for one in container["env"] if one["name"] == "BITBENCH_HOME"] for container in (first, second)
    ]
    assert homes[0] == homes[1] != []
    for pod in pods:
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def command_line(line: str) -> list[str]:
    """Words of a `bitbench run`, if the command takes them all."""
    words = shlex.split(line)
    assert words[:2] == ["bitbench", "run"]
    command = get_command(app).get_command(None, "run")  # type: ignore[attr-defined]
    command.make_context("run", words[2:])
    return words


@pytest.mark.parametrize("name", ["rayjob.yaml", "slurm.sh"])
def test_every_manifest_says_that_it_was_not_run(name: str) -> None:
    assert "Not run on a cluster" in (EXAMPLES / name).read_text()


def test_the_slurm_script_is_a_script_with_options_that_sbatch_reads() -> None:
    script = EXAMPLES / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text().splitlines()
    first_command = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    asked = [line for line in lines if line.startswith("#SBATCH")]
    assert asked == [line for line in lines[:first_command] if line.startswith("#SBATCH")]  # sbatch reads no further
    given = {re.fullmatch(r"#SBATCH --([a-z-]+)(?:=\S+)?", line)[1] for line in asked}  # type: ignore[index]
    assert {"nodes", "ntasks-per-node", "exclusive", "no-requeue", "time"} <= given


STAND_IN = """#!/bin/sh
echo "{name} $*" >> "$SLURM_SUBMIT_DIR/said"
{more}
"""


def test_what_the_slurm_script_starts(tmp_path: Path) -> None:
    """With stand-ins for Slurm's commands: one Ray for all nodes, a token that others cannot read, and none later."""
    tools = {
        "scontrol": "printf 'n1\\nn2\\nn3\\n'",
        "srun": 'stat -c "%a %s" "$RAY_AUTH_TOKEN_PATH" >> "$SLURM_SUBMIT_DIR/said"',
    }
    for name, more in tools.items():
        (tmp_path / name).write_text(STAND_IN.format(name=name, more=more))
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_NNODES": "3",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    subprocess.run(["bash", EXAMPLES / "slurm.sh", "my study.yaml", "out"], check=True, env=environment)
    _, started, token = (tmp_path / "said").read_text().splitlines()
    assert started.startswith("srun --nodes=3 --ntasks=3 --kill-on-bad-exit=1 ray symmetric-run --address n1:6379 ")
    assert "--min-nodes 3 -- bitbench run my study.yaml" in started
    words = command_line(started.partition(" -- ")[2].replace("my study.yaml", "'my study.yaml'"))
    assert words[words.index("--on") + 1] == "ray://n1:6379"
    assert token == "600 64"  # 64 hexadecimal digits
    assert not list(tmp_path.glob(".bitbench-token*"))
    without = subprocess.run(
        ["bash", EXAMPLES / "slurm.sh"], check=False, env=environment, capture_output=True, text=True
    )
    assert without.returncode != 0
    assert "STUDY FOLDER" in without.stderr
