"""One metric of one point over past studies, with what changed between them."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="history",
    commands=(Command("history", ".command:history", "Draw one metric over past studies, with what changed between."),),
)
