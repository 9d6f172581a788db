"""Evidence cards: a study folder as one file that others can check, the check, and many side by side."""

from bitbench.feature import Command, Feature, Panel

FEATURE = Feature(
    name="cards",
    commands=(
        Command(
            "publish",
            ".command:publish",
            "Make an evidence card, a signed file others can check.",
            Panel.SHARE,
            answer=".publish:PublishAnswer",
        ),
        Command(
            "verify",
            ".command:verify",
            "Check an evidence card by recomputing its figures.",
            Panel.SHARE,
            answer=".types:Verification",
        ),
        Command(
            "cards",
            ".command:cards",
            "Compare the evidence cards below a folder.",
            Panel.SHARE,
            answer=".types:CardComparison",
        ),
    ),
)
