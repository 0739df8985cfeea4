# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products whose sums are taken in one order, however many rows a step has.

A product is summed front to back over its inputs. A matrix that ranks divide by its inputs has them
in leaves, each summed so, which are added as a tree: ((0 + 1) + (2 + 3)). A rank has whole leaves,
and the sum over ranks is the tree's upper levels: one rank, two and four then give the same bits.
A program computes one leaf of a tile; the next norm adds them, or a kernel does. A matrix that is
not divided so may be the vendor's library's to multiply (library.py).

On NVIDIA's cards tiles are chosen by rows, but of 64 at least: they are then multiplied by the same
instruction, which adds up alike for tiles of any size (tests/engine/ops/parity/
test_batch_invariant.py shows it). On AMD's the instruction is said, and the tile is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.batch_invariant.library import (
    library_linear,
    note_sizes_alike,
    sizes_alike,
)
from atom.model_ops.backends.triton_ops.norms import sum_in_tree
from atom.model_ops.tree_sums import leaves_of
from atom.model_ops.values import LinearWeight, Pending, Stream

# Leaves consist of whole multiples of these inputs.
_LEAF_MULTIPLE = 64
_SUM_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, outputs and inputs of a program's tile, its warps and stages."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


# None has fewer rows than 64, which take another instruction. A deep one is for few rows of a
# matrix without leaves, which has few programs.
_FEW_ROWS = 64
_FEW_ROWS_TILE, _DEEP_TILE = Tile(64, 64, 64, 4, 4), Tile(64, 64, 128, 4, 4)
_LARGE_TILE = Tile(128, 128, 64, 8, 3)
_AMD_TILE = Tile(64, 64, 64, 4, 2)
# Rows from which the library is as fast, which has to have them filled up to more.
_LIBRARY_ROWS = 33
# Rows whose leaves are kept at a time.
_MOST_ROWS = 1024


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, rows, N, K, x_row, x_k, w_n, w_k, out_row,
    x_batch, w_batch, out_batch, out_leaf,
    LEAF_K: tl.constexpr, BATCH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Multiply x [B, rows, K] by W [B, N, K] transposed, by strides: one leaf of LEAF_K inputs,
    written to its place in out [leaves, B, rows, N]."""
    tiles = tl.cdiv(rows, BLOCK_M)
    # Tiles of rows first: neighbours share their reads of a matrix.
    tile_m, tile_n = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, leaf = tl.program_id(1) % BATCH, tl.program_id(1) // BATCH
    m, n = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    real_m, real_n = (m < rows)[:, None], (n < N)[:, None]
    x_rows = x_ptr + batch.to(tl.int64) * x_batch + m.to(tl.int64)[:, None] * x_row
    w_rows = w_ptr + batch.to(tl.int64) * w_batch + n.to(tl.int64)[:, None] * w_n
    first = leaf * LEAF_K
    end = tl.minimum(first + LEAF_K, K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(first, end, BLOCK_K):
        k = (start + inner)[None, :]
        x_mask, w_mask = real_m, real_n
        if not EVEN_K:
            x_mask, w_mask = x_mask & (k < end), w_mask & (k < end)
        x = tl.load(x_rows + k * x_k, mask=x_mask, other=0.0)
        if EVEN_N and EVEN_K:
            w = tl.load(w_rows + k * w_k)
        else:
            w = tl.load(w_rows + k * w_k, mask=w_mask, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    if bias_ptr is not None:
        # Within the first leaf, so that ranks' sums, the first with the bias, form the same tree.
        bias_end = tl.where(leaf == 0, N, 0)
        acc += tl.load(bias_ptr + n, mask=n < bias_end, other=0.0).to(tl.float32)[None, :]
    out_at = out_ptr + leaf.to(tl.int64) * out_leaf + batch.to(tl.int64) * out_batch
    out_at += m.to(tl.int64)[:, None] * out_row + n[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=real_m & (n < N)[None, :])


@triton.jit(do_not_specialize=["size"])
def _sum_kernel(parts_ptr, out_ptr, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = sum_in_tree(parts_ptr, at, size, inside, PARTS)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


def prepare_linear(w: LinearWeight) -> LinearWeight:
    """Leave a matrix as the checkpoint has it, and try the library with it."""
    if w.ranks is None and w.inputs % 2 == 0 and w.data.is_cuda:
        note_sizes_alike(w, _whole_or_halves)
    return w


def _whole_or_halves(x: torch.Tensor, w: LinearWeight, *, in_two: bool) -> torch.Tensor:
    out = torch.empty((x.shape[0], w.outputs), dtype=x.dtype, device=x.device)
    if not in_two:
        multiply(x[None], w.data[None], out[None, None], w.bias)
        return out
    parts = torch.empty((2, *out.shape), dtype=torch.float32, device=x.device)
    multiply(x[None], w.data[None], parts[:, None], w.bias)
    sum_parts(parts, out)
    return out


def prepare_experts(w: LinearWeight) -> LinearWeight:
    """Leave a stack as the checkpoint has it."""
    return w


def add(stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
    if leaves_of(w, _LEAF_MULTIPLE) == 1 or x.shape[0] > _MOST_ROWS:
        return stream.plus(linear(x, w))
    return Stream(stream.residual, linear_parts(x, w), Pending.PARTS)


def linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    if x.shape[0] >= _LIBRARY_ROWS and w.ranks is None and (sizes := sizes_alike(w)):
        found = [library_linear(some, w, sizes) for some in x.split(sizes[-1])]
        return found[0] if len(found) == 1 else torch.cat(found)
    out = torch.empty((x.shape[0], w.outputs), dtype=x.dtype, device=x.device)
    if leaves_of(w, _LEAF_MULTIPLE) == 1:
        multiply(x[None], w.data[None], out[None, None], w.bias, deep=w.ranks is None)
        return out
    for some, into in zip(x.split(_MOST_ROWS), out.split(_MOST_ROWS), strict=True):
        sum_parts(linear_parts(some, w), into)
    return out


def linear_parts(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Compute the product's leaves [leaves, T, out] float32, with the bias in the first."""
    size = (leaves_of(w, _LEAF_MULTIPLE), x.shape[0], w.outputs)
    parts = torch.empty(size, dtype=torch.float32, device=x.device)
    multiply(x[None], w.data[None], parts[:, None], w.bias)
    return parts


