"""The feature that chooses a GGUF type for each group of tensors by divergence and time."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="mix",
    commands=(
        Command(
            "mix",
            ".command:mix",
            "Choose a GGUF type for each group of tensors, and confirm it.",
            answer=".types:Mixture",
            resumes=True,
        ),
    ),
)
