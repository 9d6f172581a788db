"""An operator profile of somebody else, as it is printed, with what stands out in it."""

from collections.abc import Iterator

from bitbench.features.explain.profile_words import operator_table
from bitbench.records.published import PublishedProfile
from bitbench.reports.document.model import Document, Name, Section
from bitbench.reports.document.words import Words, bullets, listing, paragraph, say
from bitbench.reports.quantities import seconds
from bitbench.reports.sections.conditions import imported
from bitbench.util.units import UNKNOWN


def published_profile_document(profile: PublishedProfile) -> Document:
    on_cpu, on_device = seconds(profile.self_cpu_s), seconds(profile.self_device_s)
    totals = paragraph(f"{profile.device or UNKNOWN}. Self CPU ", on_cpu, ", self device ", on_device, " in all.")
    return Document(
        say("Operator profile"),
        (imported(profile.source), totals, *bullets(_doubts(profile))),
        (Section(say("The operators"), (operator_table(profile.operators),)),),
    )


def _doubts(profile: PublishedProfile) -> Iterator[Words]:
    yield (
        "It does not say how many steps it covers, which phase, nor whether the first call was excluded: "
        "compilation may be in these figures."
    )
    whole = profile.self_device_s
    beyond = [
        say(Name(operator.name), " (", seconds(operator.self_device_s), ")")
        for operator in profile.operators
        if whole and operator.self_device_s and operator.self_device_s > whole
    ]
    if beyond:
        total = seconds(whole)
        yield say(listing(beyond), " alone exceeds the printed total of ", total, ": it is counted twice or apart.")
