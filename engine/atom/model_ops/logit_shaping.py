"""What rows ask to be changed in their logits before a token is drawn, in plain PyTorch.

Every function changes logits [n, V] float32 in place and makes no decision on the host, so that
none waits for the device. The order in which the sampler applies them is vLLM's: what is added or
forbidden, then penalties, then temperature and the limits of `keep_likely`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Set in an entry of `Penalties.occurrences` whose token is part of the prompt; the bits below count
# the answer's.
IN_PROMPT = 1 << 30


@dataclass(frozen=True, slots=True)
class Penalties:
    """occurrences [n, V] int32: how often the answer has each token, plus IN_PROMPT if the prompt
    has it; repetition, presence, frequency [n] float32 as in SamplingParams."""

    occurrences: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True, slots=True)
class BadWords:
    """P words of more than one token: word i must not be completed in row `rows[i]` [P] int64.

    prefixes [P, W] int32: its tokens but the last, aligned right, -1 in front; last_tokens [P]
    int64; recent [n, W] int32: the newest tokens of every row, newest last.
    """

    rows: torch.Tensor
    prefixes: torch.Tensor
    last_tokens: torch.Tensor
    recent: torch.Tensor


def forbid(logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Token `token_ids[i]` of row `rows[i]` (both int64) cannot be drawn."""
    logits.view(-1).index_fill_(0, rows * logits.shape[1] + token_ids, -torch.inf)


def forbid_bad_words(logits: torch.Tensor, words: BadWords) -> None:
    """Forbid the last token of every word whose other tokens have just been said."""
    said = words.recent.index_select(0, words.rows) == words.prefixes
    completes = (said | (words.prefixes < 0)).all(dim=1)
    # The least of both, so that a word that does not match takes back no other word's ban.
    ceiling = torch.where(completes, -torch.inf, torch.inf)
    at = words.rows * logits.shape[1] + words.last_tokens
    logits.view(-1).scatter_reduce_(0, at, ceiling, "amin")


def penalize(logits: torch.Tensor, penalties: Penalties) -> None:
    """Repetition over prompt and answer; frequency and presence over the answer."""
    occurrences = penalties.occurrences
    repetition = penalties.repetition.unsqueeze(1)
    factor = torch.where(occurrences > 0, repetition, 1.0)
    logits.copy_(torch.where(logits > 0, logits / factor, logits * factor))
    count = occurrences & (IN_PROMPT - 1)
    logits -= count * penalties.frequency.unsqueeze(1)
    logits -= (count > 0) * penalties.presence.unsqueeze(1)
