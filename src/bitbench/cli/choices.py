"""What can be chosen on the command line; without imports, so that --help stays quick."""

from enum import StrEnum


class Described(StrEnum):
    """What `bitbench schema` prints the JSON Schema of: a file that a person writes, or what a command of the core
    prints with --json; those of features are in what they declare."""

    STUDY = "study"
    RECIPE = "recipe"
    RECOMMEND = "recommend"
    COMPARE = "compare"
    LOAD = "load"
    PLAN = "plan"
    DOCTOR = "doctor"
