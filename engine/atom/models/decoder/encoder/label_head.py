"""LabelHead: the head of a `*ForSequenceClassification`, from a prompt's vector to its labels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.placement import Placement
from atom.models.decoder.encoder.parts import HeadNorm
from atom.models.decoder.spec import EncoderSpec, HeadSpec
from atom.models.vision.parts import activation, empty


class LabelHead(nn.Module):
    """Computes labels(norm(activation(dense(x)))), whole on every rank."""

    def __init__(self, head: HeadSpec, spec: EncoderSpec, size: int) -> None:
        super().__init__()
        facts = spec.facts.head
        assert facts is not None
        self.dense, self.labels = empty(size, size), empty(facts.labels, size)
        self.dense_bias = empty(size) if head.bias else None
        self.labels_bias = empty(facts.labels)
        self.norm = HeadNorm(size, spec) if head.norm else None
        self._activation, self._head = activation(head.activation), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, H] → [n, labels]
        x = self._activation(F.linear(x.to(self.dense.dtype), self.dense, self.dense_bias))
        if self.norm is not None:
            x = self.norm(x)
        return F.linear(x, self.labels, self.labels_bias)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of each parameter, under the names beside this module."""
        beside, head = name.rpartition(".")[0], self._head
        yield Placement.whole(f"{beside}.{head.dense}.weight", self.dense.data)
        if self.dense_bias is not None:
            yield Placement.whole(f"{beside}.{head.dense}.bias", self.dense_bias.data)
        if self.norm is not None:
            yield from self.norm.sources(f"{beside}.{head.norm}")
        yield Placement.whole(f"{beside}.{head.labels}.weight", self.labels.data)
        yield Placement.whole(f"{beside}.{head.labels}.bias", self.labels_bias.data)
