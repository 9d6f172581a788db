"""`bitbench explain`: causes that are known, because the test forced them, must be named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.features.explain.computing import compute_explanation
from bitbench.features.explain.explanation import explain_variant
from bitbench.features.explain.types import Cause, Explanation, Missing, PhaseAccount
from bitbench.features.explain.words import build_explanation_document
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.profile import Phase, ProfileGroup
from bitbench.records.trial import KernelPath
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.variant import ExpertFacts
from bitbench.util.errors import ExitCode, UsageError
from tests.command_line import bitbench
from tests.features.explain.explain_records import (
    DENSE_BYTES,
    PLAIN,
    QUANTIZED,
    QUANTIZED_BYTES,
    evidence,
)
from tests.unit.test_model_cost import SMOLLM2

DATA = Path(__file__).parent / "data"
IMPORTS = Path(__file__).parents[2] / "unit" / "data" / "imports"


def explained(of: StudyRecords, workload: int = 0) -> tuple[Explanation, PhaseAccount, str]:
    """And its decode, and its page."""
    found = compute_explanation(
        of, QUANTIZED, PLAIN, of.study.workloads[workload], no_roof="nobody measured it"
    )
    (decode,) = (one for one in found.phases if one.phase is Phase.DECODE)
    return found, decode, render_markdown(build_explanation_document(found))


def slower_by(factor: float) -> StudyRecords:
    return evidence(lambda one, _: 0.030 * (factor if one == QUANTIZED else 1.0))


def test_expected_is_what_bytes_promise_and_measured_has_its_interval() -> None:
    found, decode, page = explained(slower_by(1.2))
    assert decode.expected_gain == pytest.approx(DENSE_BYTES / QUANTIZED_BYTES, rel=0.03)
    assert found.speed is not None
    assert found.speed.value == pytest.approx(1 / 1.2, rel=0.001)
    assert re.search(r"0\.83\d?× \[0\.8", page)
    assert "it is significantly slower" in page
    assert "would be 1.65× as fast" in page


def test_weights_that_were_expanded_at_load_are_the_cause_that_is_named() -> None:
    of = evidence(lambda _one, _at: 0.030, path=KernelPath.DEQUANTIZED, loaded_bytes=DENSE_BYTES)
    found, decode, page = explained(of)
    assert [part.cause for part in decode.parts] == [Cause.DEQUANTIZATION]
    assert decode.excess_s is not None
    assert decode.parts[0].excess_s == pytest.approx(decode.excess_s, rel=0.02)
    assert (
        "It runs dense: its weights were expanded while they were loaded (156 MiB stored, 257 MiB in memory)"
        in page
    )
    assert "within the error of the trials" in page
    assert found.own.instances.ids == ("i-m/w8-0", "i-m/w8-1", "i-m/w8-2")


def test_a_kernel_that_makes_dense_weights_before_each_product_is_named_with_its_time() -> None:
    plain = {
        ProfileGroup.DENSE_MATMUL: 0.020,
        ProfileGroup.COPIES_CASTS: 0.001,
        ProfileGroup.FRAMEWORK: 0.009,
    }
    expands = plain | {ProfileGroup.COPIES_CASTS: 0.016}
    of = evidence(
        lambda one, _: sum((expands if one == QUANTIZED else plain).values()),
        path=KernelPath.DEQUANTIZED,
        loaded_bytes=QUANTIZED_BYTES,
        groups={PLAIN: plain, QUANTIZED: expands},
    )
    _, decode, page = explained(of)
    assert decode.parts[0].cause is Cause.DEQUANTIZATION
    assert decode.parts[0].excess_s == pytest.approx(0.016 - 0.001 / decode.expected_gain, rel=0.01)
    assert (
        "its kernel expands the weights to dense ones before each product, 16.0 ms where the baseline takes"
        in page
    )


def test_without_a_profile_such_a_kernel_is_named_but_its_time_is_not_claimed() -> None:
    of = evidence(
        lambda one, _: 0.045 if one == QUANTIZED else 0.030,
        path=KernelPath.DEQUANTIZED,
        loaded_bytes=QUANTIZED_BYTES,
    )
    found, decode, page = explained(of)
    assert decode.parts == ()
    assert "Its kernel makes dense weights of the stored ones before each product" in page
    assert "how much time that takes is not measured" in page
    assert Missing.PROFILE in {gap.missing for gap in found.gaps}
    assert "add profile: {batch: 1} to study.yaml" in page
    setups = tuple(
        setup.model_copy(update={"engine": "llamacpp"}) for setup in of.plan.study.engines
    )
    study = of.plan.study.model_copy(update={"engines": setups})
    plan = of.plan.model_copy(update={"study": study})
    found, _, page = explained(replace(of, lock=of.lock.model_copy(update={"plan": plan})))
    assert Missing.PROFILER in {gap.missing for gap in found.gaps}
    assert "bitbench has no profiler for llamacpp" in page
    assert "to study.yaml" not in page


def test_an_unexplained_rest_is_said_to_be_unexplained() -> None:
    _, decode, page = explained(slower_by(1.2))
    assert decode.unexplained is not None
    assert decode.unexplained_s is not None
    assert decode.unexplained.excess_s == decode.excess_s
    assert decode.unexplained_s.is_above(0)
    assert "is unexplained: no record says where it goes" in page


def test_what_the_profiles_do_not_see_stays_unexplained() -> None:
    groups = {ProfileGroup.DENSE_MATMUL: 0.020, ProfileGroup.FRAMEWORK: 0.010}
    of = evidence(
        lambda one, _: 0.040 if one == QUANTIZED else 0.030,
        groups={PLAIN: groups, QUANTIZED: groups},
    )
    _, decode, page = explained(of)
    assert decode.unexplained is not None
    assert decode.unexplained.excess_s == pytest.approx(0.010, rel=0.02)
    assert "10.0 ms" in page
    assert "unexplained" in page


def test_the_parts_add_up_to_the_whole_difference() -> None:
    plain = {
        ProfileGroup.DENSE_MATMUL: 0.015,
        ProfileGroup.ATTENTION: 0.005,
        ProfileGroup.FRAMEWORK: 0.008,
    }
    own = {
        ProfileGroup.QUANTIZED_MATMUL: 0.018,
        ProfileGroup.ATTENTION: 0.006,
        ProfileGroup.FRAMEWORK: 0.011,
    }
    of = evidence(
        lambda one, _: 0.036 if one == QUANTIZED else 0.028, groups={PLAIN: plain, QUANTIZED: own}
    )
    _, decode, page = explained(of)
    assert decode.unexplained is not None
    total = sum(part.excess_s for part in decode.parts) + decode.unexplained.excess_s
    assert total == pytest.approx(decode.excess_s)
    assert [part.cause for part in decode.parts] == [Cause.KERNEL, Cause.FRAMEWORK, Cause.ATTENTION]
    assert "attention and the KV cache do not shrink with the weights" in page


def test_a_batch_that_computes_is_not_expected_to_gain_from_bytes() -> None:
    _, decode, page = explained(evidence(lambda _one, at: 0.030 + 0.001 * at, places=(256,)))
    assert decode.expected_gain == pytest.approx(1.0)
    assert "where computing bounds it" in page


def test_without_the_roof_bytes_alone_are_compared_and_it_is_said() -> None:
    of = evidence(lambda _one, _at: 0.030, roof=None)
    found, decode, page = explained(of)
    assert not decode.is_roofline
    assert decode.own.roof_share is None
    assert Missing.ROOF in {gap.missing for gap in found.gaps}
    assert "nobody measured it" in page


def test_a_mixture_is_expected_to_read_the_experts_that_a_batch_touches() -> None:
    experts = ExpertFacts(count=8, per_token=2, size=192, layers=30)
    facts = SMOLLM2.model_copy(update={"experts": experts})
    found, decode, page = explained(evidence(lambda _one, _at: 0.030, places=(4,), facts=facts))
    assert Missing.COST not in {gap.missing for gap in found.gaps}
    assert decode.own.cost is not None
    assert decode.own.cost.touched_experts == pytest.approx(1 - 0.75**4)
    assert decode.own.cost.weight_bytes < QUANTIZED_BYTES
    assert "Experts touched (%)" in page
    assert "if its router sends them evenly" in page


def test_a_warning_of_the_engine_about_its_speed_is_in_the_answer() -> None:
    said = "Using default MoE config. Performance might be sub-optimal!"
    _, _, page = explained(evidence(lambda _one, _at: 0.030, warnings=(said,)))
    assert f"The engine warns: “{said}”" in page.partition("## ")[0]


def test_the_share_of_the_roof_is_said() -> None:
    _, decode, page = explained(slower_by(1.0))
    assert decode.baseline.roof_share == pytest.approx(0.0275 / 0.030, rel=0.03)
    assert "Share reached" in page


def test_a_roof_that_is_exceeded_is_said_to_be_no_roof() -> None:
    _, decode, page = explained(evidence(lambda _one, _at: 0.020))
    assert decode.baseline.roof_share is not None
    assert decode.baseline.roof_share > 1
    assert "it was measured while this machine was slower" in page
    assert "it was measured while" not in explained(slower_by(1.0))[2]


def test_a_ratio_that_may_be_chance_is_no_title() -> None:
    _, _, page = explained(slower_by(1.0))
    assert "the difference is not significant" in page
    assert (
        "`m/w8 @ engine` is not shown to differ in speed from `m/bf16 @ engine`"
        in page.splitlines()[0]
    )


def test_published_runs_are_explained_as_far_as_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published record in which 8-bit weights win at a batch of 8 and lose at 64."""
    folder, file = str(tmp_path / "s"), str(IMPORTS / "seed-crossing.md")
    made = bitbench(
        capsys, "import", file, "--from", "published-table", "--starts", "per-run", "--into", folder
    )
    assert made.exit_code == 0, made.err
    page = bitbench(capsys, "explain", folder, "w8a16_awq", "--format", "markdown").out
    assert "# Why `w8a16_awq` is 0.83× as fast as `original` on `high_concurrency`" in page
    assert "Where the time goes is unexplained" in page
    assert "the records have no times of single tokens" in page
    unknown = bitbench(capsys, "explain", folder, "w4")
    assert unknown.exit_code == ExitCode.USAGE
    assert "w4 is not a variant of this study" in unknown.err


