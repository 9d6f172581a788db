"""`python triton_child.py multiply|layer CASES OUTPUT`, or `… compile`, in the environment `triton` with bitbench."""

import pickle
import sys
from pathlib import Path

import numpy as np
import torch


def multiply(cases_file: str, output_file: str) -> None:
    """Each (layer, x) of a pickle through Triton's interpreter (TRITON_INTERPRET=1), results to a .npz."""
    from bitbench.features.vptq.triton_layer import TritonLayer

    cases = pickle.loads(Path(cases_file).read_bytes())
    np.savez(output_file, *(TritonLayer(layer)(torch.from_numpy(x)).numpy() for layer, x in cases))


def layer(cases_file: str, output_file: str) -> None:
    """The same through the layer of a model that is meant for a GPU: few rows, then more than the kernel takes."""
    from bitbench.features.vptq.linear import TRITON_ROWS, VptqLinear

    results = {}
    for number, (layer, x) in enumerate(pickle.loads(Path(cases_file).read_bytes())):
        module = VptqLinear(layer.in_features, layer.out_features)
        module.fill(layer, torch.float32, "cuda")
        few = torch.from_numpy(x)[None]  # as in a model: [sequences, tokens, in]
        results[f"few{number}"] = module(few)[0].numpy()
        results[f"many{number}"] = module(few.expand(TRITON_ROWS + 1, -1, -1))[-1].numpy()
        results[f"bytes{number}"] = np.array(sum(buffer.nbytes for buffer in module.buffers()))
        results[f"kind{number}"] = np.array(module.kind)
    np.savez(output_file, **results)


def compile_ahead() -> None:
    """Machine code for sm_80 of each codebook and batch, without a GPU; prints a line for each."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bitbench.features.vptq.triton_kernel import COLUMN_TILE, ROW_TILE, multiply_segment

    types = {
        "x": "*bf16",
        "words": "*i32",
        "main": "*fp16",
        "residual": "*fp16",
        "partial": "*fp32",
    }
    for main_bits, residual_bits, batch in ((12, 8, 1), (13, 9, 1), (16, 8, 8), (12, 0, 1)):
        constants = {
            "main_bits": main_bits,
            "residual_bits": residual_bits,
            "vector": 8,
            "batch_tile": batch,
            "row_tile": ROW_TILE,
            "column_tile": COLUMN_TILE,
        }
        names = multiply_segment.arg_names
        signature = {
            name: "constexpr" if name in constants else types.get(name, "i32") for name in names
        }
        source = ASTSource(multiply_segment, signature, constants)
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32))
        target = next(line for line in made.asm["ptx"].splitlines() if line.startswith(".target"))
        print(
            f"{main_bits}+{residual_bits} batch {batch}: {target}, {len(made.asm['cubin'])} bytes"
        )


if __name__ == "__main__":
    {"multiply": multiply, "layer": layer, "compile": compile_ahead}[sys.argv[1]](*sys.argv[2:])
