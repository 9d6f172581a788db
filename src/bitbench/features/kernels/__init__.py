"""The same product in different formats, timed against each other and against the roofline of this machine."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="kernels",
    commands=(Command("kernels", ".command:kernels", "Time quantized kernels against torch and the roofline."),),
    offers={
        "environments": {"triton": ".environment:TRITON"},
        "folder_formats": {"kernel-md": ".folders:kernel_markdown"},
        "folders": {"records.json": ".folders:kernel_report", "published/kernels.json": ".folders:published_report"},
        "kernel_cases": {
            "torch-linear": ".torch_cases:TorchLinear",
            "torch-linear-f32": ".torch_cases:TorchLinearFloat32",
            "torch-mv": ".torch_cases:TorchMv",
            "torch-int8": ".torch_cases:TorchInt8",
            "torch-int4-g128": ".torch_cases:TorchInt4",
            "vptq-4096-256": ".vptq_cases:V4096_256",
            "vptq-4096-256-a16": ".vptq_cases:V4096_256_A16",
            "vptq-4096-512": ".vptq_cases:V4096_512",
            "vptq-4096-512-a16": ".vptq_cases:V4096_512_A16",
            "vptq-8192-256": ".vptq_cases:V8192_256",
            "vptq-8192-256-a16": ".vptq_cases:V8192_256_A16",
            "vptq-8192-512": ".vptq_cases:V8192_512",
            "vptq-8192-512-a16": ".vptq_cases:V8192_512_A16",
            "vptq-65536-256": ".vptq_cases:V65536_256",
            "vptq-65536-256-a16": ".vptq_cases:V65536_256_A16",
            "vptq-triton-4096-256": ".vptq_triton_cases:T4096_256",
            "vptq-triton-4096-512": ".vptq_triton_cases:T4096_512",
            "vptq-triton-8192-256": ".vptq_triton_cases:T8192_256",
            "vptq-triton-8192-512": ".vptq_triton_cases:T8192_512",
            "vptq-triton-65536-256": ".vptq_triton_cases:T65536_256",
        },
        "roof": {"torch": ".bench:measure_roof"},
    },
)
