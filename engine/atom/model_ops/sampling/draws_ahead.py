"""DrawsAhead: what a step's draws stand behind that their slots do not know of yet.

A row that may get several tokens draws each as if the proposed ones before it were said: penalties
count them, bad words may begin in them, and the place is so many tokens further. Data only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class DrawsAhead:
    """Describes n draws ahead: row [n] int64, whose tokens [R, K] int64, proposed behind the slot's
    newest, are its; lengths [n] int64, how many of them a draw stands behind; positions [n] int64,
    of the tokens that are drawn. host_lead: tokens that the host may take a draw to be further than
    it is."""

    tokens: torch.Tensor
    row: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    host_lead: int

    def of(self, draws: torch.Tensor) -> DrawsAhead:
        """Some of the draws, int64."""
        return replace(
            self,
            row=self.row[draws],
            lengths=self.lengths[draws],
            positions=self.positions[draws],
        )

    def counted(self, occurrences: torch.Tensor) -> torch.Tensor:
        """Count occurrences [n, V] int32 of the draws' slots, and the proposed tokens that they
        stand behind."""
        index = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        said = (index < self.lengths.unsqueeze(1)).to(occurrences.dtype)
        return occurrences.scatter_add_(1, self.tokens[self.row], said)

    def newest(self, recent: torch.Tensor) -> torch.Tensor:
        """Move recent [n, W] int32, the newest tokens of the draws' slots, on by the proposed."""
        return newest_of(recent, self.tokens[self.row], self.lengths)


def newest_of(recent: torch.Tensor, token_ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The newest W tokens when `counts` [n] of token_ids [n, K] follow on recent [n, W]."""
    both = torch.cat([recent, token_ids.to(recent.dtype)], dim=1)
    index = torch.arange(recent.shape[1], device=recent.device)
    return both.gather(1, index + counts.unsqueeze(1))
