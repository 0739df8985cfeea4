"""Which tokens may be drawn: transformers' warpers are the oracle, plain counting for ties."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers

from atom.model_ops.backends.interface import LogitFilters
from atom.model_ops.backends.logit_filters import filter_logits as by_reference
from atom.model_ops.backends.torch_cpu.logit_filters import filter_logits as on_cpu

FilterLogits = Callable[[torch.Tensor, LogitFilters], torch.Tensor]
VOCAB = 3000
both = pytest.mark.parametrize("filter_logits", [by_reference, on_cpu])


def filters(
    temperature: torch.Tensor, top_k: int, top_p: float, min_p: float, candidates: int
) -> LogitFilters:
    rows = len(temperature)
    return LogitFilters(
        temperature=temperature,
        top_k=torch.full((rows,), top_k or VOCAB),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        candidates=candidates,
        any_top_p=top_p < 1,
        any_min_p=min_p > 0,
    )


@both
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (20, 1.0, 0.0), (20, 0.95, 0.0), (500, 0.5, 0.0), (0, 0.95, 0.0), (0, 0.3, 0.0),
        (0, 0.999, 0.0), (0, 1.0, 0.1), (50, 0.9, 0.05), (1, 0.5, 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_kept_tokens_are_those_of_transformers_warpers(
    filter_logits: FilterLogits, top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    """Flat logits need nearly all of the vocabulary, steep ones a few tokens."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1)) * spread
    temperature = torch.tensor([0.5, 0.6, 0.8, 1.0, 1.5, 2.0])
    oracle = transformers.LogitsProcessorList()
    if top_k:
        oracle.append(transformers.TopKLogitsWarper(top_k))
    if top_p < 1:
        oracle.append(transformers.TopPLogitsWarper(top_p))
    if min_p:
        oracle.append(transformers.MinPLogitsWarper(min_p))
    expected = oracle(None, logits / temperature.unsqueeze(1)).isfinite()
    asked = [top_k] if top_k else [VOCAB] if top_p < 1 else [0]
    for candidates in {*asked, VOCAB}:  # whatever else is in the batch
        asked = filters(temperature, top_k, top_p, min_p, candidates)
        kept = filter_logits(logits.clone(), asked)
        assert torch.equal(kept.isfinite(), expected)
        assert torch.equal(kept[expected], logits[expected])


@both
@pytest.mark.parametrize("candidates", [4, VOCAB])
def test_equal_tokens_are_kept_or_dropped_together(
    filter_logits: FilterLogits, candidates: int
) -> None:
    # Weights 8, then 2 each for the next hundred: top-k 4 keeps all of these.
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 7] = torch.tensor(8.0).log()
    logits[0, 100:200] = torch.tensor(2.0).log()
    logits[0, 300] = 0.0
    kept = filter_logits(logits.clone(), filters(torch.ones(1), 4, 1.0, 0.0, candidates))
    assert kept.isfinite().nonzero()[:, 1].tolist() == [7, *range(100, 200)]
    # Of the 208 that are left, 8 are less than a tenth: the others are all needed.
    kept = filter_logits(logits.clone(), filters(torch.ones(1), 4, 0.1, 0.0, candidates))
    assert kept.isfinite().sum() == 101
    # And 8 of 208 are more than 0.03.
    kept = filter_logits(logits.clone(), filters(torch.ones(1), 4, 0.03, 0.0, candidates))
    assert kept.isfinite().nonzero()[:, 1].tolist() == [7]


@both
def test_rows_without_a_limit_keep_everything(filter_logits: FilterLogits) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    limited = LogitFilters(
        temperature=torch.tensor([1.0, 0.0, 1.0]),
        top_k=torch.tensor([5, VOCAB, VOCAB]),
        top_p=torch.tensor([0.9, 1.0, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 0.2]),
        candidates=5,
        any_top_p=True,
        any_min_p=True,
    )
    kept = filter_logits(logits.clone(), limited).isfinite().sum(dim=1)
    assert kept[0] <= 5
    assert kept[1] == VOCAB
    assert 1 <= kept[2] < VOCAB
