"""Evidence cards: a study folder as one file that others can check, the check, and many side by side."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="cards",
    commands=(
        Command(
            "publish",
            ".command:publish",
            "Make an evidence card: one signed file that others can check.",
            answer=".command:PublishAnswer",
        ),
        Command(
            "verify",
            ".command:verify",
            "Check an evidence card: recompute each figure from its records.",
            answer=".types:Verification",
        ),
        Command(
            "cards",
            ".command:cards",
            "Compare the evidence cards below a folder.",
            answer=".types:CardComparison",
        ),
    ),
)
