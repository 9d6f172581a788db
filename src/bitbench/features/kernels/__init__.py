"""The feature that times quantized kernels against each other and against the roofline."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="kernels",
    commands=(
        Command(
            "kernels", ".command:kernels", "Time quantized kernels against torch and the roofline."
        ),
    ),
    offers={
        "environments": {"triton": ".environment:TRITON"},
        "formats": {"markdown-kernels": ".bench:kernel_markdown"},
        "kernel_cases": {
            "torch-linear": ".torch_cases:TorchLinear",
            "torch-linear-f32": ".torch_cases:TorchLinearFloat32",
            "torch-mv": ".torch_cases:TorchMv",
            "torch-int8": ".torch_cases:TorchInt8",
            "torch-int4-g128": ".torch_cases:TorchInt4",
        },
        "roof": {"torch": ".bench:measure_roof"},
    },
)
