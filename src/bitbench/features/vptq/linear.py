"""A linear layer of torch with VPTQ's tensors, and its product by the native kernel.

This module is imported in an engine's environment, which has torch.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from bitbench.features.vptq import layout, packed
from bitbench.features.vptq.layout import VptqLayer

if TYPE_CHECKING:
    from bitbench._native import VptqMatrix
    from bitbench.features.vptq.triton_layer import TritonLayer


def compute_native_product(
    kernel: "VptqMatrix", x: torch.Tensor, out_features: int, *, activation_bits: int, threads: int
) -> torch.Tensor:
    """Return x [..., in] times the matrix as [..., out], in the type of x.

    Types other than bfloat16 are computed in float32.
    """
    inputs = x if x.dtype in (torch.bfloat16, torch.float32) else x.float()
    inputs = inputs.contiguous()
    y = torch.empty((*x.shape[:-1], out_features), dtype=inputs.dtype)
    kernel.multiply_at(
        inputs.data_ptr(),
        y.data_ptr(),
        rows=y.numel() // out_features,
        bfloat16=inputs.dtype is torch.bfloat16,
        activation_bits=activation_bits,
        threads=threads,
        isa="",
    )
    return y.to(x.dtype)


# The kernel decodes the weights once per 8 rows, so a dense matrix is faster for many rows. The
# limit was measured with layers of 0.3 to 0.9 million weights. Larger layers would gain from the
# kernel up to some 500 rows.
KERNEL_ROWS = 128
TRITON_ROWS = 8  # an estimate of the rows that one program of the GPU kernel holds in registers
# With 8 bits the product would be faster, but it would not be plain weight-only arithmetic.
ACTIVATION_BITS = 16


def _find_native_fault(layer: VptqLayer) -> str | None:
    """Return why the native kernel cannot multiply a layer, or None if it can."""
    if packed.find_native_isa() is None:
        return "no native part"
    vector = layer.centroids.shape[2]
    return None if vector == packed.VECTOR else f"vectors of {vector}"


def _find_triton_fault(layer: VptqLayer) -> str | None:
    """Return why the GPU kernel cannot multiply a layer, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "no Triton"
    vectors = [layer.centroids.shape[2]]
    if layer.outliers is not None:
        vectors.append(layer.outliers.centroids.shape[1])
    for vector in vectors:
        if vector.bit_count() != 1:
            return f"vectors of {vector}"
    return None


class VptqLinear(torch.nn.Module):  # type: ignore[misc]
    """A linear layer that is empty until `fill`.

    Few rows use a kernel, and many rows use a dense matrix that is made for the call. The kernel is
    the native one, or on a GPU the Triton kernel (NOT YET RUN ON A GPU). Without a kernel, or for
    vectors that it cannot read, the weights stay dense after loading.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.kind = "empty"
        self._matrix: packed.PackedMatrix | None = None
        self._kernel: Any = None
        self.on_gpu: TritonLayer | None = None

    def fill(self, layer: VptqLayer, dtype: torch.dtype, device: str = "cpu") -> None:
        """Prepare the layer for its kernel.

        The layer will be moved to `device` later, and each device's kernel needs its own form.
        """
        codebooks = f"VPTQ {layer.centroids.shape[1]}"
        if layer.residual_centroids is not None:
            codebooks += f"/{layer.residual_centroids.shape[1]}"
        for_gpu = device.startswith("cuda")
        fault = _find_triton_fault(layer) if for_gpu else _find_native_fault(layer)
        if fault is not None:
            self.kind = f"{codebooks}, expanded to dense at load ({fault})"
            self._fill_dense(layer, dtype)
        elif for_gpu:
            self.kind = f"{codebooks}, Triton kernel up to {TRITON_ROWS} rows, dense above"
            self._fill_triton(layer)
        else:
            self.kind = (
                f"{codebooks}, native kernel {packed.find_native_isa()} with {ACTIVATION_BITS}-bit "
                f"activations up to {KERNEL_ROWS} rows, dense above"
            )
            self._fill_native(layer)

    def _fill_dense(self, layer: VptqLayer, dtype: torch.dtype) -> None:
        weight = torch.from_numpy(layout.dequantize_layout(layer)).to(dtype)
        self.register_buffer("weight", weight, persistent=False)
        bias = None if layer.bias is None else torch.from_numpy(layer.bias).to(dtype)
        self.register_buffer("bias", bias, persistent=False)

    def _fill_triton(self, layer: VptqLayer) -> None:
        from bitbench.features.vptq.triton_layer import TritonLayer

        self.on_gpu = TritonLayer(layer)

    def _fill_native(self, layer: VptqLayer) -> None:
        self._matrix = packed.pack_layer(layer)
        self._kernel = packed.make_native_matrix(self._matrix)
        for number, array in enumerate(self._matrix.arrays):
            # Buffers count as the model's memory. They share it with the arrays.
            self.register_buffer(f"part{number}", torch.from_numpy(array), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on_gpu is not None:
            return self._forward_on_gpu(x, self.on_gpu)
        if self._matrix is None:
            return functional.linear(x, self.weight, self.bias)
        if x.numel() > KERNEL_ROWS * self.in_features:
            bias = None
            if self._matrix.bias is not None:
                bias = torch.from_numpy(self._matrix.bias).to(x.dtype)
            return functional.linear(x, self.dense().to(x.dtype), bias)
        threads = torch.get_num_threads()
        return compute_native_product(
            self._kernel, x, self.out_features, activation_bits=ACTIVATION_BITS, threads=threads
        )

    def _forward_on_gpu(self, x: torch.Tensor, layer: "TritonLayer") -> torch.Tensor:
        if x.numel() > TRITON_ROWS * self.in_features:
            bias = None if layer.bias is None else layer.bias.to(x.dtype)
            return functional.linear(x, layer.dense().to(x.dtype), bias)
        return layer(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def dense(self) -> torch.Tensor:
        """Return the weights [out, in] of the kernel, in single precision."""
        if self.on_gpu is not None:
            return self.on_gpu.dense()
        if self._matrix is None:
            return self.weight
        return torch.from_numpy(packed.dequantize_packed(self._matrix)).float()
