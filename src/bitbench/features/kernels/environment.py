"""An environment with Triton for a machine without a GPU, in which the GPU kernels are checked.

The kernel bench itself runs where an engine has its torch.
"""

from pathlib import Path

from bitbench.study.environment import Environment

TRITON = Environment(
    name="triton",
    locks={"cpu": Path(__file__).parent / "pinned" / "triton-cpu.txt"},
    import_check="import torch, triton",
    main_packages=("torch", "triton"),
)
