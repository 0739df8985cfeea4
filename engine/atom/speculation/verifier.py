"""Verifier: which of a row's drafts hold, and the token behind the last that does.

SameDraws is what the engine runs: a draft holds if it is the token that would have been drawn.
RejectionSampler is for drafters that draw from a distribution of their own, as the literature has
it (Leviathan et al. 2023, Chen et al. 2023): a draft x holds with probability min(1, p(x) / q(x)),
and what takes its place is drawn from the rest, (p - q)+. Both give tokens distributed as the
model's; only the former gives the tokens of an engine that does not draft. Plain PyTorch, nothing
waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from atom.model_ops.backends.interface import Ops, SamplingTensors
from atom.model_ops.backends.noise import exponential_noise, row_keys
from atom.model_ops.drafts import Drafts

# Tells the noise of whether a draft holds from that of a draw at the same place.
_OF_ACCEPTANCE = 0x2545F491


@dataclass(frozen=True, slots=True)
class Verified:
    """token_ids [R, 1 + K] int64: a row's drafts that hold, and the token behind them; counts [R]
    int64: of these, 1 to 1 + K; what is behind means nothing."""

    token_ids: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class DraftedLogits:
    """What R rows are verified by: logits [R, 1 + K, V], float32, shaped as for a draw, behind the
    newest token and behind each draft; sampling: of the R · (1 + K) draws, row after row; drafter
    [R, K, V]: the probabilities that the drafts were drawn from, None where they were chosen
    without chance."""

    logits: torch.Tensor
    sampling: SamplingTensors
    drafter: torch.Tensor | None = None


class Verifier(Protocol):
    def verify(self, drafts: Drafts, target: DraftedLogits) -> Verified:
        """Decide for each row of drafts [R, K]."""


class SameDraws:
    """A draft holds if it is what is drawn in its place. Of a draft without chance that is as
    probable as the token is, which no rule without loss can better."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def verify(self, drafts: Drafts, target: DraftedLogits) -> Verified:
        rows, places, vocabulary = target.logits.shape
        flat = target.logits.reshape(rows * places, vocabulary).clone()
        drawn = self._ops.sample(flat, target.sampling).view(rows, places)
        return Verified(drawn, 1 + _leading(drawn[:, :-1] == drafts.token_ids, drafts))


class RejectionSampler:
    """A draft holds with probability min(1, p / q). A greedy row keeps drafts that are its first
    maximum."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def verify(self, drafts: Drafts, target: DraftedLogits) -> Verified:
        rows, places, _ = target.logits.shape
        likely = _probabilities(target)
        proposed = torch.zeros_like(likely[:, :-1]) if target.drafter is None else target.drafter
        at = drafts.token_ids.unsqueeze(2)
        if target.drafter is None:
            proposed = proposed.scatter(2, at, 1.0)
        keys = row_keys(target.sampling.seed, target.sampling.position).view(rows, places)
        chance = torch.exp(-exponential_noise(keys[:, :-1] ^ _OF_ACCEPTANCE, drafts.token_ids))
        ratio = likely[:, :-1].gather(2, at) / proposed.gather(2, at).clamp_min(1e-30)
        kept = _leading(chance <= ratio.squeeze(2), drafts)
        # What stands behind the last draft that holds: of the rest if one was refused.
        left = torch.cat([(likely[:, :-1] - proposed).clamp_min(0), likely[:, -1:]], dim=1)
        refused = (kept < drafts.counts).view(-1, 1, 1)
        place = kept.view(-1, 1, 1).expand(-1, 1, likely.shape[2])
        weights = torch.where(refused, left.gather(1, place), likely.gather(1, place)).squeeze(1)
        last = self._ops.sample(weights.log(), _draws_at(target.sampling, kept, places))
        token_ids = torch.cat([drafts.token_ids, torch.zeros_like(drafts.token_ids[:, :1])], dim=1)
        return Verified(token_ids.scatter(1, kept.unsqueeze(1), last.unsqueeze(1)), 1 + kept)


def _leading(held: torch.Tensor, drafts: Drafts) -> torch.Tensor:
    """How many drafts hold up to the first that does not, [R]."""
    index = torch.arange(held.shape[1], device=held.device)
    return (held & (index < drafts.counts.unsqueeze(1))).long().cumprod(dim=1).sum(dim=1)


def _probabilities(target: DraftedLogits) -> torch.Tensor:
    """The model's, [R, 1 + K, V]; of greedy rows all on the first maximum."""
    rows, places, vocabulary = target.logits.shape
    temperature = target.sampling.temperature.view(rows, places, 1)
    scaled = target.logits.float() / torch.where(temperature == 0, 1.0, temperature)
    best = torch.nn.functional.one_hot(target.logits.argmax(dim=-1), vocabulary)
    return torch.where(temperature == 0, best.float(), scaled.softmax(dim=-1))


def _draws_at(sampling: SamplingTensors, kept: torch.Tensor, places: int) -> SamplingTensors:
    """A draw of each row behind the drafts that it keeps, from weights as they are."""
    at = torch.arange(len(kept), device=kept.device) * places + kept
    temperature = sampling.temperature[at]
    return SamplingTensors(
        temperature=torch.where(temperature == 0, 0.0, 1.0),
        seed=sampling.seed[at],
        position=sampling.position[at],
    )
