"""An fp8 cache of latents: a scale for each token, rotated keys in 16 bits, and what attends."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.index_values import IndexCache
from atom.model_ops.quantised.cached_heads import quantise_heads
from atom.model_ops.quantised.cached_latents import gather_entries, gather_index_keys
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, NormWeight, Rotary
from atom.utils.device import native_fp8
from tests.engine.ops.inputs import assert_rows_agree
from tests.engine.ops.mla_inputs import ODD, REAL, SMALL, LatentCase, latent_case
from tests.engine.ops.parity.attention.test_sparse_mla import (
    INDEX,
    assert_same_slots,
    index_case,
    random_slots,
    with_slots,
)

gpu = pytest.mark.gpu
# A step of e4m3 is 1/8 to 1/16 of a number, and Triton's interpreter loses the carry of a mantissa
# that is rounded up, which halves a number now and then.
ROUNDED = 0.15 if os.environ.get("TRITON_INTERPRET") == "1" else 0.04
ROWS = [(1, 1), (17, 1), (100, 1), (5, 5), (40, 40), (90, 17)]
SHAPES = [SMALL, ODD, pytest.param(REAL, marks=gpu)]
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]


@pytest.fixture(autouse=True)
def _leave_to_others(backend: Backend) -> None:
    case = OpCase(dtype=torch.float32, kv_dtype=torch.float8_e4m3fn)
    for reason in backend.reasons_against("mla_attention", case):
        pytest.skip(f"{backend.name}: {reason}")


def codes_of(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [N, S, D] in fp8 with their scales; rows of NaN keep it, and so do their scales."""
    dtype = native_fp8(rows.device)
    assert dtype is not None
    codes, scale = quantise_heads(rows.float().nan_to_num(0.0), dtype)
    unowned = rows.float().isnan().any(-1)
    codes = torch.where(unowned[..., None], torch.nan, codes.float()).to(dtype)
    return codes, torch.where(unowned, torch.nan, scale)


def in_fp8(case: LatentCase) -> LatentCache:
    latents, keys = case.cache.entries.split([case.shape.kv_rank, case.shape.rope_dim], dim=-1)
    codes, scale = codes_of(latents)
    return LatentCache(codes, keys.to(torch.bfloat16).contiguous(), scale)