def sum_parts(parts: torch.Tensor, out: torch.Tensor) -> None:
    """Add up parts [1, 2 or 4, ..] float32 into `out`."""
    _sum_kernel[(triton.cdiv(out.numel(), _SUM_BLOCK),)](
        parts, out, out.numel(), PARTS=parts.shape[0], BLOCK=_SUM_BLOCK, num_warps=4
    )


def multiply(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    deep: bool = False,
) -> None:
    """Write x [B, T, in] times each w [B, out, in], transposed, into out [leaves, B, T, out]: each
    leaf's product, a bias within the first. Any strides but of out's last
    dimension. deep: see _DEEP_TILE."""
    batch, rows, inner = x.shape
    outputs, leaves = w.shape[1], out.shape[0]
    if rows == 0:
        return
    tile = _tile(rows, deep=deep)
    tiles = triton.cdiv(rows, tile.block_m) * triton.cdiv(outputs, tile.block_n)
    # An option of AMD's compiler alone: the instruction, whose inputs are summed at once.
    instruction = {"matrix_instr_nonkdim": 16} if torch.version.hip else {}
    _product_kernel[(tiles, batch * leaves)](
        x, w, bias, out, rows, outputs, inner, x.stride(1), x.stride(2), w.stride(1), w.stride(2),
        out.stride(2), x.stride(0), w.stride(0), out.stride(1), out.stride(0),
        LEAF_K=inner // leaves, BATCH=batch,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k,
        EVEN_N=outputs % tile.block_n == 0, EVEN_K=inner // leaves % tile.block_k == 0,
        num_warps=tile.num_warps, num_stages=tile.num_stages, **instruction,
    )  # fmt: skip


def _tile(rows: int, *, deep: bool) -> Tile:
    if torch.version.hip:
        return _AMD_TILE
    if rows > _FEW_ROWS:
        return _LARGE_TILE
    return _DEEP_TILE if deep else _FEW_ROWS_TILE
