# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Tiles of a matrix and of its activations: read by a pointer per row, or copied by TMA.

NVIDIA's cards from Hopper on have an engine that copies a tile by a descriptor of its tensor. It
needs neither registers for pointers nor an instruction per row, both of which are scarce with many
tokens' tiles. It copies only contiguous rows: an expert's rows, and pairs' activations in their
order, but not the tokens that pairs chose. Other cards, and tensors whose rows are not a multiple
of 16 bytes, use pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

_COPIED_BYTES = 16  # rows begin at a multiple of this many bytes


@triton.jit
def load_activations(x_desc, x_rows, real, first, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Load [M, BLOCK_K] of x from input k on: by descriptor the rows from `first` on, of which
    those after the last real one are other pairs'; else the real rows by x_rows, which point at
    input 0."""
    # Rows behind the last real one are copied, too: they are other pairs', and their results are
    # not stored.
    if x_desc is not None:
        return x_desc.load([first, k])
    else:
        mask = real[:, None]
        if K % BLOCK_K:
            mask = mask & (tl.arange(0, BLOCK_K) < K - k)[None, :]
        return tl.load(x_rows + k, mask=mask, other=0.0)


@triton.jit
def load_weights(w_desc, w_rows, expert, tile, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """[N, BLOCK_K] of an expert's W from input k on: by description a tile's rows, gates before
    ups; else by w_rows, which are at input 0."""
    if w_desc is not None:
        # w1 and w3 as one copy of two boxes: [2, ROWS, BLOCK_K] of the stack seen as [2·E, N, K].
        STACKED: tl.constexpr = w_desc.block_shape[0]
        ROWS: tl.constexpr = w_desc.block_shape[1]
        w = w_desc.load([expert * STACKED, tile * ROWS, k])
        return tl.reshape(w, (STACKED * ROWS, BLOCK_K))
    # Only if the last tile is partial: a mask on every load costs registers.
    elif K % BLOCK_K:
        return tl.load(w_rows + k, mask=(tl.arange(0, BLOCK_K) < K - k)[None, :], other=0.0)
    else:
        return tl.load(w_rows + k)


def has_tma(device: torch.device, row_bytes: int) -> bool:
    """Return whether the device copies rows of so many bytes by TMA; the interpreter does."""
    if row_bytes % _COPIED_BYTES or torch.version.hip is not None:
        return False
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (9, 0)


def row_descriptor(x: torch.Tensor, rows: int, inputs: int) -> TensorDescriptor:
    """Make a descriptor of x [P, K], in tiles of so many rows and inputs."""
    return TensorDescriptor.from_tensor(x, [rows, inputs])


def stack_descriptor(w: torch.Tensor, stacked: int, rows: int, inputs: int) -> TensorDescriptor:
    """Make a descriptor of w [E, stacked · N, K], in tiles of so many rows of each of an expert's
    matrices."""
    matrices = w.view(w.shape[0] * stacked, w.shape[1] // stacked, w.shape[2])
    return TensorDescriptor.from_tensor(matrices, [stacked, rows, inputs])
