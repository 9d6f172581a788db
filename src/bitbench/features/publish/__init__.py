"""A study folder as one file that others can check."""

from bitbench.feature import Command, Feature, Panel

FEATURE = Feature(
    name="publish",
    commands=(
        Command(
            "publish",
            ".command:publish",
            "Write a study as one file that others can check.",
            Panel.SHARE,
            answer=".archive:Published",
        ),
        Command(
            "verify",
            ".command:verify",
            "Check a published study by recomputing its figures.",
            Panel.SHARE,
            answer=".checking:Verification",
        ),
    ),
)