def numbers_of(cache: LatentCache) -> LatentCache:
    """A plain cache of the numbers that one in fp8 holds, zeros in slots of no row."""
    everything = torch.arange(cache.num_blocks, device=cache.entries.device)
    return LatentCache(gather_entries(cache, everything, torch.float64).nan_to_num(0.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_over_the_numbers_of_the_cache(
    backend: Backend, reference: Backend, device: torch.device, shape: LatentShape,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = latent_case(ROWS, device=device, dtype=dtype, shape=shape)
    cache = in_fp8(case)
    tokens, _, up, _, step = case.arguments
    out = backend.operations["mla_attention"](tokens, shape, up, cache, step)
    tokens, _, up, plain, _ = case.doubled
    attend = reference.operations["mla_attention"]
    assert_rows_agree(out, attend(tokens, shape, up, numbers_of(cache), step), dtype, slack=2)
    expected = attend(tokens, shape, up, plain, step)
    assert (out.double() - expected).norm() / expected.norm() < 0.06


@pytest.mark.parametrize("count", [9, 600])
def test_attention_to_slots_is_that_over_the_numbers_of_the_cache(
    backend: Backend, reference: Backend, device: torch.device, count: int
) -> None:
    case = latent_case([(700, 1), (60, 9)], device=device, dtype=torch.float32)
    cache, selected = in_fp8(case), random_slots(case, count)
    tokens, shape, up, _, _ = case.arguments
    attend = "sparse_mla_attention"
    out = backend.operations[attend](tokens, shape, up, cache, selected)
    tokens, _, up, _, _ = case.doubled
    expected = reference.operations[attend](tokens, shape, up, numbers_of(cache), selected)
    assert_rows_agree(out, expected, torch.float32, slack=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_token_has_its_own_scale_and_a_key_in_16_bits(
    backend: Backend, reference: Backend, device: torch.device, shape: LatentShape,
    dtype: torch.dtype, takes_padding: bool,
) -> None:  # fmt: skip
    count, blocks, size = 9, 8, 16
    width = shape.num_heads * shape.head_dim
    projected = torch.randn(count, width + shape.entry_dim, device=device).to(dtype)
    # A norm's weight of any size, and keys of any size beside it.
    factors = torch.logspace(-3, 3, count, device=device)[:, None]
    projected[:, -shape.rope_dim :] *= factors.to(dtype)
    norm = NormWeight(30 * torch.randn(shape.kv_rank, device=device).to(dtype), 1e-6)
    angles = torch.rand(64, shape.rope_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    rotary = Rotary(cos_sin, torch.randint(0, 64, (count,), device=device), None, norm)
    slots = torch.randperm(blocks * size, device=device)[:count]
    padding = torch.arange(count, device=device) % 4 == (3 if takes_padding else -1)
    fp8 = native_fp8(device)
    assert fp8 is not None
    cache = LatentCache(
        torch.zeros(blocks, size, shape.kv_rank, device=device).to(fp8),
        torch.zeros(blocks, size, shape.rope_dim, dtype=torch.bfloat16, device=device),
        torch.full((blocks, size), 7.0, device=device),
    )
    plain = LatentCache(torch.zeros(blocks, size, shape.entry_dim, dtype=dtype, device=device))

    def stored(by: Backend, into: LatentCache, slots: torch.Tensor) -> LatentTokens:
        q, own = projected.clone().split([width, shape.entry_dim], dim=1)
        given = LatentTokens(q.unflatten(1, (shape.num_heads, -1)), own)
        found: LatentTokens = by.operations["mla_rope_store"](given, shape, rotary, into, slots)
        return found

    expected = stored(reference, plain, slots)
    found = stored(backend, cache, torch.where(padding, -1, slots))
    assert_rows_agree(found.q, expected.q, dtype, slack=1.5)
    kept = slots[~padding]
    held = gather_entries(cache, kept, torch.float32, slots=True)
    assert_rows_agree(found.entries[~padding], held, dtype)
    wanted = expected.entries[~padding].float()
    for part, bound in ((slice(shape.kv_rank), ROUNDED), (slice(shape.kv_rank, None), 0.012)):
        error = (held - wanted)[:, part].norm(dim=-1) / wanted[:, part].norm(dim=-1)
        assert error.max() < bound
    assert cache.scale is not None
    largest = wanted[:, : shape.kv_rank].abs().amax(-1)
    scale = cache.scale.flatten()[kept]
    # The largest number is the norm's, which two backends may round to neighbours, twice.
    limit = torch.finfo(fp8).max
    torch.testing.assert_close(scale, largest / limit, rtol=4 * torch.finfo(dtype).eps, atol=0)
    untouched = torch.ones(blocks * size, dtype=torch.bool, device=device)
    untouched[kept] = False
    assert (cache.scale.flatten()[untouched] == 7.0).all(), "padding stores nothing"


@pytest.mark.parametrize("rows", [[(8, 1), (40, 1)], [(20, 8)]], ids=["decodes", "chunk"])
def test_an_indexer_scores_the_keys_that_its_cache_holds(
    backend: Backend, reference: Backend, device: torch.device, rows: list[tuple[int, int]]
) -> None:
    latent = with_slots(latent_case(rows, device=device, dtype=torch.float32))
    case, slots = index_case(latent, INDEX, whole=False), latent.step.slot_mapping
    unowned = case.cache.keys.flatten(0, 1).isnan().any(-1).nonzero()[-1]
    codes, scale = codes_of(case.cache.keys)
    case, plain = replace(case, cache=IndexCache(codes, scale)), case
    found = case.selected(backend)
    everything = torch.arange(codes.shape[0] * codes.shape[1], device=device)
    held = gather_index_keys(case.cache, everything, torch.float32).view(codes.shape)
    plain.selected(reference)
    stored, wanted = (keys.flatten(0, 1)[slots] for keys in (held, plain.cache.keys))
    assert ((stored - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max() < ROUNDED
    # Once more over the numbers that are held, with new keys out of the way.
    aside = replace(case.step, slot_mapping=unowned.expand_as(slots))
    again = replace(case, cache=IndexCache(held), step=aside)
    assert_same_slots(found, again.selected(reference))
