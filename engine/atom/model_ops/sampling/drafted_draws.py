"""DraftedDraws: what a step's draws stand behind that their slots do not know of yet.

A draw at a draft's place is made as if the draft and those before it were said: penalties count
them, bad words may begin in them, and the place is so many tokens further. Data only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class DraftedDraws:
    """Describes n draws behind drafts: row [n] int64, whose drafts [R, K] int64 behind the slot's
    newest token are its; lengths [n] int64, how many of them a draw stands behind; positions [n]
    int64, of the tokens that are drawn. ahead: tokens that the host may take a draw to be further
    than it is."""

    drafts: torch.Tensor
    row: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    ahead: int

    def of(self, draws: torch.Tensor) -> DraftedDraws:
        """Some of the draws, int64."""
        return replace(
            self,
            row=self.row[draws],
            lengths=self.lengths[draws],
            positions=self.positions[draws],
        )

    def counted(self, occurrences: torch.Tensor) -> torch.Tensor:
        """Count occurrences [n, V] int32 of the draws' slots, and the drafts that they stand
        behind."""
        index = torch.arange(self.drafts.shape[1], device=self.drafts.device)
        said = (index < self.lengths.unsqueeze(1)).to(occurrences.dtype)
        return occurrences.scatter_add_(1, self.drafts[self.row], said)

    def newest(self, recent: torch.Tensor) -> torch.Tensor:
        """Move recent [n, W] int32, the newest tokens of the draws' slots, on by the drafts."""
        return newest_of(recent, self.drafts[self.row], self.lengths)


def newest_of(recent: torch.Tensor, token_ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The newest W tokens when `counts` [n] of token_ids [n, K] follow on recent [n, W]."""
    both = torch.cat([recent, token_ids.to(recent.dtype)], dim=1)
    index = torch.arange(recent.shape[1], device=recent.device)
    return both.gather(1, index + counts.unsqueeze(1))
