"""Paged decode: by assembly, and by Gluon. A row without context is garbage: here NaN."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.rope_cache import check_blocks, vector_of
from tests.support.fake_aiter.softmax_attention import attend

_SPLITS = 3


def _check_rows(
    checks: Checks,
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
) -> int:
    """What both have in common; query heads of a KV head."""
    checks.on("gfx942", "gfx950")
    checks.tensor("query", query, HALF, (None, None, k.shape[2] * k.shape[4]))
    check_blocks(checks, k, v, "tiled")
    heads, kv_heads = query.shape[1], k.shape[1]
    checks.that(heads % kv_heads == 0, f"{heads} heads of {kv_heads}")
    rows = query.shape[0]
    checks.tensor("block_tables", block_tables, [torch.int32], (rows, None), strided=True)
    checks.tensor("context_lens", context_lens, [torch.int32], (rows,), strided=True)
    room = block_tables.shape[1] * k.shape[3]
    checks.that(not rows or int(context_lens.max()) <= room, "a context is longer than its table")
    return heads // kv_heads


def _keys(
    cache: torch.Tensor,
    scale: torch.Tensor | None,
    blocks: torch.Tensor,
    length: int,
    *,
    is_v: bool,
) -> torch.Tensor:
    """[length, KVH, D] float32 of a row's blocks."""
    x = vector_of(cache)
    found = cache.view(torch.uint8)[blocks].view(cache.dtype) if x == 16 else cache[blocks]
    # k [n, KVH, D / x, S, x], v [n, KVH, S / x, D, x] → [n, S, KVH, D]
    order = (0, 2, 4, 1, 3) if is_v else (0, 3, 1, 2, 4)
    wide = found.float().permute(order)
    wide = wide.flatten(1, 2) if is_v else wide.flatten(3)
    flat = wide.flatten(0, 1)[:length]
    if scale is None:
        return flat
    return flat * scale[blocks].transpose(1, 2).flatten(0, 1)[:length].unsqueeze(-1)


def _decode(
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    **attention: Any,
) -> None:
    size = caches[0].shape[3]
    for row, length in enumerate(context_lens.tolist()):
        if length == 0:
            out[row] = torch.nan
            continue
        blocks = block_tables[row, : -(-length // size)].long()
        k, v = (
            _keys(cache, own, blocks, length, is_v=is_v)
            for cache, own, is_v in zip(caches, scales, (False, True), strict=True)
        )
        out[row] = attend(query[row : row + 1], k, v, scale, **attention)[0].to(out.dtype)


def _pa_fwd_asm(
    checks: Checks,
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables_stride0: int,
    max_qlen: int,
    K_QScale: torch.Tensor | None,
    V_QScale: torch.Tensor | None,
    out_: torch.Tensor | None,
    qo_indptr: torch.Tensor | None,
    high_precision: int | None,
    kernelName: str | None,
) -> torch.Tensor:
    group = _check_rows(checks, Q, K, V, block_tables, context_lens)
    checks.that(Q.shape[2] == 128, f"heads of {Q.shape[2]}")
    checks.that(group <= 16, f"{group} query heads of a KV head")
    checks.that(K.shape[3] == 16, f"blocks of {K.shape[3]}")
    checks.that(max_qlen == 1 and qo_indptr is None, "the double decodes one token a row")
    checks.that(block_tables_stride0 == block_tables.stride(0), "another stride of block_tables")
    eight = K.element_size() == 1
    checks.that(
        K.dtype in (checks.fp8, torch.int8) if eight else K.dtype is Q.dtype,
        f"queries {Q.dtype} and a cache of {K.dtype}",
    )
    for name, scale in (("K_QScale", K_QScale), ("V_QScale", V_QScale)):
        checks.that(
            (scale is not None) == eight, f"{name}: scales belong to 8 bits, and only there"
        )
        if scale is not None:
            checks.tensor(name, scale, [torch.float32], (K.shape[0], K.shape[1], K.shape[3]))
    out = torch.empty_like(Q) if out_ is None else out_
    checks.tensor("out_", out, [Q.dtype], Q.shape)
    _decode(Q, (K, V), (K_QScale, V_QScale), block_tables, context_lens, out, 128**-0.5)
    return out


def _recommended_splits(
    checks: Checks, num_sequences: int, num_kv_heads: int, split_kv_blocks: int = 1
) -> int:
    return _SPLITS


def _gluon(
    checks: Checks,
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    context_lengths: torch.Tensor,
    block_tables: torch.Tensor,
    softmax_scale: float,
    query_length: int,
    max_context_partition_num: int,
    context_partition_size: int,
    compute_type: torch.dtype,
    query_scale: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
    exp_sums: torch.Tensor | None,
    max_logits: torch.Tensor | None,
    temporary_output: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    sliding_window: int,
    ps: bool,
) -> None:
    group = _check_rows(checks, query, key_cache, value_cache, block_tables, context_lengths)
    checks.that(key_cache.shape[3] in (16, 64, 1024), f"blocks of {key_cache.shape[3]}")
    checks.that(query_length == 1 and group <= 64, f"{group} query heads of a KV head")
    checks.that(key_cache.dtype is query.dtype, f"a cache of {key_cache.dtype}")
    checks.that(compute_type is query.dtype, f"computes in {compute_type}")
    none = query_scale is None and key_scale is None and value_scale is None
    checks.that(none and alibi_slopes is None, "plain caches alone")
    checks.that(ps, "without ps the splits are others")
    checks.that(max_context_partition_num == _SPLITS, "splits are not the recommended ones")
    checks.that(context_partition_size == 256, f"partitions of {context_partition_size}")
    partial = (len(query), key_cache.shape[1], _SPLITS, group)
    for name, scratch in (("exp_sums", exp_sums), ("max_logits", max_logits)):
        checks.that(scratch is not None, f"{name} is missing")
        assert scratch is not None
        checks.tensor(name, scratch, [torch.float32], partial)
    checks.that(temporary_output is not None, "temporary_output is missing")
    assert temporary_output is not None
    checks.tensor("temporary_output", temporary_output, [query.dtype], (*partial, query.shape[2]))
    checks.tensor("output", output, [query.dtype], query.shape)
    if sinks is not None:
        checks.tensor("sinks", sinks, [torch.float32], (query.shape[1],))
    _decode(
        query, (key_cache, value_cache), (None, None), block_tables, context_lengths, output,
        softmax_scale, window=sliding_window, sinks=sinks,
    )  # fmt: skip


RESULTS = {
    "pa_fwd_asm": _pa_fwd_asm,
    "get_recommended_splits": _recommended_splits,
    "pa_decode_gluon": _gluon,
}
