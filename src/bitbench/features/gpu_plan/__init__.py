"""Plans for GPUs that are not in this machine."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="gpu_plan",
    commands=(
        Command(
            "plan-gpu",
            ".command:plan_gpu",
            "Show what a study would take on a GPU you do not have here.",
            answer=".devices:GpuPlanAnswer",
        ),
    ),
)
