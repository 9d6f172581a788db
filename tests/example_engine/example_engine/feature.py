"""What the package adds beside its engine: a command, and a section in reports of studies that use the engine."""

from bitbench.feature import Command, Feature, ReportPart, ReportPlace

FEATURE = Feature(
    name="example",
    commands=(
        Command("words", ".words:words", "Print the words that the example engine repeats."),
    ),
    report_parts=(
        ReportPart(
            "example",
            ReportPlace.CONDITIONS,
            type=".words:RepeatedWords",
            compute=".words:repeated_words",
            section=".words:words_section",
        ),
    ),
)
