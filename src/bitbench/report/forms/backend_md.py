"""TTFT and TPOT with one column per backend: its version and the kernel it really selected stand beside the figures."""

from bitbench.core.found.summary import CellSummary, Estimate, Ranking, StudySummary
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.numbers import number
from bitbench.report.document.text import MAX_NAME, code, escape, table
from bitbench.report.sections.answer import outcomes_of
from bitbench.report.sections.workloads import in_order, rank_text
from bitbench.report.shape import shape

TIMES = {"TTFT": "ttft_s", "TPOT": "tpot_s"}


def backend_markdown(summary: StudySummary) -> str:
    parts = [f"# {escape(summary.study.name)}: backends"]
    for ranking in summary.rankings:
        cells = in_order(summary, ranking)
        if cells:
            parts += [
                f"## {code(ranking.workload)}",
                shape(summary.study.workload(ranking.workload), code),
                _backends(summary, ranking, cells),
            ]
    parts.append(
        "Times are means with their interval; TTFT counts from the planned send to the first token, TPOT is the time "
        "per further token. Kernels are in the engine's own words; `–` is what is not known."
    )
    return "\n\n".join(parts) + "\n"


def _backends(summary: StudySummary, ranking: Ranking, cells: list[CellSummary]) -> str:
    known = {one.contender: one for one in summary.contenders}
    ranks = {entry.contender: rank_text(entry) for entry in ranking.entries}
    own = [cell.cell.contender for cell in cells]
    rows = [
        ["**Model**", *(escape(one.variant) for one in own)],
        ["**Version**", *(_words(known[one].engine_versions if one in known else ()) for one in own)],
        ["**Kernel**", *(_words(known[one].kernels if one in known else ()) for one in own)],
        *(
            [f"**{title}**", *(_milliseconds(cell.metrics.get(metric)) for cell in cells)]
            for title, metric in TIMES.items()
        ),
        [f"**Rank by {summary.definitions[ranking.metric].name}**", *(ranks.get(one, UNKNOWN) for one in own)],
    ]
    if any(cell.failures for cell in cells):
        rows.append(["**Failed**", *(outcomes_of(cell) or "no" for cell in cells)])
    header = ["**Backend**", *(escape(one.engine) for one in own)]
    return table(header, rows, left=range(len(header)))


def _words(words: tuple[str, ...]) -> str:
    return "; ".join(escape(word, MAX_NAME) for word in words) or UNKNOWN


def _milliseconds(estimate: Estimate | None) -> str:
    if estimate is None:
        return UNKNOWN
    value = 1000 * estimate.mean
    if estimate.interval is None:
        return f"{number(value)}ms"
    low, high = 1000 * estimate.interval.low, 1000 * estimate.interval.high
    half = (high - low) / 2
    return f"{number(value, half)}ms [{number(low, half)}, {number(high, half)}]"
