"""HiddenStates: what a forward gives, of which tokens are drawn and further ones are drafted."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The hidden states of a step. last [n, H]: behind the last norm, of the tokens that are looked
    at; tapped [T, taps · H]: what the tapped layers were given of every token, one beside the
    other; None without taps."""

    last: torch.Tensor
    tapped: torch.Tensor | None = None

    def first(self, count: int) -> HiddenStates:
        """Take those of the first tokens, of a step in which all are looked at."""
        tapped = None if self.tapped is None else self.tapped[:count]
        return HiddenStates(self.last[:count], tapped)
