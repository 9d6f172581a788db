"""One metric of one point over past studies, with what changed between them."""

from bitbench.feature import Command, Feature, Panel

FEATURE = Feature(
    name="history",
    commands=(
        Command(
            "history",
            ".command:history",
            "Show one metric over past studies and what changed.",
            Panel.DECIDE,
        ),
    ),
)
