"""Token embedding and output head, the two ends of the vocabulary."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.backends.interface import Ops


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocab_size: int, hidden_size: int, *, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # [T] → [T, H]
        return self._ops.embedding(ids, self.weight)


class ParallelLMHead(nn.Module):
    """Logits of the hidden states it is given: the caller selects the rows that need them."""

    def __init__(self, vocab_size: int, hidden_size: int, *, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def tie(self, embedding: VocabParallelEmbedding) -> None:
        """Use the embedding's matrix as the head's (one parameter, loaded once)."""
        self.weight = embedding.weight

    def prepare(self) -> None:
        """Once, when the weights are loaded; a tied embedding sees the same matrix."""
        self.weight.data = self._ops.prepare_linear(self.weight.data)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, V]
        return self._ops.linear(hidden, self.weight, None)
