"""An fp8 KV cache: what is stored, with a scale per token and head, and attention over it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.quantised.cached_heads import gather_heads, quantise_heads
from atom.model_ops.values import AttentionShape, LayerCache, NormWeight, Rotary
from atom.sizing.mask_rule import sliding_window
from atom.utils.device import native_fp8
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, in_runs, paged_case

# A step of e4m3 is 1/8 to 1/16 of a number, and Triton's interpreter loses the carry of a mantissa
# that is rounded up, which halves a number now and then.
ROUNDED = 0.15 if os.environ.get("TRITON_INTERPRET") == "1" else 0.04
ROWS = [(1, 1), (17, 1), (100, 1), (5, 5), (40, 40), (33, 2), (90, 17)]


def in_fp8(case: PagedCase) -> LayerCache:
    """The case's cache in fp8; slots of no row hold NaN, and so do their scales."""
    dtype = native_fp8(case.q.device)
    assert dtype is not None
    tensors = []
    for plain in (case.cache.k, case.cache.v):
        codes, scale = quantise_heads(plain.float().flatten(0, 1).nan_to_num(0.0), dtype)
        unowned = plain.float().flatten(0, 1).isnan().any(-1)
        codes = torch.where(unowned[..., None], torch.nan, codes.float()).to(dtype)
        scale = torch.where(unowned, torch.nan, scale)
        tensors.append((codes.view(plain.shape), scale.view(plain.shape[:-1])))
    (k, k_scale), (v, v_scale) = tensors
    return LayerCache(k, v, k_scale, v_scale)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize(("window", "head_dim"), [(None, 32), (20, 32), (None, 80)])
def test_attention_is_that_over_the_numbers_of_the_cache(
    backend: Backend, reference: Backend, device: torch.device, dtype: torch.dtype,
    window: int | None, head_dim: int,
) -> None:  # fmt: skip
    case = paged_case(
        ROWS, device=device, dtype=dtype, mask=sliding_window(window), head_dim=head_dim
    )
    cache = in_fp8(case)
    out = backend.operations["paged_attention"](case.q.clone(), case.shape, cache, case.step)
    everything = torch.arange(cache.num_blocks, device=device)
    k, v = gather_heads(cache, everything, torch.float64)
    numbers = LayerCache(k.nan_to_num(0.0), v.nan_to_num(0.0))
    expected = reference.operations["paged_attention"](
        case.q.double(), case.shape, numbers, case.step
    )
    assert_rows_agree(out, expected, dtype)
    plain = reference.operations["paged_attention"](*case.doubled)
    assert (out.double() - plain).norm() / plain.norm() < 0.06


@pytest.mark.parametrize(("window", "head_dim"), [(None, 32), (20, 80)])
def test_rows_of_one_sequence_attend_over_the_same_numbers(
    backend: Backend, device: torch.device, window: int | None, head_dim: int
) -> None:
    case = paged_case(
        [(100, 4), (33, 2)],
        device=device,
        dtype=torch.float32,
        mask=sliding_window(window),
        head_dim=head_dim,
    )
    cache, together = in_fp8(case), in_runs(case, longest=4)
    attend = backend.operations["paged_attention"]
    out = attend(case.q.clone(), case.shape, cache, together.step)
    alone = attend(case.q.clone(), case.shape, cache, replace(together.step, runs=None))
    assert_rows_agree(out, alone, torch.float32)


@pytest.fixture(autouse=True)
def _leave_to_others(backend: Backend) -> None:
    case = OpCase(dtype=torch.float32, kv_dtype=torch.float8_e4m3fn)
    for reason in backend.reasons_against("paged_attention", case):
        pytest.skip(f"{backend.name}: {reason}")


def rotary(tokens: int, head_dim: int, device: torch.device) -> Rotary:
    angles = torch.rand(64, head_dim // 2, device=device) * 6
    norms = [NormWeight(torch.randn(head_dim, device=device), 1e-6) for _ in range(2)]
    positions = torch.randint(0, 64, (tokens,), device=device)
    return Rotary(torch.cat((angles.cos(), angles.sin()), dim=-1), positions, *norms)


def empty_cache(heads: int, head_dim: int, device: torch.device) -> LayerCache:
    dtype = native_fp8(device)
    assert dtype is not None
    size = (8, 16, heads)
    tensors = [torch.zeros((*size, head_dim), device=device).to(dtype) for _ in range(2)]
    return LayerCache(*tensors, *(torch.full(size, 7.0, device=device) for _ in range(2)))


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 32), ((3, 1), 80)])
def test_each_head_of_a_token_has_its_own_scale(
    backend: Backend, reference: Backend, device: torch.device, heads: tuple[int, int],
    head_dim: int, takes_padding: bool,
) -> None:  # fmt: skip
    tokens = 9
    shape = AttentionShape(heads[0], heads[1], head_dim, 1.0)
    qkv = torch.randn(tokens, (heads[0] + 2 * heads[1]) * head_dim, device=device)
    qkv[:, -head_dim:] *= torch.logspace(-3, 3, tokens, device=device)[:, None]
    slots = torch.randperm(8 * 16, device=device)[:tokens]
    asked = torch.where(
        torch.arange(tokens, device=device) % 4 == (3 if takes_padding else -1), -1, slots
    )
    turn = rotary(tokens, head_dim, device)
    plain = LayerCache(*(torch.zeros(8, 16, heads[1], head_dim, device=device) for _ in range(2)))
    reference.operations["qk_norm_rope_store"](qkv.clone(), shape, turn, plain, slots)
    cache = empty_cache(heads[1], head_dim, device)
    backend.operations["qk_norm_rope_store"](qkv.clone(), shape, turn, cache, asked)
    assert cache.k_scale is not None
    assert cache.v_scale is not None
    kept = asked[asked >= 0]
    k, v = gather_heads(cache, kept, torch.float32, slots=True)
    for found, wanted in ((k, plain.k), (v, plain.v)):
        wanted = wanted.flatten(0, 1)[kept]
        error = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert error.max() < ROUNDED
    limit = torch.finfo(cache.v.dtype).max
    largest = plain.v.flatten(0, 1)[kept].abs().amax(-1)
    torch.testing.assert_close(cache.v_scale.flatten(0, 1)[kept], largest / limit)
    untouched = torch.ones(8 * 16, dtype=torch.bool, device=device)
    untouched[kept] = False
    assert (cache.k_scale.flatten(0, 1)[untouched] == 7.0).all(), "padding stores nothing"


def test_a_new_token_is_attended_to_as_the_cache_holds_it(
    backend: Backend, device: torch.device
) -> None:
    case = paged_case([(18, 1), (100, 1), (7, 1)], device=device, dtype=torch.float32)
    shape, ends = case.shape, case.step.context_lens.long()
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv, turn = torch.randn(3, width, device=device), rotary(3, shape.head_dim, device)
    at = ends - 1
    blocks = case.step.block_tables.gather(1, (at // 16)[:, None]).long().squeeze(1)
    slots = blocks * 16 + at % 16
    case.step.slot_mapping.resize_(3).copy_(slots)
    one, other = in_fp8(case), in_fp8(case)
    out = backend.operations["attention"](qkv.clone(), shape, turn, one, case.step)
    q = backend.operations["qk_norm_rope_store"](qkv.clone(), shape, turn, other, slots)
    expected = backend.operations["paged_attention"](q, shape, other, case.step)
    assert_rows_agree(out, expected, torch.float32, slack=10)
    assert one.k_scale is not None
    assert other.k_scale is not None
    torch.testing.assert_close(one.k_scale, other.k_scale, equal_nan=True)
