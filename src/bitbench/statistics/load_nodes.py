"""The machines that sent the requests of a study, where they were several."""

from collections import defaultdict
from collections.abc import Iterable

from bitbench.core.found.summary import LoadNodeSummary
from bitbench.core.recorded.trial import LoadNode, TrialRecord


def summarize_load_nodes(trials: Iterable[TrialRecord]) -> tuple[LoadNodeSummary, ...]:
    """Empty where one machine sent all."""
    parts: dict[str, list[LoadNode]] = defaultdict(list)
    for trial in trials:
        if trial.counts and trial.client is not None:
            for node in trial.client.nodes:
                parts[node.name].append(node)
    return tuple(
        LoadNodeSummary(
            name=name,
            trials=len(own),
            requests=sum(node.requests for node in own),
            off_by_s=max(node.off_by_s for node in own),
        )
        for name, own in sorted(parts.items())
    )
