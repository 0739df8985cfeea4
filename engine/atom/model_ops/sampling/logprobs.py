"""Log-probabilities of tokens under raw logits: the token's own, its rank, and the likeliest ones.

Plain PyTorch; the host never waits for the device. Rows are processed a few at a time, so the
float32 copies stay small for any number of rows: a chunk of a prompt may have thousands.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_NUMBERS_AT_ONCE = 1 << 24


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """The log-probabilities of n rows: token_ids [n, 1 + k] int32, the row's own token and then the
    k likeliest, most likely first; logprobs [n, 1 + k] float32, of these; ranks [n] int32, 1 + how
    many tokens are more likely than the row's own."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    """Compute log-probabilities of logits [n, V] of any float dtype, token_ids [n] int64; num_top:
    k, at most V."""
    rows = max(1, _NUMBERS_AT_ONCE // logits.shape[1])
    return joined(
        [
            _of_few(part, ids, min(num_top, logits.shape[1]))
            for part, ids in zip(logits.split(rows), token_ids.split(rows), strict=True)
        ]
    )


def joined(parts: list[LogprobTensors]) -> LogprobTensors:
    """Return the rows of all parts, which have the same k."""
    if len(parts) == 1:
        return parts[0]
    return LogprobTensors(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.logprobs for part in parts]),
        torch.cat([part.ranks for part in parts]),
    )


def _of_few(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    logits = logits.float()
    own = logits.gather(1, token_ids.unsqueeze(1))
    _, top_ids = logits.topk(num_top, dim=-1)
    chosen = torch.cat([token_ids.unsqueeze(1), top_ids], dim=1)
    return LogprobTensors(
        token_ids=chosen.to(torch.int32),
        # Not by a sum over rows' logits, whose order torch chooses by the number of rows.
        logprobs=logits.log_softmax(dim=-1).gather(1, chosen),
        ranks=((logits > own).sum(dim=-1) + 1).to(torch.int32),
    )
