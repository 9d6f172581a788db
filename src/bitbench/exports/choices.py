"""What can be chosen on the command line; without imports, so that --help stays quick."""

from enum import StrEnum


class Target(StrEnum):
    """As `bitbench export --to` spells it."""

    PROMETHEUS = "prometheus"
    OTEL = "otel"
    MLFLOW = "mlflow"
    WANDB = "wandb"
