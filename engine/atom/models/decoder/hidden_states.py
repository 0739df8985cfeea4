"""HiddenStates: what a forward gives, of which tokens are drawn and further ones are drafted."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The hidden states of a step. last [n, H]: behind the last norm, of the tokens that are looked
    at; aux [T, layers · H]: the auxiliary hidden states, what some layers were given of every
    token, one beside the other; None without any."""

    last: torch.Tensor
    aux: torch.Tensor | None = None

    def first(self, count: int) -> HiddenStates:
        """Take those of the first tokens, of a step in which all are looked at."""
        aux = None if self.aux is None else self.aux[:count]
        return HiddenStates(self.last[:count], aux)
