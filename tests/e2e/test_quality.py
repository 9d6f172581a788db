"""What compression costs in quality, with real vLLM and transformers, also against a plain computation. Four bits and a
damaged layer are in tests/touched, four bits on vLLM in tests/slow."""

import math
import subprocess

import pytest

from bitbench.analysis.quality import KL, PERPLEXITY, RISE, TOP1
from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.engines.environments import environment_python
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import Condition
from bitbench.records.trial import Outcome
from bitbench.reports.write import StudyReport
from tests.e2e.conftest import WINDOWS

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run

MODEL = "smollm2-135m"
AGREES = 0.001

PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[3])).eval()
windows = json.load(open(sys.argv[2]))["windows"]
with torch.inference_mode():
    losses = [float(model(ids, labels=ids).loss) for ids in (torch.tensor([one]) for one in windows)]
print(sum(losses) / len(losses))
"""


@pytest.fixture(scope="module")
def summary(recipes_study: StudyFolder) -> StudySummary:
    return StudyReport(recipes_study, get_default_home()).summary


def quality(summary: StudySummary, name: str) -> ConfigQuality:
    return next(one for one in summary.quality if one.name == f"{MODEL}/{name}")


def test_perplexity_of_both_engines_is_that_of_a_plain_computation(
    recipes_study: StudyFolder, summary: StudySummary
) -> None:
    """In the type that both computed in, which depends on the processor."""
    home, lock = get_default_home(), recipes_study.lock()
    assert lock is not None
    (dtype,) = {
        lock.plan.chosen_dtypes.get(one, "bfloat16")
        for one in lock.plan.configs
        if one.variant == f"{MODEL}/bf16"
    }
    done = subprocess.run(
        [environment_python("transformers", home), "-I", "-c", PLAIN, home / "models" / MODEL,
         recipes_study.quality / f"windows-{MODEL}.json", dtype],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    plain = math.exp(float(done.stdout))
    for engine in ("transformers", "vllm"):
        found = quality(summary, f"bf16 @ {engine}")
        assert found.tokens == WINDOWS * 127
        assert found.estimates["perplexity"].value == pytest.approx(plain, rel=AGREES), engine


def test_quality_is_measured_once_for_each_config_also_where_speed_is_refused(
    recipes_study: StudyFolder,
) -> None:
    records = [
        record for record in recipes_study.read_quality_records() if record.outcome is Outcome.OK
    ]
    names = [record.config.name for record in records if record.condition is Condition.ALONE]
    assert len(names) == len(set(names))
    again = {record.config.name for record in records if record.condition is Condition.RESTARTED}
    assert again == set(names) - {
        f"{MODEL}/w8a8-rtn @ transformers"
    }  # which is started once, since it has no trials
    expected = {
        f"{recipe} @ {engine}"
        for recipe in ("bf16", "w8a8-rtn")
        for engine in ("vllm", "transformers")
    }
    assert {f"{MODEL}/{name}" for name in expected} == set(names)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_eight_bits_diverge_little(summary: StudySummary, engine: str) -> None:
    assert_diverges_little(summary, f"w8a8-rtn @ {engine}", f"bf16 @ {engine}")


def assert_diverges_little(summary: StudySummary, name: str, baseline: str) -> ConfigQuality:
    found = quality(summary, name)
    assert not found.flagged
    assert 0.005 < found.estimates["kl_mean"].value < 0.1
    assert_estimated(found, quality(summary, baseline))
    return found


def assert_diverges_much(summary: StudySummary, name: str, baseline: str) -> ConfigQuality:
    found = quality(summary, name)
    assert found.flagged
    assert found.estimates["kl_mean"].value > 0.1
    assert_estimated(found, quality(summary, baseline))
    return found


def assert_estimated(found: ConfigQuality, baseline: ConfigQuality) -> None:
    assert found.baseline == baseline.config
    for name in (PERPLEXITY, RISE, KL, TOP1):
        estimate = found.estimates[name]
        assert estimate.interval is not None
        assert estimate.interval.low < estimate.value < estimate.interval.high


def test_the_report_has_speed_memory_and_quality_side_by_side(recipes_study: StudyFolder) -> None:
    results = (recipes_study.report / "report.md").read_text().partition("## Results")[2]
    header = next(line for line in results.splitlines() if line.startswith("| Config"))
    for column in ("`short` Output (tok/s)", "Peak memory (MiB)", "KL mean (nats)"):
        assert column in header
    section = quality_section(recipes_study)
    header = next(line for line in section.splitlines() if line.startswith("| Config"))
    for column in ("Perplexity", "Rise", "KL mean", "Mass", "Same top token"):
        assert column in header


def quality_section(folder: StudyFolder) -> str:
    report = (folder.report / "report.md").read_text(encoding="utf-8")
    return report.partition("## Quality")[2].partition("\n## ")[0]
