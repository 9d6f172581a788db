"""VPTQ's product in Triton for GPUs, on the public layout as it is stored. NOT YET RUN ON A GPU.

It was checked with Triton's interpreter against `layout`, and compiled ahead of time for sm_80. It
needs torch and triton. The layer around it is in `triton_layer`.
"""
# Triton uses annotations for itself (tl.constexpr), so a kernel cannot have Python's.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl

ROW_TILE = 4  # rows of vectors that one program decodes at once, which are 4 × 8 outputs
COLUMN_TILE = 64
# These programs keep an A100 (108 multiprocessors) busy. Columns are split until there are as many.
ENOUGH_PROGRAMS = 432


@triton.jit
def multiply_segment(  # noqa: PLR0917
    x,  # [batch, …], from the first column of this segment on, in stored order, scaled
    words,  # int32 [rows, row_words]
    main,  # [entries, vector]
    residual,  # [entries, vector], or any pointer if residual_bits is 0
    partial,  # float32 [splits, batch, rows * vector]
    batch_size,
    rows,
    columns,
    row_words,
    columns_per_split,
    x_stride,
    main_bits: tl.constexpr,
    residual_bits: tl.constexpr,
    vector: tl.constexpr,
    batch_tile: tl.constexpr,  # batch_size, rounded up to a power of two
    row_tile: tl.constexpr,
    column_tile: tl.constexpr,
):
    """Multiply one tile of rows with a part of the columns. Indices are decoded once per batch."""
    row = tl.program_id(0) * row_tile + tl.arange(0, row_tile)
    split = tl.program_id(1)
    lane = tl.arange(0, vector)
    bits: tl.constexpr = main_bits + residual_bits
    batch = tl.arange(0, batch_tile)
    total = tl.zeros((batch_tile, row_tile, vector), dtype=tl.float32)
    first = split * columns_per_split
    last = tl.minimum(first + columns_per_split, columns)
    for start in range(first, last, column_tile):
        column = start + tl.arange(0, column_tile)
        inside = (row[:, None] < rows) & (column[None, :] < last)
        first_bit = column * bits
        word = row[:, None].to(tl.int64) * row_words + (first_bit // 32)[None, :]
        low = tl.load(words + word, mask=inside, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
        spills = inside & ((first_bit % 32 + bits) > 32)[None, :]
        high = (
            tl.load(words + word + 1, mask=spills, other=0)
            .to(tl.uint32, bitcast=True)
            .to(tl.uint64)
        )
        shift = (first_bit % 32).to(tl.uint64)
        index = ((high << 32 | low) >> shift[None, :]).to(tl.int32)
        entry = (index & ((1 << main_bits) - 1))[:, :, None] * vector + lane[None, None, :]
        weight = tl.load(main + entry, mask=inside[:, :, None], other=0.0).to(tl.float32)
        if residual_bits > 0:
            second = index >> main_bits & ((1 << residual_bits) - 1)
            entry = second[:, :, None] * vector + lane[None, None, :]
            weight += tl.load(residual + entry, mask=inside[:, :, None], other=0.0).to(tl.float32)
        factor = tl.load(
            x + batch[:, None].to(tl.int64) * x_stride + column[None, :],
            mask=(batch < batch_size)[:, None] & (column < last)[None, :],
            other=0.0,
        ).to(tl.float32)
        total += tl.sum(weight[None, :, :, :] * factor[:, None, :, None], axis=2)
    output = row[None, :, None] * vector + lane[None, None, :]
    position = (split * batch_size + batch)[:, None, None].to(tl.int64) * (rows * vector) + output
    tl.store(
        partial + position,
        total,
        mask=(batch < batch_size)[:, None, None] & (row < rows)[None, :, None],
    )


def multiply_triton(  # noqa: PLR0917
    x: torch.Tensor,
    words: torch.Tensor,
    main: torch.Tensor,
    residual: torch.Tensor | None,
    columns: int,
    main_bits: int,
    residual_bits: int,
) -> torch.Tensor:
    """Return the product of x [batch, columns …] with the words as float32 [batch, rows * vector].

    Each row of x must be dense. `columns` is the number of columns in the words.
    """
    batch = x.shape[0]
    rows, row_words = words.shape
    vector = main.shape[1]
    row_programs = triton.cdiv(rows, ROW_TILE)
    enough_splits = triton.cdiv(ENOUGH_PROGRAMS, row_programs)
    splits = max(1, min(enough_splits, triton.cdiv(columns, COLUMN_TILE)))
    columns_per_split = COLUMN_TILE * triton.cdiv(columns, COLUMN_TILE * splits)
    if residual is None:
        residual = main  # any pointer: the kernel does not read it
    partial = torch.empty((splits, batch, rows * vector), dtype=torch.float32, device=x.device)
    multiply_segment[(row_programs, splits)](
        x,
        words,
        main,
        residual,
        partial,
        batch,
        rows,
        columns,
        row_words,
        columns_per_split,
        x.stride(0),
        main_bits=main_bits,
        residual_bits=residual_bits,
        vector=vector,
        batch_tile=triton.next_power_of_2(batch),
        row_tile=ROW_TILE,
        column_tile=COLUMN_TILE,
    )
    return partial[0] if splits == 1 else partial.sum(0)
