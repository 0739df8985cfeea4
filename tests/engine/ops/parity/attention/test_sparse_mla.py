"""An indexer chooses what the sum of its heads says, and attention sees nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.model_ops.values import LatentShape, Rotary
from atom.utils.forward_context import AttentionMetaData
from tests.engine.ops.inputs import assert_rows_agree
from tests.engine.ops.mla_inputs import ODD, REAL, SMALL, LatentCase, latent_case

gpu = pytest.mark.gpu
INDEX = IndexShape(num_heads=4, dim=12, rope_dim=8, top_k=9)
# Its scale is a power of two, so scores of small whole numbers are exact, and many are equal.
EXACT = IndexShape(num_heads=4, dim=16, rope_dim=8, top_k=9)
PUBLISHED = IndexShape(num_heads=64, dim=128, rope_dim=64, top_k=2048)
ROWS = [(30, 1), (7, 1), (12, 12), (40, 5)]
DECODES = [(8, 1), (9, 1), (10, 1), (33, 1), (1, 1), (64, 1)]  # below, at and above top_k
CHUNKS = [(10, 10), (47, 9), (33, 1), (3, 3), (20, 12)]


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
    return case.step.block_tables[row].cpu()[positions // size].long() * size + positions % size


def with_slots(case: LatentCase) -> LatentCase:
    """The case with the slots of its tokens."""
    rows, positions = positions_of(case)
    own = [
        slots_of(case, row, position.view(1))
        for row, position in zip(rows.tolist(), positions, strict=True)
    ]
    return replace(
        case, step=replace(case.step, slot_mapping=torch.cat(own).to(case.cache.entries.device))
    )


@pytest.fixture
def case(device: torch.device) -> LatentCase:
    return with_slots(latent_case(ROWS, device=device, dtype=torch.float32, shape=SMALL))


def test_the_highest_scores_of_each_row_are_selected(
    backend: Backend, case: LatentCase, device: torch.device
) -> None:
    rows, positions = positions_of(case)
    count, blocks = len(rows), case.cache.num_blocks
    tokens = IndexTokens(
        torch.randn(count, INDEX.num_heads, INDEX.dim),
        torch.randn(count, INDEX.dim),
        torch.randn(count, INDEX.num_heads),
    )
    angles = torch.rand(64, INDEX.rope_dim // 2) * 6
    rotary = Rotary(
        torch.cat((angles.cos(), angles.sin()), dim=-1).to(device), positions.to(device)
    )
    keys = torch.randn(blocks, case.cache.block_size, INDEX.dim)
    cache = IndexCache(keys.to(device))
    given = IndexTokens(*(x.clone().to(device) for x in (tokens.q, tokens.keys, tokens.weights)))
    found = backend.operations["select_tokens"](given, INDEX, rotary, cache, case.step)
    selected, cache = found.cpu(), IndexCache(cache.keys.cpu())
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


@dataclass(frozen=True)
class IndexCase:
    """What a step's indexer is given, and the step."""

    tokens: IndexTokens
    shape: IndexShape
    rotary: Rotary
    cache: IndexCache
    step: AttentionMetaData

    def selected(self, by: Backend) -> torch.Tensor | None:
        """What a backend selects; keys are written to the case's cache."""
        parts = (self.tokens.q, self.tokens.keys, self.tokens.weights)
        tokens = IndexTokens(*(part.clone() for part in parts))
        found: torch.Tensor | None = by.operations["select_tokens"](
            tokens, self.shape, self.rotary, self.cache, self.step
        )
        return found


