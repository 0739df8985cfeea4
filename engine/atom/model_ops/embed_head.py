"""Token embedding and output head, the two ends of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import Ops
from atom.model_ops.placement import Placement
from atom.model_ops.values import LinearWeight


class VocabParallelEmbedding(nn.Module):
    """scale: multiplies what is looked up, rounded to the model's dtype as the checkpoint's
    training did."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, ops: Ops, scale: float | None = None
    ) -> None:
        super().__init__()
        self._ops = ops
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        self._scale = None
        if scale is not None:
            self._scale = torch.tensor(scale, device="cpu").to(self.weight.dtype).item()

    def placements(self, name: str) -> Iterator[Placement]:
        """Where the parameter comes from in a checkpoint."""
        yield Placement.whole(f"{name}.weight", self.weight.data)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # [T] → [T, H]
        looked_up = self._ops.embedding(ids, self.weight)
        return looked_up if self._scale is None else looked_up * self._scale


class ParallelLMHead(nn.Module):
    """Logits of the hidden states it is given: the caller selects the rows that need them. softcap:
    bounds them."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, ops: Ops, softcap: float | None = None
    ) -> None:
        super().__init__()
        self._ops = ops
        self._softcap = softcap
        self._tied = False
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        self.w = LinearWeight(self.weight.data)

    def tie(self, embedding: VocabParallelEmbedding) -> None:
        """Use the embedding's matrix as the head's (one parameter, loaded once)."""
        self.weight = embedding.weight
        self._tied = True

    def placements(self, name: str) -> Iterator[Placement]:
        """Where the parameter comes from, unless it is the embedding's."""
        if not self._tied:
            yield Placement.whole(f"{name}.weight", self.weight.data)

    def finish(self) -> None:
        """Once, when the weights are loaded; a tied embedding sees the same matrix."""
        self.w = self._ops.prepare_linear(LinearWeight(self.weight.data))
        self.weight.data = self.w.data

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, V]
        logits = self._ops.linear(hidden, self.w)
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits
