"""The CPU's samplers draw from the distribution that the parameters describe."""

from __future__ import annotations

import sys

import pytest
import torch

from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import LogitFilters, SamplingTensors
from atom.model_ops.sampling.sampler import Sampler, ShapedRows
from tests.engine.ops.inputs import FLOAT32

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
VOCAB = len(LOGITS)
DRAWS = 50_000
SAMPLER = Sampler(resolve_ops("cpu", FLOAT32).ops)


@pytest.fixture(autouse=True, params=["auto", "torch_ref"])
def sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend that the CPU gets, and the reference that every other follows."""
    chosen = resolve_ops("cpu", FLOAT32, backend=request.param).ops
    monkeypatch.setattr(sys.modules[__name__], "SAMPLER", Sampler(chosen))


def draw(
    rows: int = DRAWS,
    *,
    temperature: float = 1.0,
    top_k: int = VOCAB,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seeds: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    sampling = SamplingTensors(
        temperature=torch.full((rows,), temperature),
        seed=torch.arange(rows) if seeds is None else seeds,
        position=torch.zeros(rows, dtype=torch.int64) if positions is None else positions,
        all_greedy=temperature == 0,
        any_greedy=temperature == 0,
    )
    return SAMPLER(
        LOGITS.repeat(rows, 1),
        sampling,
        [shaped_by(filters(sampling.temperature, top_k, top_p, min_p))],
    )


def shaped_by(filters: LogitFilters) -> ShapedRows:
    return ShapedRows(torch.arange(len(filters.temperature)), filters=filters)


def filters(temperature: torch.Tensor, top_k: int, top_p: float, min_p: float) -> LogitFilters:
    rows = len(temperature)
    return LogitFilters(
        temperature=temperature,
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        candidates=top_k if top_k < VOCAB or top_p < 1 else 0,
        any_top_p=top_p < 1.0,
        any_min_p=min_p > 0,
    )


def assert_drawn_from(tokens: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Chi-square against the analytic distribution; 35 is beyond p = 1e-5 for 5 degrees."""
    counts = torch.bincount(tokens, minlength=VOCAB).double()
    assert counts[probabilities == 0].sum() == 0, "a token outside the support was drawn"
    support = probabilities > 0
    expected = probabilities[support].double() * len(tokens)
    assert ((counts[support] - expected) ** 2 / expected).sum() < 35


def test_the_comparison_notices_a_wrong_parameter() -> None:
    """A temperature that is 5 % off, one token too many within top-p, a min-p a token too low."""
    right = LOGITS.softmax(0)
    for wrong in (draw(temperature=1.05), draw(temperature=0.95)):
        with pytest.raises(AssertionError):
            assert_drawn_from(wrong, right)
    two = torch.where(torch.arange(VOCAB) < 2, LOGITS, -torch.inf).softmax(0)
    for wrong in (draw(top_p=0.8), draw(min_p=0.2), draw(top_k=3)):
        with pytest.raises(AssertionError):
            assert_drawn_from(wrong, two)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_scales_the_logits(temperature: float) -> None:
    assert_drawn_from(draw(temperature=temperature), (LOGITS / temperature).softmax(0))


def test_draws_over_positions_of_one_seed_are_independent_too() -> None:
    tokens = draw(seeds=torch.full((DRAWS,), 11), positions=torch.arange(DRAWS))
    assert_drawn_from(tokens, LOGITS.softmax(0))


