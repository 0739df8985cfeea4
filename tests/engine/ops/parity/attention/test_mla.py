"""Latent attention over the paged cache equals keys and values unfolded in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.self_check.agreement import SLACK
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, NormWeight, Rotary
from atom.utils.forward_context import EqualPrompts, PromptPlan
from tests.engine.ops.inputs import assert_rows_agree, padded_step, poison
from tests.engine.ops.mla_inputs import ODD, REAL, SMALL, LatentCase, latent_case

gpu = pytest.mark.gpu
# The interpreter multiplies bfloat16 as the integers it is stored in: on GPUs only.
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
SHAPES = [SMALL, ODD, pytest.param(REAL, marks=gpu)]
DECODES = [(1, 1), (16, 1), (17, 1), (100, 1), (63, 1)]
CHUNKS = [(5, 5), (40, 40), (33, 2), (90, 17)]  # whole prompts, and chunks behind a history
BLOCKS, BLOCK_SIZE = 12, 16


def compute(backend: Backend, case: LatentCase) -> torch.Tensor:
    tokens = case.tokens.q.shape[0]
    size = (tokens, case.shape.num_heads * case.shape.value_dim)
    poison(size, case.tokens.q.dtype, case.tokens.q.device)
    return backend.operations["mla_attention"](*case.arguments)


def check(backend: Backend, reference: Backend, case: LatentCase, slack: float = 1.0) -> None:
    expected = reference.operations["mla_attention"](*case.doubled)
    # Folding rounds queries and weighted latents once each, beyond what a softmax rounds.
    assert_rows_agree(
        compute(backend, case), expected, case.tokens.q.dtype, slack=SLACK["mla_attention"] * slack
    )


@pytest.mark.parametrize("rows", [DECODES, CHUNKS], ids=["decode", "prefill"])
def test_rows_of_one_kind(
    backend: Backend, reference: Backend, device: torch.device, rows: list[tuple[int, int]]
) -> None:
    check(backend, reference, latent_case(rows, device=device, dtype=torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_rows(
    backend: Backend, reference: Backend, device: torch.device, shape: LatentShape,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = latent_case(DECODES + CHUNKS, device=device, dtype=dtype, shape=shape)
    check(backend, reference, case)


@pytest.mark.parametrize("block_size", [1, 48, 256])
def test_any_block_size(
    backend: Backend, reference: Backend, device: torch.device, block_size: int
) -> None:
    rows = [(130, 1), (80, 20)]
    case = latent_case(rows, device=device, dtype=torch.float32, block_size=block_size)
    check(backend, reference, case)


@pytest.mark.parametrize("heads", [1, 5, 16, pytest.param(128, marks=gpu)])
def test_any_number_of_heads(
    backend: Backend, reference: Backend, device: torch.device, heads: int
) -> None:
    shape = replace(SMALL, num_heads=heads)
    case = latent_case([(30, 1), (70, 21)], device=device, dtype=torch.float32, shape=shape)
    check(backend, reference, case)


def test_long_rows_beside_short_ones(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = latent_case(
        [(1900, 1), (300, 1), (3, 1), (700, 3)], device=device, dtype=torch.float32,
        max_context=4096,
    )  # fmt: skip
    check(backend, reference, case)


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        ([(64, 64), (64, 64)], [EqualPrompts(0, 2, 0, 64, 64)]),
        ([(20, 1), (80, 80), (40, 9)], [EqualPrompts(1, 1, 1, 80, 64)]),
    ],
    ids=["all", "leading"],
)
def test_long_prompts_are_attended_to_without_the_cache(
    backend: Backend, reference: Backend, device: torch.device, rows: list[tuple[int, int]],
    groups: list[EqualPrompts],
) -> None:  # fmt: skip
    for shape in (SMALL, ODD):
        case = latent_case(rows, device=device, dtype=torch.float32, shape=shape)
        step = replace(case.step, prompts=PromptPlan(equal=tuple(groups)))
        check(backend, reference, replace(case, step=step))


@pytest.mark.parametrize("max_context", [200, 512, 4096])
def test_a_captured_decode_step_knows_only_the_largest_context(
    backend: Backend, reference: Backend, device: torch.device, max_context: int,
    takes_padding: bool,
) -> None:  # fmt: skip
    if not takes_padding:
        pytest.skip(f"{backend.name} is not captured into graphs")
    rows = [(1, 1), (200, 1), (0, 1), (130, 1)]
    case = latent_case(rows, device=device, dtype=torch.float32, max_context=max_context)
    out = compute(backend, case)
    assert torch.equal(out[2], torch.zeros_like(out[2])), "padding rows are zeros"
    real = torch.tensor([0, 1, 3], device=device)
    step = replace(
        case.step,
        context_lens=case.step.context_lens[real],
        block_tables=case.step.block_tables[real],
        query_starts=case.step.query_starts[:4],
        num_decodes=3,
    )
    tokens = LatentTokens(case.tokens.q[real], case.tokens.entries[real])
    subset = replace(case, tokens=tokens, step=step)
    expected = reference.operations["mla_attention"](*subset.doubled)
    assert_rows_agree(out[real], expected, torch.float32)


def test_a_captured_step_with_prompts_is_larger_than_its_rows(
    backend: Backend, reference: Backend, device: torch.device, takes_padding: bool
) -> None:
    """Behind its decodes are some of context 0, behind its prompts rows and tokens of nothing."""
    if not takes_padding:
        pytest.skip(f"{backend.name} is not captured into graphs")
    rows = [(130, 1), (0, 1), (0, 1), (90, 37), (5, 5)]
    case = latent_case(rows, device=device, dtype=torch.float32, max_context=512)
    expected = reference.operations["mla_attention"](*case.doubled)
    more = torch.randn((70, *case.tokens.q.shape[1:]), device=device)
    tokens = LatentTokens(torch.cat((case.tokens.q, more)), case.tokens.entries)
    step = padded_step(case.step, 3, len(more))
    out = compute(backend, replace(case, tokens=tokens, step=step))
    assert_rows_agree(out[: len(expected)], expected, torch.float32, slack=2)
    nothing = torch.cat((out[1:3], out[len(expected) :]))
    assert torch.equal(nothing, torch.zeros_like(nothing))


def test_large_scores_do_not_overflow(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = latent_case([(70, 1), (50, 30)], device=device, dtype=torch.float32)
    steep = replace(case, tokens=LatentTokens(case.tokens.q * 300, case.tokens.entries))
    # The softmax is nearly a choice, and errors of scores weigh in full.
    check(backend, reference, steep, slack=100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 30])
def test_queries_entries_and_cache_equal_the_reference(
    backend: Backend, reference: Backend, device: torch.device, shape: LatentShape, tokens: int,
    dtype: torch.dtype, takes_padding: bool,
) -> None:  # fmt: skip
    width = shape.num_heads * shape.head_dim
    projected = torch.randn(tokens, width + shape.entry_dim, device=device).to(dtype)
    norm = NormWeight(torch.randn(shape.kv_rank, device=device).to(dtype), 1e-6)
    angles = torch.rand(64, shape.rope_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, 64, (tokens,), device=device)
    slots = torch.randperm(BLOCKS * BLOCK_SIZE, device=device)[:tokens]
    padding = (torch.arange(tokens, device=device) % 4 == 3) & takes_padding
    rotary = Rotary(cos_sin, positions, None, norm)

    def stored(by: Backend, slots: torch.Tensor) -> tuple[LatentTokens, torch.Tensor]:
        entries = torch.full((BLOCKS, BLOCK_SIZE, shape.entry_dim), 7.0, dtype=dtype, device=device)
        q, own = projected.clone().split([width, shape.entry_dim], dim=1)
        given = LatentTokens(q.unflatten(1, (shape.num_heads, -1)), own)
        return by.operations["mla_rope_store"](
            given, shape, rotary, LatentCache(entries), slots
        ), entries

    expected, expected_cache = stored(reference, slots)
    expected_cache.flatten(0, 1)[slots[padding]] = 7.0  # the reference knows no padding
    found, cache = stored(backend, torch.where(padding, -1, slots))
    # The reference rotates in the dtype, with cosines rounded to it: two roundings more.
    assert_rows_agree(found.q, expected.q, dtype, slack=SLACK["mla_rope_store"])
    assert_rows_agree(found.entries, expected.entries, dtype, slack=SLACK["mla_rope_store"])
    assert_rows_agree(cache, expected_cache, dtype, slack=SLACK["mla_rope_store"])