def index_case(
    case: LatentCase, shape: IndexShape, *, whole: bool, dtype: torch.dtype = torch.float32
) -> IndexCase:
    """Tokens and a cache of keys for a case's step; whole: of small whole numbers, not rotated."""
    device, size = case.cache.entries.device, case.cache.block_size
    rows, positions = positions_of(case)
    draw = torch.Generator().manual_seed(1)

    def random(*size: int) -> torch.Tensor:
        numbers = torch.randn(size, generator=draw)
        return (numbers.round() if whole else numbers).to(device, dtype)

    count = len(rows)
    angles = torch.zeros(1) if whole else torch.rand(1, generator=draw) * 6
    angles = angles.expand(int(positions.max()) + 1, shape.rope_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
    keys = torch.full((case.cache.num_blocks * size, shape.dim), torch.nan, device=device)
    for row, length in enumerate(case.step.context_lens.tolist()):
        own = slots_of(case, row, torch.arange(length))
        keys[own] = random(length, shape.dim).float()
    return IndexCase(
        IndexTokens(
            random(count, shape.num_heads, shape.dim),
            random(count, shape.dim),
            random(count, shape.num_heads),
        ),
        shape,
        Rotary(cos_sin, positions.to(device)),
        IndexCache(keys.to(dtype).view(-1, size, shape.dim)),
        case.step,
    )


def assert_same_slots(found: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    assert found is not None
    assert expected is not None
    assert found.shape == expected.shape
    for own, wanted in zip(found.tolist(), expected.tolist(), strict=True):
        assert sorted(own) == sorted(wanted)


@pytest.mark.parametrize(
    ("rows", "block_size", "dtype"),
    [
        (DECODES, 16, torch.float32),
        (CHUNKS, 16, torch.float16),
        (DECODES + CHUNKS, 1, torch.float32),
        (DECODES + CHUNKS, 48, torch.float32),
        pytest.param(DECODES + CHUNKS, 16, torch.bfloat16, marks=gpu),
    ],
    ids=["decodes", "chunks", "both", "wide-blocks", "bfloat16"],
)
def test_equal_scores_are_selected_by_the_lowest_positions(
    backend: Backend, reference: Backend, device: torch.device, rows: list[tuple[int, int]],
    block_size: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    latent = latent_case(rows, device=device, dtype=torch.float32, block_size=block_size)
    case = index_case(with_slots(latent), EXACT, whole=True, dtype=dtype)
    expected = case.selected(reference)
    assert_same_slots(case.selected(backend), expected)


@pytest.mark.parametrize(
    "shape",
    [
        IndexShape(num_heads=3, dim=24, rope_dim=8, top_k=300),
        IndexShape(num_heads=20, dim=8, rope_dim=8, top_k=1),
        pytest.param(PUBLISHED, marks=gpu),
    ],
)
def test_long_contexts(
    backend: Backend, reference: Backend, device: torch.device, shape: IndexShape
) -> None:
    """More scores than a program takes at once, beside short rows."""
    rows = [(9000, 1), (12, 1), (2500, 3)]
    case = index_case(
        with_slots(latent_case(rows, device=device, dtype=torch.float32)), shape, whole=False
    )
    assert_same_slots(case.selected(backend), case.selected(reference))


def test_rows_that_are_all_selected_need_no_selection(backend: Backend, case: LatentCase) -> None:
    wide = replace(INDEX, top_k=case.step.max_context_len)
    asked = index_case(case, wide, whole=False)
    asked.cache.keys.fill_(torch.nan)
    assert asked.selected(backend) is None
    assert asked.cache.keys.flatten(0, 1)[case.step.slot_mapping].isfinite().all(), "keys are kept"


def test_a_captured_step_selects_by_the_contexts_that_it_finds(
    backend: Backend, reference: Backend, device: torch.device, takes_padding: bool
) -> None:
    if not takes_padding:
        pytest.skip(f"{backend.name} is not captured into graphs")
    rows = [(3, 1), (70, 1), (9, 1)]
    latent = with_slots(latent_case(rows, device=device, dtype=torch.float32))
    case = index_case(latent, EXACT, whole=True)
    expected = case.selected(reference)
    before = case.cache.keys.clone()
    padded = replace(
        case.step,
        context_lens=torch.cat((case.step.context_lens, case.step.context_lens.new_zeros(2))),
        query_starts=torch.arange(6, dtype=torch.int32, device=device),
        block_tables=torch.cat((case.step.block_tables, case.step.block_tables[:2])),
        slot_mapping=torch.cat((case.step.slot_mapping, case.step.slot_mapping.new_full((2,), -1))),
        num_decodes=5,
        max_context_len=4096,
    )
    five = torch.tensor([0, 1, 2, 0, 0], device=device)
    tokens = IndexTokens(case.tokens.q[five], case.tokens.keys[five], case.tokens.weights[five])
    rotary = replace(case.rotary, positions=case.rotary.positions[five])
    found = replace(case, tokens=tokens, rotary=rotary, step=padded).selected(backend)
    assert found is not None
    assert_same_slots(found[:3], expected)
    assert (found[3:] == -1).all()
    assert torch.equal(case.cache.keys.nan_to_num(7.0), before.nan_to_num(7.0))


def random_slots(case: LatentCase, count: int) -> torch.Tensor:
    """Slots of each token's row in any order, and none behind them, of some tokens few."""
    rows, positions = positions_of(case)
    selected = torch.full((len(rows), count), -1)
    for token, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        own = slots_of(case, row, torch.randperm(position + 1))[: count - token % 3]
        selected[token, : len(own)] = own
    return selected.to(case.cache.entries.device)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
)
@pytest.mark.parametrize("shape", [SMALL, ODD, pytest.param(REAL, marks=gpu)])
@pytest.mark.parametrize("count", [9, 50, 600])
def test_attention_sees_the_selected_slots_alone(
    backend: Backend, reference: Backend, device: torch.device, shape: LatentShape, count: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    rows = [(700, 1), (20, 1), (60, 9), (5, 5)]
    case = latent_case(rows, device=device, dtype=dtype, shape=shape)
    selected = random_slots(case, count)
    tokens, _, up, cache, _ = case.doubled
    attend = "sparse_mla_attention"
    expected = reference.operations[attend](tokens, shape, up, cache, selected)
    tokens, _, up, cache, _ = case.arguments
    out = backend.operations[attend](tokens, shape, up, cache, selected)
    assert_rows_agree(out, expected, dtype, slack=2)


@pytest.mark.parametrize("count", [9, 600])
def test_a_token_without_slots_yields_zeros(
    backend: Backend, device: torch.device, count: int, takes_padding: bool
) -> None:
    if not takes_padding:
        pytest.skip(f"{backend.name} is not captured into graphs")
    case = latent_case([(30, 1), (20, 1)], device=device, dtype=torch.float32)
    selected = random_slots(case, count)
    selected[1] = -1
    tokens, shape, up, cache, _ = case.arguments
    out = backend.operations["sparse_mla_attention"](tokens, shape, up, cache, selected)
    assert out[0].isfinite().all()
    assert torch.equal(out[1], torch.zeros_like(out[1]))


@pytest.mark.parametrize("shape", [SMALL, ODD])
def test_selecting_everything_is_attending_to_everything(
    backend: Backend, reference: Backend, device: torch.device, shape: LatentShape
) -> None:
    case = latent_case(ROWS, device=device, dtype=torch.float32, shape=shape)
    selected = random_slots(case, 50)
    rows, positions = positions_of(case)
    for token, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        selected[token] = -1
        order = torch.randperm(position + 1)
        selected[token, : position + 1] = slots_of(case, row, order)
    tokens, _, up, cache, _ = case.arguments
    out = backend.operations["sparse_mla_attention"](tokens, shape, up, cache, selected)
    expected = reference.operations["mla_attention"](*case.doubled)
    assert_rows_agree(out, expected, torch.float32, slack=2)
