"""A GGUF type for each group of a model's tensors, chosen by measured divergence and time, and confirmed."""

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
