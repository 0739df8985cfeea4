"""Latent attention: the cache's writer, and decode with its metadata.

The six buffers have shapes of their own here, so that one in another's place is noticed, and hold a
fingerprint of the rows that they were filled for.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.softmax_attention import attend

_ENTRY, _RANK = 576, 512
_UNITS = 80  # compute units
_BUFFERS = (
    "work_metadata_ptrs",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


def _concat_and_cache(
    checks: Checks,
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    scale: torch.Tensor,
) -> None:
    checks.tensor("kv_c", kv_c, HALF, (None, None))
    checks.tensor("k_pe", k_pe, [kv_c.dtype], (len(kv_c), None))
    width = kv_c.shape[1] + k_pe.shape[1]
    checks.that(kv_cache_dtype == "auto", f"kv_cache_dtype {kv_cache_dtype}")
    checks.tensor("kv_cache", kv_cache, [kv_c.dtype], (None, None, width))
    checks.tensor("slot_mapping", slot_mapping, [torch.int64], (len(kv_c),))
    checks.tensor("scale", scale, [torch.float32])
    kept = slot_mapping >= 0
    entries = torch.cat((kv_c, k_pe), dim=1)[kept]
    kv_cache.flatten(0, 1)[slot_mapping[kept]] = entries


def _shapes(batch: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    sizes = ((2,), (_UNITS + 1,), (4 * batch, 8), (batch + 1,), (3 * batch, 2), (5 * batch,))
    kinds = [torch.int64] + [torch.int32] * 5
    return dict(zip(_BUFFERS, zip(sizes, kinds, strict=True), strict=True))


def _info(
    checks: Checks,
    batch_size: int,
    max_seqlen_qo: int,
    num_head_qo: int,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
    is_sparse: bool,
    fast_mode: bool,
    **rest: Any,
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    checks.on("gfx942", "gfx950")
    checks.that(num_head_qo % 8 == 0, f"{num_head_qo} heads")
    checks.that(q_dtype is torch.bfloat16 and kv_dtype is q_dtype, "bfloat16 latents alone")
    checks.that(not is_sparse and max_seqlen_qo == 1, "not modelled")
    return tuple(_shapes(batch_size).values())


def _fingerprint(*parts: Any) -> int:
    told = [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts]
    return hash(repr(told)) % 1_000_003 + 1


def _metadata(
    checks: Checks,
    seqlens_qo_indptr: torch.Tensor,
    seqlens_kv_indptr: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    num_heads_per_head_k: int,
    num_heads_k: int,
    is_causal: bool,
    page_size: int,
    **rest: Any,
) -> None:
    batch = len(seqlens_qo_indptr) - 1
    checks.tensor("seqlens_qo_indptr", seqlens_qo_indptr, [torch.int32], (batch + 1,))
    checks.tensor("seqlens_kv_indptr", seqlens_kv_indptr, [torch.int32], (batch + 1,))
    checks.tensor("kv_last_page_lens", kv_last_page_lens, [torch.int32], (batch,))
    checks.that(num_heads_k == 1, "one latent for all heads")
    kinds = {rest["dtype_q"], rest["dtype_kv"]}
    checks.that(kinds == {torch.bfloat16}, f"dtypes {kinds}")
    mark = _fingerprint(
        seqlens_qo_indptr, seqlens_kv_indptr, kv_last_page_lens, num_heads_per_head_k, page_size
    )
    for name, (shape, dtype) in _shapes(batch).items():
        checks.tensor(name, rest[name], [dtype], shape)
        rest[name].fill_(mark)


def _decode(
    checks: Checks,
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int,
    nhead_kv: int,
    sm_scale: float | None,
    logit_cap: float,
    **rest: Any,
) -> tuple[None, None]:
    checks.on("gfx942", "gfx950")
    batch = len(qo_indptr) - 1
    checks.tensor("q", q, [torch.bfloat16], (batch, None, _ENTRY))
    heads = q.shape[1]
    checks.that(heads in (8, 16, *range(32, 129, 16)), f"{heads} heads")
    checks.tensor("kv_buffer", kv_buffer, [q.dtype], (None, page_size, 1, _ENTRY))
    checks.that(page_size in (1, 64), f"pages of {page_size}")
    checks.tensor("o", o, [q.dtype], (batch, heads, _RANK))
    checks.that(nhead_kv == 1 and logit_cap <= 0 and max_seqlen_q == 1, "not modelled")
    for name, tensor, size in (
        ("qo_indptr", qo_indptr, batch + 1), ("kv_indptr", kv_indptr, batch + 1),
        ("kv_indices", kv_indices, None), ("kv_last_page_lens", kv_last_page_lens, batch),
    ):  # fmt: skip
        checks.tensor(name, tensor, [torch.int32], (size,))
    names = ("work_meta_data", *_BUFFERS[1:])
    checks.that(all(rest[name] is not None for name in names), "metadata is missing")
    mark = _fingerprint(qo_indptr, kv_indptr, kv_last_page_lens, heads, page_size)
    for name, (shape, dtype) in zip(names, _shapes(batch).values(), strict=True):
        checks.tensor(name, rest[name], [dtype], shape)
        checks.that(bool((rest[name] == mark).all()), f"{name} was not filled for these rows")
    scale = heads**-0.5 if sm_scale is None else sm_scale
    starts = kv_indptr.tolist()
    for row, last in enumerate(kv_last_page_lens.tolist()):
        pages = kv_indices[starts[row] : starts[row + 1]].long()
        if not len(pages):
            o[row] = torch.nan
            continue
        kept = kv_buffer[pages].flatten(0, 1)[: (len(pages) - 1) * page_size + last]
        o[row] = attend(q[row : row + 1], kept, kept[..., :_RANK], scale)[0].to(o.dtype)
    return None, None


RESULTS: dict[str, Any] = {
    "concat_and_cache_mla": _concat_and_cache,
    "get_mla_metadata_info_v1": _info,
    "get_mla_metadata_v1": _metadata,
    "mla_decode_fwd": _decode,
}
