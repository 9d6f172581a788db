"""A linear layer of torch over VPTQ's tensors, and its product with the native kernel. Imported where torch is: in
an engine's environment."""

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from bitbench.features.vptq import layout, packed
from bitbench.features.vptq.layout import VptqLayer

if TYPE_CHECKING:
    from bitbench._native import VptqMatrix
    from bitbench.features.vptq.triton_layer import TritonLayer


def native_linear_product(
    kernel: "VptqMatrix", x: torch.Tensor, out_features: int, *, activation_bits: int, threads: int
) -> torch.Tensor:
    """x [..., in] times the matrix, [..., out], in the type of x. What is not bfloat16 is computed in float32."""
    given = (x if x.dtype in (torch.bfloat16, torch.float32) else x.float()).contiguous()
    y = torch.empty((*x.shape[:-1], out_features), dtype=given.dtype)
    kernel.multiply_at(
        given.data_ptr(),
        y.data_ptr(),
        rows=y.numel() // out_features,
        bfloat16=given.dtype is torch.bfloat16,
        activation_bits=activation_bits,
        threads=threads,
        isa="",
    )
    return y.to(x.dtype)


# The kernel decodes the weights once for 8 rows, so that many rows are better served by a dense matrix. The line was
# measured with layers of 0.3 to 0.9 million weights; larger ones would gain from the kernel up to some 500 rows.
KERNEL_ROWS = 128
TRITON_ROWS = 8  # as many as one program of the GPU kernel holds in its registers; an estimate
ACTIVATION_BITS = 16  # rounding activations to 8 bits would be quicker, but no longer plain weight-only arithmetic


def _native_fault(layer: VptqLayer) -> str | None:
    """Why the native kernel cannot multiply a layer; None where it can."""
    if packed.native_isa() is None:
        return "no native part"
    vector = layer.centroids.shape[2]
    return None if vector == packed.VECTOR else f"vectors of {vector}"


def _triton_fault(layer: VptqLayer) -> str | None:
    """The same of the GPU kernel."""
    if importlib.util.find_spec("triton") is None:
        return "no Triton"
    vectors = [
        layer.centroids.shape[2],
        *([layer.outliers.centroids.shape[1]] if layer.outliers else []),
    ]
    return next((f"vectors of {vector}" for vector in vectors if vector.bit_count() != 1), None)


class VptqLinear(torch.nn.Module):  # type: ignore[misc]
    """Empty until `fill`. Few rows go through a kernel, many through a dense matrix made for the occasion.

    The kernel is the native one, or on a GPU the one in Triton (NOT YET RUN ON A GPU). Without it, or for vectors that
    it does not read, the weights are made dense once and for all.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.kind = "empty"
        self._matrix: packed.PackedMatrix | None = None
        self._kernel: Any = None
        self.on_gpu: TritonLayer | None = None

    def fill(self, layer: VptqLayer, dtype: torch.dtype, device: str = "cpu") -> None:
        """`device` is where it will be moved to afterwards; the kernels there differ in what they read."""
        entries, residual = layer.centroids.shape[1], layer.residual_centroids
        codebooks = f"VPTQ {entries}" + ("" if residual is None else f"/{residual.shape[1]}")
        for_gpu = device.startswith("cuda")
        fault = _triton_fault(layer) if for_gpu else _native_fault(layer)
        if fault is not None:
            self.kind = f"{codebooks}, expanded to dense at load ({fault})"
            self._fill_dense(layer, dtype)
        elif for_gpu:
            self.kind = f"{codebooks}, Triton kernel up to {TRITON_ROWS} rows, dense above"
            self._fill_triton(layer)
        else:
            self.kind = (
                f"{codebooks}, native kernel {packed.native_isa()} with {ACTIVATION_BITS}-bit activations "
                f"up to {KERNEL_ROWS} rows, dense above"
            )
            self._fill_native(layer)

    def _fill_dense(self, layer: VptqLayer, dtype: torch.dtype) -> None:
        self.register_buffer(
            "weight", torch.from_numpy(layout.dequantize_layout(layer)).to(dtype), persistent=False
        )
        bias = None if layer.bias is None else torch.from_numpy(layer.bias).to(dtype)
        self.register_buffer("bias", bias, persistent=False)

    def _fill_triton(self, layer: VptqLayer) -> None:
        from bitbench.features.vptq.triton_layer import TritonLayer

        self.on_gpu = TritonLayer(layer)

    def _fill_native(self, layer: VptqLayer) -> None:
        self._matrix = packed.pack_layer(layer)
        self._kernel = packed.native_packed_matrix(self._matrix)
        for number, array in enumerate(self._matrix.arrays):
            self.register_buffer(
                f"part{number}", torch.from_numpy(array), persistent=False
            )  # counted, not copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on_gpu is not None:
            return self._forward_on_gpu(x, self.on_gpu)
        if self._matrix is None:
            return functional.linear(x, self.weight, self.bias)
        if x.numel() > KERNEL_ROWS * self.in_features:
            bias = (
                None
                if self._matrix.bias is None
                else torch.from_numpy(self._matrix.bias).to(x.dtype)
            )
            return functional.linear(x, self.dense().to(x.dtype), bias)
        threads = torch.get_num_threads()
        return native_linear_product(
            self._kernel, x, self.out_features, activation_bits=ACTIVATION_BITS, threads=threads
        )

    def _forward_on_gpu(self, x: torch.Tensor, layer: "TritonLayer") -> torch.Tensor:
        if x.numel() > TRITON_ROWS * self.in_features:
            bias = None if layer.bias is None else layer.bias.to(x.dtype)
            return functional.linear(x, layer.dense().to(x.dtype), bias)
        return layer(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def dense(self) -> torch.Tensor:
        """The weights [out, in] that the kernel computes with, in single precision."""
        if self.on_gpu is not None:
            return self.on_gpu.dense()
        if self._matrix is None:
            return self.weight
        return torch.from_numpy(packed.dequantize_packed(self._matrix)).float()
