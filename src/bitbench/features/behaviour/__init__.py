"""Whether a quantized variant still behaves as its model: parts of the report of any study that measures quality."""

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
