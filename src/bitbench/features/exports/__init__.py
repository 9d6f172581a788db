"""A study's figures in the tools where people already look."""

from bitbench.feature import Command, Feature, Panel

FEATURE = Feature(
    name="exports",
    commands=(
        Command(
            "export",
            ".command:export",
            "Send figures to Prometheus, MLflow and others.",
            Panel.SHARE,
        ),
    ),
)
