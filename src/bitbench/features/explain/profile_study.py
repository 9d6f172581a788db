"""The study that `bitbench profile` runs: one config, and no trial."""

from collections.abc import Mapping

from bitbench.features.explain.asked import ProfileSpec
from bitbench.study.checked import checked
from bitbench.study.study import Argument, EngineSetup, Study
from bitbench.study.workload import Workload


def profile_study(
    model: str,
    *,
    recipe: str = "bf16",
    engine: str = "transformers",
    batches: tuple[int, ...] = (1,),
    input_tokens: int = 128,
    output_tokens: int = 32,
    args: Mapping[str, Argument] | None = None,
) -> Study:
    """Its workload only sets the size; it is not run."""
    return checked(
        lambda: Study(
            name=f"profile-{engine}",
            description="Operator profiles, and no trial.",
            models=(model,),
            recipes=(recipe,),
            engines=(EngineSetup(name=engine, engine=engine, args=dict(args or {})),),
            workloads=(
                Workload(
                    name="profile", concurrency=max(batches), input_tokens=input_tokens, output_tokens=output_tokens
                ),
            ),
            profile=ProfileSpec(batch=batches, input_tokens=input_tokens, output_tokens=output_tokens),
        )
    )
