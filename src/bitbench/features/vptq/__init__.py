"""VPTQ, a vector quantization with two codebooks: its public layout, a CPU and a GPU kernel.

Its modules need only numpy, so a worker in an engine's environment can also use them. `linear`,
`hugging_face`, `cases` and `triton_…` also need torch, transformers or triton, and are imported
only if these are installed.
"""

from bitbench.feature import Feature

FEATURE = Feature(
    name="vptq",
    offers={
        "checkpoints": {"vptq": ".hugging_face:register_vptq"},
        "kernel_cases": {
            "vptq-4096-256": ".cases:V4096_256",
            "vptq-4096-256-a16": ".cases:V4096_256_A16",
            "vptq-4096-512": ".cases:V4096_512",
            "vptq-4096-512-a16": ".cases:V4096_512_A16",
            "vptq-8192-256": ".cases:V8192_256",
            "vptq-8192-256-a16": ".cases:V8192_256_A16",
            "vptq-8192-512": ".cases:V8192_512",
            "vptq-8192-512-a16": ".cases:V8192_512_A16",
            "vptq-65536-256": ".cases:V65536_256",
            "vptq-65536-256-a16": ".cases:V65536_256_A16",
            "vptq-triton-4096-256": ".cases:T4096_256",
            "vptq-triton-4096-512": ".cases:T4096_512",
            "vptq-triton-8192-256": ".cases:T8192_256",
            "vptq-triton-8192-512": ".cases:T8192_512",
            "vptq-triton-65536-256": ".cases:T65536_256",
        },
    },
)