def test_a_large_vocabulary_is_drawn_from_in_proportion() -> None:
    """Within groups of neighbours and between them, the last group being short."""
    draws = 20_000
    logits = torch.randn(300, generator=torch.Generator().manual_seed(0)) * 1.5
    sampling = SamplingTensors(
        torch.full((draws,), 0.8), torch.arange(draws), torch.zeros(draws, dtype=torch.int64)
    )
    tokens = SAMPLER(logits.repeat(draws, 1), sampling, [])
    probabilities = (logits / 0.8).softmax(0)
    likely = probabilities * draws > 5
    counts = torch.bincount(tokens, minlength=300).double()
    expected = probabilities.double() * draws
    assert (counts[~likely].sum() - expected[~likely].sum()).abs() < 5 * expected[
        ~likely
    ].sum() ** 0.5
    statistic = ((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    degrees = int(likely.sum())
    assert degrees > 150
    assert abs(statistic - degrees) < 5 * (2 * degrees) ** 0.5  # five deviations


def test_equal_tokens_of_many_groups_are_drawn_equally_often() -> None:
    """The noise of a group must say nothing of its tokens'."""
    draws, vocab = 30_000, 300
    sampling = SamplingTensors(
        torch.ones(draws), torch.arange(draws), torch.zeros(draws, dtype=torch.int64)
    )
    counts = torch.bincount(SAMPLER(torch.zeros(draws, vocab), sampling, []), minlength=vocab)
    expected = draws / vocab
    assert (counts - expected).abs().max() < 6 * expected**0.5


def test_top_k_keeps_the_k_most_likely() -> None:
    kept = torch.where(torch.arange(VOCAB) < 3, LOGITS, -torch.inf)
    assert_drawn_from(draw(top_k=3), kept.softmax(0))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    # Probabilities 0.54, 0.20, 0.12, …: 0.7 needs the first two.
    kept = torch.where(torch.arange(VOCAB) < 2, LOGITS, -torch.inf)
    assert_drawn_from(draw(top_p=0.7), kept.softmax(0))


def test_top_p_applies_to_what_top_k_left() -> None:
    kept = torch.where(torch.arange(VOCAB) < 2, LOGITS, -torch.inf)
    assert_drawn_from(draw(top_k=3, top_p=0.8), kept.softmax(0))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_min_p_keeps_what_is_likely_enough_beside_the_most_likely(temperature: float) -> None:
    probabilities = (LOGITS / temperature).softmax(0)
    kept = torch.where(probabilities >= 0.2 * probabilities.max(), LOGITS, -torch.inf)
    assert 1 < kept.isfinite().sum() < VOCAB
    tokens = draw(temperature=temperature, min_p=0.2)
    assert_drawn_from(tokens, (kept / temperature).softmax(0))


def test_a_tiny_top_p_is_greedy() -> None:
    assert set(draw(rows=100, top_p=1e-6).tolist()) == {0}


def test_a_seed_gives_the_same_token_whatever_else_is_in_the_batch() -> None:
    alone = draw(rows=1, seeds=torch.tensor([123]), positions=torch.tensor([5]))
    seeds = torch.arange(50) * 7
    seeds[17] = 123
    together = draw(rows=50, seeds=seeds, positions=torch.full((50,), 5))
    assert together[17] == alone[0]
    other = draw(rows=200, seeds=torch.full((200,), 123), positions=torch.arange(200))
    assert len(set(other.tolist())) > 1, "another position draws anew"


def test_greedy_rows_in_a_mixed_batch_stay_greedy() -> None:
    rows = 200
    sampling = SamplingTensors(
        temperature=torch.tensor([0.0, 5.0] * (rows // 2)),
        seed=torch.arange(rows),
        position=torch.zeros(rows, dtype=torch.int64),
    )
    shaped = shaped_by(filters(sampling.temperature, VOCAB, 0.99, 0.0))
    tokens = SAMPLER(LOGITS.repeat(rows, 1), sampling, [shaped])
    assert set(tokens[::2].tolist()) == {0}
    assert len(set(tokens[1::2].tolist())) > 1


def test_every_bit_of_a_seed_counts() -> None:
    def sequence(seed: int) -> tuple[int, ...]:
        seeds = torch.full((40,), seed)
        return tuple(draw(rows=40, seeds=seeds, positions=torch.arange(40)).tolist())

    bits = [0, *(1 << bit for bit in range(63)), -(1 << 63)]
    assert len({sequence(seed) for seed in bits}) == len(bits)


def test_negative_and_large_seeds_are_seeds() -> None:
    seeds = torch.tensor([-(2**63), -1, 2**63 - 1] * 100)
    tokens = draw(rows=300, seeds=seeds, positions=torch.arange(100).repeat_interleave(3))
    assert len(set(tokens.tolist())) > 1
