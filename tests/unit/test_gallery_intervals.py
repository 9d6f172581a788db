"""Absolute figures of the studies that everybody sees: which have an interval, and where it begins."""

import pytest

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.summarize import summarize
from bitbench.records.folder import StudyFolder
from tests.gallery import GALLERY

FOLDERS = sorted(path.parent for path in GALLERY.rglob("trials.jsonl"))
MOST_WITHOUT = 0.1


@pytest.fixture(scope="module")
def means() -> list[Estimate]:
    """Of every point; percentiles of pooled requests are not means, and memory has a range."""
    points = [
        point
        for folder in FOLDERS
        for point in summarize(StudyFolder.existing(folder).read()).points
    ]
    return [
        estimate
        for point in points
        for metric, estimate in point.metrics.items()
        if metric not in point.tails and estimate.kind == "interval"
    ]


def test_no_interval_begins_at_zero(means: list[Estimate]) -> None:
    assert means
    assert not [estimate for estimate in means if estimate.low is not None and estimate.low <= 0]


def test_few_figures_have_no_interval(means: list[Estimate]) -> None:
    without = sum(estimate.interval is None for estimate in means)
    assert without <= MOST_WITHOUT * len(means)
