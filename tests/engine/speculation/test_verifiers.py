"""Both rules of verification give tokens distributed as the model's, whatever the drafts.

Thousands of rows of one distribution, each with a seed of its own; what they get is compared with
the probabilities by chi-square, at the first place and at the one behind an accepted draft.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import exponential_noise
from atom.model_ops.backends.torch_ref import backend
from atom.model_ops.drafts import Drafts
from atom.speculation.verifier import (
    DraftedLogits,
    RejectionSampler,
    SameDraws,
    Verified,
    Verifier,
)

ROWS, VOCABULARY, DRAFTS = 20_000, 6, 2
OPS = cast(Any, SimpleNamespace(**backend().operations))
# Chi-square with 5 degrees of freedom stays below this but once in 10,000 times.
FAR = 25.7


def target_of(temperature: float, drafter: torch.Tensor | None) -> DraftedLogits:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn((1, 1 + DRAFTS, VOCABULARY), generator=generator) * 1.5
    draws = ROWS * (1 + DRAFTS)
    row = torch.arange(ROWS).repeat_interleave(1 + DRAFTS)
    return DraftedLogits(
        logits=logits.expand(ROWS, -1, -1),
        sampling=SamplingTensors(
            temperature=torch.full((draws,), temperature),
            seed=row * 7919 + 3,
            position=torch.arange(1 + DRAFTS).repeat(ROWS) + 11,
        ),
        drafter=drafter,
    )


def likely(target: DraftedLogits, place: int) -> torch.Tensor:
    temperature = float(target.sampling.temperature[0])
    return (target.logits[0, place] / temperature).softmax(dim=-1)


def far_from(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * len(tokens)
    found = torch.bincount(tokens, minlength=VOCABULARY)
    return float(((found - expected) ** 2 / expected).sum())


def drawn_drafts(probabilities: torch.Tensor) -> Drafts:
    """Drafts drawn from [K, V] for each row, by noise that no verifier uses."""
    keys = torch.arange(ROWS * DRAFTS).view(ROWS, DRAFTS, 1) * 31 + 5
    noise = exponential_noise(keys & 0xFFFFFFFF, torch.arange(VOCABULARY))
    return Drafts((probabilities / noise).argmax(dim=-1), torch.full((ROWS,), DRAFTS))


def check(verified: Verified, target: DraftedLogits) -> None:
    assert far_from(verified.token_ids[:, 0], likely(target, 0)) < FAR
    for place in range(1, 1 + DRAFTS):
        reached = verified.counts > place
        assert reached.sum() > ROWS / 50
        assert far_from(verified.token_ids[reached, place], likely(target, place)) < FAR


@pytest.mark.parametrize("rule", [SameDraws, RejectionSampler])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_drafts_without_chance_leave_the_distribution(rule: Any, temperature: float) -> None:
    target = target_of(temperature, None)
    token = target.logits[0, :DRAFTS].argmax(dim=-1)
    drafts = Drafts(token.expand(ROWS, -1), torch.full((ROWS,), DRAFTS))
    verifier: Verifier = rule(OPS)
    verified = verifier.verify(drafts, target)
    check(verified, target)
    # A draft is accepted as often as it is the model's choice.
    accepted = (verified.counts > 1).float().mean()
    assert abs(float(accepted) - float(likely(target, 0)[token[0]])) < 0.02


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_drafts_drawn_from_another_distribution_leave_it_too(temperature: float) -> None:
    generator = torch.Generator().manual_seed(4)
    proposed = torch.randn((DRAFTS, VOCABULARY), generator=generator).softmax(dim=-1)
    target = target_of(temperature, proposed.expand(ROWS, -1, -1))
    verified = RejectionSampler(OPS).verify(drawn_drafts(proposed), target)
    check(verified, target)
    # As often as two distributions can agree at most.
    overlap = torch.minimum(likely(target, 0), proposed[0]).sum()
    assert abs(float((verified.counts > 1).float().mean()) - float(overlap)) < 0.02


@pytest.mark.parametrize("rule", [SameDraws, RejectionSampler])
def test_greedy_rows_keep_drafts_that_are_their_choice(rule: Any) -> None:
    target = target_of(0.0, None)
    best = target.logits[0].argmax(dim=-1)
    wrong = (best[1] + 1) % VOCABULARY
    drafts = Drafts(torch.stack([best[0], wrong]).expand(ROWS, -1), torch.full((ROWS,), DRAFTS))
    verified = rule(OPS).verify(drafts, target)
    assert (verified.counts == 2).all()
    assert (verified.token_ids[:, :2] == best[:2]).all()


def test_rows_without_drafts_get_one_token() -> None:
    target = target_of(1.0, None)
    drafts = Drafts(torch.zeros((ROWS, DRAFTS), dtype=torch.int64), torch.zeros(ROWS).long())
    for rule in (SameDraws(OPS), RejectionSampler(OPS)):
        verified = rule.verify(drafts, target)
        assert (verified.counts == 1).all()
        assert far_from(verified.token_ids[:, 0], likely(target, 0)) < FAR
