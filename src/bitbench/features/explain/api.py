"""`bitbench.explain`: what the command does, from Python."""

from pathlib import Path

from bitbench.features.explain.gather import explain_variant
from bitbench.features.explain.types import Explanation
from bitbench.measure.workplace import default_home
from bitbench.records.folder import StudyFolder


def explain(
    folder: str | Path, variant: str, *, workload: str | None = None, against: str | None = None
) -> Explanation:
    """Explain a variant's speed: the expected gain, the measured gain, and where the gap comes from."""
    place = StudyFolder.existing(Path(folder))
    return explain_variant(place, default_home(), variant=variant, workload=workload, against=against)
