"""Profiles of real transformers and the real small model: the groups add up to what the client measured."""

import gzip
import json
from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder
from bitbench.records.profile import OperatorProfile, Phase, ProfileGroup
from bitbench.records.trial import KernelPath
from tests.busy_machine import run_study

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run

# One thread: on a busy machine two of them wait for each other in every product, far longer than it takes.
# Short prompts: 36 of them are read, one after the other.
STUDY = """
name: profile
models: [smollm2-135m]
recipes: [bf16]
engines: [{engine: transformers, args: {threads: 1}}]
workloads: [{name: one, concurrency: 1, input_tokens: 32, output_tokens: 16}]
measure: {starts: 1, trials: 1}
profile: {batch: 1, input_tokens: 32, output_tokens: 16}
"""
ALLOWED = 0.05  # between the sum of the groups and the step that the client measured
LOOKS = 3  # other work may delay the client at either end of a line of steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    place = tmp_path_factory.mktemp("profile")
    for look in range(LOOKS):
        found = profiled(place / str(look))
        if all(abs(one.agreement) < ALLOWED for one in found.profiles()):
            break
    return found


def profiled(place: Path) -> StudyFolder:
    place.mkdir()
    (place / "profile.yaml").write_text(STUDY, encoding="utf-8")
    return run_study(place, "profile.yaml", timeout_s=900)


@pytest.fixture(scope="module", params=list(Phase))
def profile(folder: StudyFolder, request: pytest.FixtureRequest) -> OperatorProfile:
    return next(one for one in folder.profiles() if one.phase is request.param)


def test_groups_sum_to_the_measured_step(profile: OperatorProfile) -> None:
    assert abs(profile.agreement) < ALLOWED, f"{profile.groups_s} s of {profile.profiled.mean_s} s"
    assert all(one.step_s >= 0 for one in profile.groups)


def test_the_products_are_dense_and_nothing_is_unknown(profile: OperatorProfile) -> None:
    dense = profile.group_s(ProfileGroup.DENSE_MATMUL)
    assert dense is not None
    assert dense > 0.1 * profile.groups_s
    assert profile.group_s(ProfileGroup.QUANTIZED_MATMUL) is None
    assert [one.name for one in profile.operators if one.group is ProfileGroup.OTHER] == []
    products = sum(one.calls for one in profile.operators if one.name == "aten::mm")
    assert products == 211 * profile.steps  # seven in each of 30 layers, and the last one


def test_the_instance_says_what_its_layers_run_on(profile: OperatorProfile) -> None:
    linear = next(one for one in profile.facts.kernel_choices if one.kind == "linear")
    assert (linear.layers, linear.path, linear.source) == (211, KernelPath.DENSE, "modules")


def test_the_trace_is_there_for_other_tools(folder: StudyFolder, profile: OperatorProfile) -> None:
    with gzip.open(folder.path / str(profile.trace_file), "rt", encoding="utf-8") as file:
        assert len(json.load(file)["traceEvents"]) > 1000
