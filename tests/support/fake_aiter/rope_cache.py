"""Rope, and the write to the paged cache in the layouts of AITER's decode kernels.

x elements are 16 bytes. K [blocks, KVH, D / x, size, x]; V [blocks, KVH, D, size], or in assembly's
order [blocks, KVH, size / x, D, x], which `reshape_and_cache` writes into the shape of the other.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.quant import quantised


def vector_of(cache: torch.Tensor) -> int:
    return 16 // cache.element_size()


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] in float32; cos, sin [T, D / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _check_positions(
    checks: Checks, name: str, positions: torch.Tensor, table: torch.Tensor, shape: tuple[int, ...]
) -> None:
    checks.tensor(name, positions, [torch.int64], shape)
    inside = positions.numel() == 0 or (
        int(positions.min()) >= 0 and int(positions.max()) < table.shape[0]
    )
    checks.that(inside, "a position is beyond the table")


def _rope_2c(
    checks: Checks,
    input_x: torch.Tensor,
    input_y: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    checks.that(rotate_style in (0, 1), f"rotate_style {rotate_style}")
    checks.that(reuse_freqs_front_part, "tables of half a head are reused")
    dim = 2 * cos.shape[-1]
    for name, x in (("input_x", input_x), ("input_y", input_y)):
        checks.tensor(name, x, HALF, (*positions.shape, None, None), strided=True)
        checks.that(x.shape[-1] == dim, f"heads of {x.shape[-1]} and tables for {dim}")
    for name, table in (("cos", cos), ("sin", sin)):
        checks.tensor(name, table, [input_x.dtype], (cos.shape[0], 1, 1, dim // 2))
    _check_positions(checks, "positions", positions, cos, input_x.shape[:2])
    at = positions.flatten()
    for x in (input_x, input_y):
        flat = x.flatten(0, 1)
        if rotate_style == 1:
            pairs = flat.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            turned = _rotated(pairs, cos[at, 0, 0], sin[at, 0, 0])
            turned = turned.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        else:
            turned = _rotated(flat, cos[at, 0, 0], sin[at, 0, 0])
        x.copy_(turned.view(x.shape))


def check_blocks(checks: Checks, k: torch.Tensor, v: torch.Tensor, v_shape: str) -> None:
    blocks, heads, chunks, size, x = _five(checks, "k_cache", k)
    dim = chunks * x
    wanted = {
        "plain": (blocks, heads, dim, size),
        "tiled": (blocks, heads, size // x, dim, x),
    }[v_shape]
    checks.tensor("v_cache", v, [k.dtype], wanted)


def _five(checks: Checks, name: str, k: torch.Tensor) -> tuple[int, ...]:
    checks.that(k.dim() == 5, f"{name} has {k.dim()} dimensions, and 5 are wanted")
    checks.tensor(name, k, [k.dtype], (None, None, None, None, vector_of(k)))
    checks.that(k.shape[3] % vector_of(k) == 0, "a block is no whole vectors")
    return tuple(k.shape)


def _check_slots(checks: Checks, slots: torch.Tensor, k: torch.Tensor, tokens: int) -> None:
    checks.tensor("slot_mapping", slots, [torch.int64], (tokens,))
    beyond = tokens and int(slots.max()) >= k.shape[0] * k.shape[3]
    checks.that(not beyond, "a slot is beyond the cache")


def _store(
    key: torch.Tensor,
    value: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """key, value [T, KVH, D] in the caches' dtype; v in assembly's order. Slots below 0 are
    skipped."""
    kept = slots >= 0
    block, offset = slots[kept] // k.shape[3], slots[kept] % k.shape[3]
    x = vector_of(k)
    key, value, k, v = (_bits(tensor) for tensor in (key[kept], value[kept], k, v))
    k[block, :, :, offset] = key.unflatten(-1, (-1, x))
    v[block, :, offset // x, :, offset % x] = value


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _check_heads(checks: Checks, key: torch.Tensor, value: torch.Tensor, k: torch.Tensor) -> None:
    shape = (None, k.shape[1], k.shape[2] * k.shape[4])
    checks.tensor("key", key, HALF, shape)
    checks.tensor("value", value, [key.dtype], key.shape)


def _reshape_and_cache(
    checks: Checks,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    asm_layout: bool,
) -> None:
    check_blocks(checks, key_cache, value_cache, "plain")
    _check_heads(checks, key, value, key_cache)
    _check_slots(checks, slot_mapping, key_cache, len(key))
    checks.that(kv_cache_dtype == "auto", "the double writes plain caches here")
    checks.that(key_cache.dtype is key.dtype, f"the cache is {key_cache.dtype}")
    checks.that(asm_layout, "the double reads assembly's order alone")
    blocks, heads, dim, size = value_cache.shape
    x = vector_of(value_cache)
    tiled = value_cache.view(blocks, heads, size // x, dim, x)
    _store(key, value, key_cache, tiled, slot_mapping)


def _store_quantised(
    checks: Checks,
    key: torch.Tensor,
    value: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
) -> None:
    """caches: k, and v in assembly's order; scales [blocks, KVH, size] of each."""
    k, v = caches
    checks.that(k.dtype in (checks.fp8, torch.int8), f"the cache is {k.dtype}")
    for name, scale in zip(("k_scale", "v_scale"), scales, strict=True):
        checks.tensor(name, scale, [torch.float32], (k.shape[0], k.shape[1], k.shape[3]))
    (key_codes, key_scale), (value_codes, value_scale) = (
        quantised(x.float(), k.dtype) for x in (key, value)
    )
    _store(key_codes, value_codes, k, v, slots)
    kept = slots >= 0
    block, offset = slots[kept] // k.shape[3], slots[kept] % k.shape[3]
    scales[0][block, :, offset] = key_scale[kept].squeeze(-1)
    scales[1][block, :, offset] = value_scale[kept].squeeze(-1)


