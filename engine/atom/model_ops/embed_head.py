"""Token embedding and output head, the two ends of the vocabulary; ranks have a shard each."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.linear import Build
from atom.model_ops.placement import Placement
from atom.model_ops.sampling.ranked_draw import can_draw_apart, ranked_draw
from atom.model_ops.values import LinearWeight


class VocabParallelEmbedding(nn.Module):
    """The embedding, with its vocabulary divided between ranks. scale: multiplies embeddings,
    rounded to the model's dtype as in the checkpoint's training."""

    def __init__(
        self, vocab_size: int, hidden_size: int, build: Build, *, scale: float | None = None
    ) -> None:
        super().__init__()
        self._ops, self._group = build.ops, build.group
        self._rows, self._vocab_size = build.ranks.of(vocab_size), vocab_size
        self.weight = _shard(self._rows, hidden_size)
        self._scale = None
        if scale is not None:
            self._scale = torch.tensor(scale, device="cpu").to(self.weight.dtype).item()

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the parameter."""
        yield _placement(name, self.weight, self._rows, self._vocab_size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # [T] → [T, H]
        alone = self._group.size == 1
        looked_up = self._ops.embedding(ids, self.weight) if alone else self._look_up(ids)
        return looked_up if self._scale is None else looked_up * self._scale

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed ids over the ranks: each looks up the tokens of its shard, and zeros for the
        others."""
        first, end = self._rows
        elsewhere = (ids < first) | (ids >= end)
        found = self._ops.embedding((ids - first).masked_fill_(elsewhere, 0), self.weight)
        return self._group.reduce(found.masked_fill_(elsewhere.unsqueeze(1), 0.0))


class ParallelLMHead(nn.Module):
    """Logits of the hidden states it is given: the caller selects the rows that need them. softcap:
    bounds them."""

    def __init__(
        self, vocab_size: int, hidden_size: int, build: Build, *, softcap: float | None = None
    ) -> None:
        super().__init__()
        self._ops, self._group = build.ops, build.group
        self._rows, self._vocab_size = build.ranks.of(vocab_size), vocab_size
        self._softcap = softcap
        self._tied = False
        self.weight = _shard(self._rows, hidden_size)
        self.w = LinearWeight(self.weight.data)

    def tie(self, embedding: VocabParallelEmbedding) -> None:
        """Use the embedding's matrix as the head's (one parameter, loaded once)."""
        self.weight = embedding.weight
        self._tied = True

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the parameter, unless it is the embedding's."""
        if not self._tied:
            yield _placement(name, self.weight, self._rows, self._vocab_size)

    def finish(self) -> None:
        """Prepare the matrix for the backend, once it is loaded; a tied embedding sees the same
        one."""
        self.w = self._ops.prepare_linear(LinearWeight(self.weight.data))
        self.weight.data = self.w.data

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, V]
        return self._group.gather(self._own_logits(hidden))

    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Sample tokens [R] int64 for rows that need no shaping, as `Ops.sample` of all logits."""
        # Scores of shards may be rounded otherwise than a whole row's: not where runs repeat.
        draws_shards = self._group.size > 1 and hasattr(self._ops, "sample_vocab_shard")
        if draws_shards and can_draw_apart(self.w.outputs, sampling):
            return ranked_draw(self._own_logits(hidden), sampling, self._ops, self._group)
        return self._ops.sample(self(hidden), sampling)

    def _own_logits(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, V / ranks]
        logits = self._ops.linear(hidden, self.w)
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits


def _shard(rows: tuple[int, int], hidden_size: int) -> nn.Parameter:
    first, end = rows
    return nn.Parameter(torch.empty(end - first, hidden_size), requires_grad=False)


def _placement(
    name: str, weight: nn.Parameter, rows: tuple[int, int], vocab_size: int
) -> Placement:
    hidden_size = weight.shape[1]
    shape, region = (vocab_size, hidden_size), (rows, (0, hidden_size))
    return Placement(f"{name}.weight", shape, region, weight.data)
