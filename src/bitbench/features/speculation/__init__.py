"""The part of a report on speculative decoding, for studies that vary it."""

from bitbench.feature import Feature, ReportPart, ReportPlace

FEATURE = Feature(
    name="speculation",
    report_parts=(
        ReportPart(
            "speculation",
            ReportPlace.SPEED,
            type=".computing:Speculations",
            compute=".computing:summarize_speculation",
            section=".words:speculation_section",
            sentences=".words:speculation_sentences",
        ),
    ),
)