def _with_pertoken_quant(
    checks: Checks,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_dequant_scales: torch.Tensor,
    v_dequant_scales: torch.Tensor,
    slot_mapping: torch.Tensor,
    asm_layout: bool,
) -> None:
    check_blocks(checks, key_cache, value_cache, "plain")
    _check_heads(checks, key, value, key_cache)
    _check_slots(checks, slot_mapping, key_cache, len(key))
    checks.that(asm_layout, "the double reads assembly's order alone")
    blocks, heads, dim, size = value_cache.shape
    x = vector_of(value_cache)
    tiled = value_cache.view(blocks, heads, size // x, dim, x)
    scales = (k_dequant_scales, v_dequant_scales)
    _store_quantised(checks, key, value, (key_cache, tiled), scales, slot_mapping)


def _normed(
    x: torch.Tensor, weight: torch.Tensor, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return _rotated(wide, cos, sin)


def _fused(
    checks: Checks,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    qw: torch.Tensor,
    kw: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
    pos_ids: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    qkv: torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
) -> None:
    checks.that(head_dim in (64, 128, 256), f"heads of {head_dim}")
    checks.that(is_neox_style, "the double rotates halves")
    checks.that((qkv is None) != (q is None), "either qkv or q, k and v")
    if qkv is not None:
        width = (num_heads_q + num_heads_k + num_heads_v) * head_dim
        checks.tensor("qkv", qkv, HALF, (None, width))
        heads = qkv.view(len(qkv), -1, head_dim)
        q, k, v = heads.split([num_heads_q, num_heads_k, num_heads_v], dim=1)
    else:
        assert q is not None
        assert k is not None
        assert v is not None
        for name, x, count in (("q", q, num_heads_q), ("k", k, num_heads_k), ("v", v, num_heads_v)):
            checks.tensor(name, x, HALF)
            checks.that(x.numel() == len(q) * count * head_dim, f"{name} has another size")
        q, k, v = (x.view(len(x), -1, head_dim) for x in (q, k, v))
    for name, weight in (("qw", qw), ("kw", kw)):
        checks.tensor(name, weight, [q.dtype], (head_dim,))
    checks.tensor("cos_sin_cache", cos_sin_cache, [q.dtype], (None, head_dim))
    _check_positions(checks, "pos_ids", pos_ids, cos_sin_cache, (len(q),))
    _check_slots(checks, slot_mapping, k_cache, len(q))
    check_blocks(checks, k_cache, v_cache, "tiled" if v_cache.dim() == 5 else "plain")
    checks.that(v_cache.dim() == 5, "the double reads assembly's order alone")
    cos, sin = cos_sin_cache[pos_ids].chunk(2, dim=-1)
    q.copy_(_normed(q, qw, eps, cos, sin))
    k.copy_(_normed(k, kw, eps, cos, sin))
    if kv_cache_dtype == "fp8":
        scales = (k_scale, v_scale)
        _store_quantised(checks, k, v, (k_cache, v_cache), scales, slot_mapping)
        return
    checks.that(kv_cache_dtype == "auto", f"kv_cache_dtype {kv_cache_dtype}")
    checks.that(k_cache.dtype is q.dtype, f"the cache is {k_cache.dtype}")
    _store(k, v, k_cache, v_cache, slot_mapping)


RESULTS: dict[str, Any] = {
    "rope_cached_positions_2c_fwd_inplace": _rope_2c,
    "reshape_and_cache": _reshape_and_cache,
    "reshape_and_cache_with_pertoken_quant": _with_pertoken_quant,
    "fused_qk_norm_rope_cache_quant_shuffle": _fused,
}
