"""No machine's own paths in a report that is passed on: what is known of a folder's place is shortened to `…`."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.records.trial import InstanceRecord


def shortener(folders: Iterable[Path]) -> Callable[[str], str]:
    """A function that writes `…/envs/vllm/x.py` for `FOLDER/envs/vllm/x.py`; the longest folder goes first."""
    known = sorted({str(folder) for folder in folders if len(folder.parts) > 1}, key=len, reverse=True)
    if not known:
        return str
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(re.escape(folder) for folder in known)})(?![\w.-])")
    return lambda text: pattern.sub("…", text)


def shorten_summary(summary: StudySummary, short: Callable[[str], str]) -> StudySummary:
    """Where an engine's own words, or a command, stand in a summary."""
    configs = [
        config.model_copy(
            update={
                "kernels": _all(config.kernels, short),
                "commands": _all(config.commands, short),
                "notes": _all(config.notes, short),
            }
        )
        for config in summary.configs
    ]
    refusals = [refusal.model_copy(update={"reason": short(refusal.reason)}) for refusal in summary.refusals]
    update = {
        "points": tuple(_point(point, short) for point in summary.points),
        "configs": tuple(configs),
        "refusals": tuple(refusals),
    }
    return summary.model_copy(update=update)


def shorten_instance(instance: InstanceRecord, short: Callable[[str], str]) -> InstanceRecord:
    facts = instance.facts.model_copy(
        update={"kernels": _all(instance.facts.kernels, short), "command": _all(instance.facts.command, short)}
    )
    return instance.model_copy(update={"facts": facts, "log_lines": _all(instance.log_lines, short)})


def _point(point: PointSummary, short: Callable[[str], str]) -> PointSummary:
    if not point.failures:
        return point
    groups = []
    for group in point.failures:
        words = {"cause": short(group.failure.cause), "log_lines": _all(group.failure.log_lines, short)}
        groups.append(group.model_copy(update={"failure": group.failure.model_copy(update=words)}))
    return point.model_copy(update={"failures": tuple(groups)})


def _all(texts: Sequence[str], short: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(short(text) for text in texts)
