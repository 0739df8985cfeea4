"""DrawsAhead: the proposed tokens before each of a step's draws, which the slots do not have yet.

A row that may get several tokens draws each as if the proposed ones before it were accepted:
penalties count them, bad words may begin in them, and the position is further by their number. Data
only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class DrawsAhead:
    """The n draws ahead: row [n] int64, the index of each draw's tokens in tokens [R, K] int64,
    proposed after the slot's newest; lengths [n] int64, the number of proposed tokens before a
    draw; positions [n] int64, of the drawn tokens. host_lead: the most tokens by which the host may
    overestimate a draw's position."""

    tokens: torch.Tensor
    row: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    host_lead: int

    def of(self, draws: torch.Tensor) -> DrawsAhead:
        """Return some of the draws, by index int64."""
        return replace(
            self,
            row=self.row[draws],
            lengths=self.lengths[draws],
            positions=self.positions[draws],
        )

    def counted(self, occurrences: torch.Tensor) -> torch.Tensor:
        """Count occurrences [n, V] int32 of the draws' slots, and the proposed tokens before each
        draw."""
        index = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        said = (index < self.lengths.unsqueeze(1)).to(occurrences.dtype)
        return occurrences.scatter_add_(1, self.tokens[self.row], said)

    def newest(self, recent: torch.Tensor) -> torch.Tensor:
        """Move recent [n, W] int32, the newest tokens of the draws' slots, on by the proposed."""
        return newest_of(recent, self.tokens[self.row], self.lengths)


def newest_of(recent: torch.Tensor, token_ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the newest W tokens after `counts` [n] of token_ids [n, K] are appended to recent [n,
    W]."""
    both = torch.cat([recent, token_ids.to(recent.dtype)], dim=1)
    index = torch.arange(recent.shape[1], device=recent.device)
    return both.gather(1, index + counts.unsqueeze(1))
