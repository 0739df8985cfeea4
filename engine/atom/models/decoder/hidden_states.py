"""HiddenStates: the result of a forward pass, from which tokens are sampled and drafted."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The hidden states of a step. last [n, H]: after the last norm, of the tokens that need
    logits; aux [T, layers · H]: the auxiliary hidden states, the inputs of some layers for every
    token, concatenated; None without any. token_ids [T] int64: the computed tokens, None of a model
    for which nothing drafts."""

    last: torch.Tensor
    aux: torch.Tensor | None = None
    token_ids: torch.Tensor | None = None

    def first(self, count: int) -> HiddenStates:
        """Return the states of the first tokens, for a step in which all tokens need logits."""
        aux = None if self.aux is None else self.aux[:count]
        token_ids = None if self.token_ids is None else self.token_ids[:count]
        return HiddenStates(self.last[:count], aux, token_ids)
