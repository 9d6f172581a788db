"""The figure: how many times as fast as the first baseline each kernel is."""

from bitbench.features.kernels.computing import KernelSummary
from bitbench.features.kernels.words import kernel_speedup_quantities
from bitbench.reports.charts.rows import ratio_row, ratio_rows
from bitbench.reports.document.model import Figure
from bitbench.reports.document.words import MAX_NAME, plain_words
from bitbench.reports.labels import distinct_labels

WIDTH = 440  # pixels, with its axis hardly more than a phone has: nothing shrinks beyond reading there


def speedup_figure(summary: KernelSummary) -> Figure | None:
    """Each case against the first baseline, a colour per batch. None where nothing was compared."""
    found = kernel_speedup_quantities(summary) if summary.baselines else {}
    if not found:
        return None
    cases = list(dict.fromkeys(case for case, _ in found))
    labels = dict(zip(cases, distinct_labels(cases), strict=True))
    fastest = sorted(cases, key=lambda case: -max(each.value or 0.0 for (of, _), each in found.items() if of == case))
    rows = [
        ratio_row(labels[case], f"batch {batch}", speedup)
        for case in fastest
        for (of, batch), speedup in found.items()
        if of == case
    ]
    baseline = plain_words(summary.baselines[0], MAX_NAME)
    caption = "Dot: median over the shapes; line: the slowest and the fastest of them."
    words = f"times as fast as {baseline}, more is better"
    return ratio_rows("answer-speedups", f"Speed-up over {baseline}", [caption], rows, words)
