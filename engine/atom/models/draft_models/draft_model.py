"""DraftModel: a layer that drafts the token after the next one from a model's hidden states, or a
whole model that drafts the next one from tokens alone.

At position i a layer sees the model's hidden state of token i, and token i + 1, and predicts token
i + 2. Further drafts use its own output in place of the model's. Its embedding is the model's. A
whole model sees token i there, and predicts token i + 1. The layers of either have a cache in the
same blocks as the model's. mtp.py, eagle3.py and whole_model.py implement it; build_draft.py builds
it; speculation/draft_model_proposer.py drafts with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.embed_head import VocabParallelEmbedding
from atom.model_ops.layernorm import Normed
from atom.models.decoder.hidden_states import HiddenStates
from atom.sizing.projection import Projection, Split


class DraftModel(nn.Module, ABC):
    """Base of models that draft tokens. forward: (token ids [T], positions [T], hidden [T, H]) →
    hidden [n, H] of the tokens that need logits. `draw` makes drafts from these states, which also
    replace the model's in the next call. embedding: of its tokens. sees_states: it sees the model's
    hidden states, each with the token after it; False for a whole model, which is called with each
    token itself and ignores `hidden`."""

    sees_states = True

    def __init__(self, embedding: VocabParallelEmbedding) -> None:
        super().__init__()
        # Kept out of the module tree: its parameters are the model's.
        self._embedding = (embedding,)

    @abstractmethod
    def join(self, states: HiddenStates) -> torch.Tensor:
        """Combine the model's hidden states into the draft model's input [T, H]."""

    @abstractmethod
    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Draft token ids [R] int64, in the model's vocabulary, from the draft model's hidden
        states [R, H]."""

    @abstractmethod
    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        """Yield the draft model's modules by their names in a checkpoint that has tensors of these
        names."""

    @abstractmethod
    def unused_tensors(self) -> tuple[str, ...]:
        """Return the name prefixes of tensors that a checkpoint may contain and the draft model
        does not read."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the draft model's hidden states."""
        return self._embedding[0].weight.dtype

    @property
    def hidden_size(self) -> int:
        """Return the width of the draft model's hidden states."""
        return self._embedding[0].weight.shape[1]

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._embedding[0](token_ids)
        return embedded


def settled(normed: Normed) -> torch.Tensor:
    """Return the stream that was normed."""
    normed.tensor()
    return normed.stream.residual


def joining(name: str, rows: int, columns: int) -> Projection:
    return Projection(name=name, rows=rows, columns=columns, split=Split.NOTHING, quantizable=False)
