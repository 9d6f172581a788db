"""The environment of lm-eval. It asks an endpoint, so that it needs no torch and is the same on every machine."""

from pathlib import Path

from bitbench.core.environment import Environment

LMEVAL = Environment(
    name="lmeval",
    locks={"cpu": Path(__file__).parent / "pinned" / "lmeval-cpu.txt"},
    import_check="import lm_eval.models.openai_completions, transformers",
    main_packages=("lm-eval", "transformers"),
)
