"""An environment with Triton that checks the GPU kernels on a machine without a GPU.

The kernel bench itself runs in an engine's environment, which has torch.
"""

from pathlib import Path

from bitbench.study.environment import Environment

TRITON = Environment(
    name="triton",
    locks={"cpu": Path(__file__).parent / "pinned" / "triton-cpu.txt"},
    import_check="import torch, triton",
    main_packages=("torch", "triton"),
)
