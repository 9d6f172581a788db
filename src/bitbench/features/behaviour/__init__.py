"""The parts of a quality report on whether a quantized variant still behaves like its model."""

from bitbench.feature import Feature, ReportPart, ReportPlace

FEATURE = Feature(
    name="behaviour",
    report_parts=(
        ReportPart(
            "behaviour",
            ReportPlace.QUALITY,
            type=".types:Behaviour",
            compute=".computing:summarize_behaviour",
            section=".words:behaviour_section",
            sentences=".words:behaviour_sentences",
            lead=".words:behaviour_lead",
        ),
        ReportPart(
            "turns",
            ReportPlace.QUALITY,
            type=".types:Conversations",
            compute=".computing:summarize_turn_behaviour",
            section=".words:turn_behaviour_section",
            sentences=".words:turn_behaviour_sentences",
        ),
    ),
)
