"""What speculative decoding gains, and from where: a part of the report of any study that has it as an axis."""

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
