"""A study's figures in the tools where people already look."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="exports",
    commands=(Command("export", ".command:export", "Send a study's figures to Prometheus, MLflow and others."),),
)
