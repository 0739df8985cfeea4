"""An indexer chooses what the sum of its heads says, and attention sees nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from atom.model_ops.values import IndexCache, IndexShape, IndexTokens, Rotary
from tests.engine.ops.inputs import assert_rows_agree
from tests.engine.ops.latent_inputs import ODD, SMALL, LatentCase, latent_case

INDEX = IndexShape(num_heads=4, dim=12, rope_dim=8, top_k=9)
ROWS = [(30, 1), (7, 1), (12, 12), (40, 5)]


def positions_of(case: LatentCase) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and position of each token of the step."""
    starts, lengths = case.step.query_starts.tolist(), case.step.context_lens.tolist()
    rows, positions = [], []
    for row, length in enumerate(lengths):
        count = starts[row + 1] - starts[row]
        rows += [row] * count
        positions += range(length - count, length)
    return torch.tensor(rows), torch.tensor(positions)


def slots_of(case: LatentCase, row: int, positions: torch.Tensor) -> torch.Tensor:
    size = case.cache.block_size
    return case.step.block_tables[row][positions // size].long() * size + positions % size


@pytest.fixture
def case() -> LatentCase:
    found = latent_case(ROWS, device=torch.device("cpu"), dtype=torch.float32, shape=SMALL)
    rows, positions = positions_of(found)
    own = [
        slots_of(found, row, position.view(1))
        for row, position in zip(rows.tolist(), positions, strict=True)
    ]
    return replace(found, step=replace(found.step, slot_mapping=torch.cat(own)))


def test_the_highest_scores_of_each_row_are_selected(reference: Backend, case: LatentCase) -> None:
    rows, positions = positions_of(case)
    count, blocks = len(rows), case.cache.num_blocks
    tokens = IndexTokens(
        torch.randn(count, INDEX.num_heads, INDEX.dim),
        torch.randn(count, INDEX.dim),
        torch.randn(count, INDEX.num_heads),
    )
    angles = torch.rand(64, INDEX.rope_dim // 2) * 6
    rotary = Rotary(torch.cat((angles.cos(), angles.sin()), dim=-1), positions)
    keys = torch.randn(blocks, case.cache.block_size, INDEX.dim)
    cache = IndexCache(keys.clone())
    selected = reference.operations["select_tokens"](tokens, INDEX, rotary, cache, case.step)
    half = INDEX.rope_dim // 2

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        cos, sin = angles[position].cos(), angles[position].sin()
        first, second, still = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, still), dim=-1)

    for token, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        slots = slots_of(case, row, torch.arange(position + 1))
        assert torch.allclose(
            cache.keys.flatten(0, 1)[slots[-1]], turned(tokens.keys[token], position), atol=1e-5
        )
        products = turned(tokens.q[token], position) @ cache.keys.flatten(0, 1)[slots].T
        scores = (tokens.weights[token].unsqueeze(1) * products.relu()).sum(dim=0)
        best = slots[scores.topk(min(INDEX.top_k, position + 1)).indices]
        chosen = selected[token]
        assert set(chosen[chosen >= 0].tolist()) == set(best.tolist())


def test_rows_that_are_all_selected_need_no_selection(reference: Backend, case: LatentCase) -> None:
    count = len(case.tokens.q)
    tokens = IndexTokens(
        torch.randn(count, INDEX.num_heads, INDEX.dim),
        torch.randn(count, INDEX.dim),
        torch.randn(count, INDEX.num_heads),
    )
    rotary = Rotary(torch.ones(64, INDEX.rope_dim), torch.zeros(count, dtype=torch.int64))
    cache = IndexCache(torch.zeros(case.cache.num_blocks, case.cache.block_size, INDEX.dim))
    wide = replace(INDEX, top_k=case.step.max_context_len)
    assert reference.operations["select_tokens"](tokens, wide, rotary, cache, case.step) is None
    assert cache.keys.flatten(0, 1)[case.step.slot_mapping].any(dim=-1).all(), "keys are kept"


@pytest.mark.parametrize("shape", [SMALL, ODD])
def test_selecting_everything_is_attending_to_everything(reference: Backend, shape) -> None:
    case = latent_case(ROWS, device=torch.device("cpu"), dtype=torch.float32, shape=shape)
    rows, positions = positions_of(case)
    selected = torch.full((len(rows), 50), -1)
    for token, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        order = torch.randperm(position + 1)
        selected[token, : position + 1] = slots_of(case, row, order)
    tokens, _, up, cache, step = case.arguments
    out = reference.operations["selected_latent_attention"](tokens, shape, up, cache, selected)
    expected = reference.operations["paged_latent_attention"](tokens, shape, up, cache, step)
    assert_rows_agree(out, expected, torch.float32, slack=2)
