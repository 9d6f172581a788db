"""SQL over all studies below a folder."""

from bitbench.feature import Command, Feature, Panel

FEATURE = Feature(
    name="query",
    commands=(
        Command("query", ".command:query", "Query all studies below a folder in SQL.", Panel.SHARE),
    ),
)