def test_real_records_of_a_kernel_that_dequantizes_name_it(tmp_path: Path) -> None:
    """torchao's int8 weights on transformers, on a CPU: trials of a study, profiles of both (operators cut short)."""
    folder = StudyFolder.existing(DATA / "why-int8")
    found = explain_variant(
        folder, tmp_path, variant="torchao-int8wo", workload="one", against=None
    )
    assert found.own.path is KernelPath.DEQUANTIZED
    (decode,) = (one for one in found.phases if one.phase is Phase.DECODE)
    largest = decode.parts[0]
    assert largest.cause is Cause.DEQUANTIZATION
    assert largest.own_s is not None
    assert largest.baseline_s is not None
    assert largest.own_s > 5 * largest.baseline_s
    assert decode.unexplained is not None
    total = sum(part.excess_s for part in decode.parts) + decode.unexplained.excess_s
    assert total == pytest.approx(decode.excess_s)
    page = render_markdown(build_explanation_document(found))
    assert "Decode, dequantization: 16.5 ms more per step than expected" in page
    assert "is left unexplained, which is within the error of the trials" in page


def test_a_variant_is_asked_about_by_recipe_variant_or_config(tmp_path: Path) -> None:
    folder = StudyFolder.existing(DATA / "why-int8")
    for name in (
        "torchao-int8wo",
        "smollm2-135m/torchao-int8wo",
        "smollm2-135m/torchao-int8wo @ transformers",
    ):
        found = explain_variant(folder, tmp_path, variant=name, workload=None, against=None)
        assert found.own.config.variant == "smollm2-135m/torchao-int8wo"
        assert found.workload.name == "sixteen"  # where it does worst
    with pytest.raises(UsageError, match="is the baseline itself"):
        explain_variant(folder, tmp_path, variant="bf16", workload=None, against=None)
    with pytest.raises(UsageError, match="two is not a workload of this study"):
        explain_variant(folder, tmp_path, variant="torchao-int8wo", workload="two", against=None)
