"""The environment of lm-eval. It asks an endpoint, so that it needs no torch and is the same on every machine."""

from pathlib import Path

from bitbench.study.environment import Environment

_PINNED = Path(__file__).with_name("pinned")

LMEVAL = Environment(
    name="lmeval",
    locks={"cpu": _PINNED / "lmeval-cpu.txt"},
    source_lock=_PINNED / "lmeval-source.txt",
    import_check="import lm_eval.models.openai_completions, transformers",
    main_packages=("lm-eval", "transformers"),
)
