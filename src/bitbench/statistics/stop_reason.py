"""Why a cell has no more trials than it has, read from the trials themselves."""

from bitbench.core.asked.study import Measure
from bitbench.core.found.summary import Estimate, StopReason
from bitbench.statistics.intervals import Groups
from bitbench.statistics.stopping import enough_instances, enough_trials


def stop_reason(blocks: Groups, headline: Estimate | None, measure: Measure, *, failed: bool) -> StopReason:
    """`blocks` are the headline values that count, by block; `failed`: a trial or a start of this cell failed.

    A block that was interrupted and taken up again has trials of two instances: the estimate knows them apart, the
    schedule, whose reasons these are, does not.
    """
    width = None if headline is None else headline.relative_half_width
    enough_blocks = len(blocks) >= measure.instances.min
    if enough_blocks and width is not None and width <= measure.target_precision:
        return StopReason.PRECISE
    if not enough_blocks or any(len(block) < measure.trials.min for block in blocks):
        return StopReason.FAILED if failed else StopReason.UNFINISHED
    if enough_instances(blocks, measure) and all(enough_trials(block, measure) for block in blocks):
        return StopReason.LIMIT
    if measure.budget is not None:
        return StopReason.BUDGET
    return StopReason.FAILED if failed else StopReason.UNFINISHED
