"""Tokens that a row may not get: single ones, and those that would complete a bad word.

Logits [n, V] float32 are changed in place, in plain PyTorch. The host makes no decision, so it
never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


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


@dataclass(frozen=True, slots=True)
class ForbiddenTokens:
    """Token `token_ids[i]` of row `rows[i]` (both int64) is not to be drawn; where `holds` [n] bool
    is given, only if `holds[i]`."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    holds: torch.Tensor | None = None


def forbid(
    logits: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    holds: torch.Tensor | None = None,
) -> None:
    """Keep the tokens of ForbiddenTokens from being drawn."""
    at = rows * logits.shape[1] + token_ids
    if holds is None:
        logits.view(-1).index_fill_(0, at, -torch.inf)
    else:
        _lower(logits, at, holds)


def forbid_bad_words(logits: torch.Tensor, words: BadWords) -> None:
    """Forbid the last token of every word whose other tokens have just been said."""
    said = words.recent.index_select(0, words.rows) == words.prefixes
    completes = (said | (words.prefixes < 0)).all(dim=1)
    _lower(logits, words.rows * logits.shape[1] + words.last_tokens, completes)


def _lower(logits: torch.Tensor, at: torch.Tensor, holds: torch.Tensor) -> None:
    # The minimum of both, so that a word that does not apply does not lift another ban.
    ceiling = torch.where(holds, -torch.inf, torch.inf)
    logits.view(-1).scatter_reduce_(0, at, ceiling, "amin")
