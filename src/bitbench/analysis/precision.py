"""How exact the ratios of a study are, where their noise comes from, and what one more block would bring."""

from collections.abc import Mapping
from math import sqrt
from statistics import fmean, median

from bitbench.analysis.budget_plan import variance_components
from bitbench.analysis.distributions import t_reach
from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.model_groups import ModelGroup, log_speeds_of
from bitbench.analysis.pairs import PairedRatio
from bitbench.analysis.results.summary import Precision
from bitbench.analysis.sequential import SequentialAnalysis
from bitbench.records.study_records import StudyRecords


def precision(of: StudyRecords, found: Mapping[ModelGroup, SequentialAnalysis]) -> Precision | None:
    """Of all models together; None where no two configs met in two blocks."""
    pairs = [
        pair
        for field, own in found.items()
        for table in own.tables.values()
        for pair in table.pairs
        if field.baseline in (pair.first, pair.second)
    ]
    if not pairs:
        return None
    confidence = of.study.measure.confidence
    noise = variance_components(log_speeds_of(found))
    explained = [share for own in found.values() for share in own.explained.values()]
    ends = block_ends(of.trials, of.starts_and_quality)
    ends_s = [ends[block] for block in sorted({trial.block for trial in of.trials if trial.counts} & ends.keys())]
    half_width = median(pair.half_width(confidence) for pair in pairs)
    return Precision(
        blocks=max(pair.blocks for pair in pairs),
        fewest_blocks=min(pair.blocks for pair in pairs),
        start_sd=noise.start_sd if noise else None,
        trial_sd=noise.trial_sd if noise else None,
        probe_share=fmean(explained) if explained else None,
        half_width=half_width,
        next_block_s=ends_s[-1] - ends_s[-2] if len(ends_s) > 1 else None,
        next_half_width=half_width * median(_narrower(pair, confidence) for pair in pairs),
    )


def _narrower(pair: PairedRatio, confidence: float) -> float:
    """The half width after one more block, as a share of today's: more degrees of freedom, and a smaller error."""
    now, then = (t_reach(freedom, confidence) for freedom in _freedom(pair))
    return then / now * sqrt(pair.blocks / (pair.blocks + 1))


def _freedom(pair: PairedRatio) -> tuple[float, float]:
    return pair.degrees_of_freedom, pair.degrees_of_freedom + 1
