"""DraftModel: a layer that predicts the token behind the next one, of a model's hidden states.

At position i it sees what the model made of token i, and token i + 1, and predicts token i + 2; of
its own output in the model's place it predicts on. Its layer keeps a cache of its own, in the same
blocks as the model's. The embedding is the model's. Kinds of them are in mtp.py and eagle3.py;
built by build_draft.py; drafted with by speculation/draft_model_proposer.py.
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
    hidden [n, H] of the tokens that are looked at; of these `draw` makes drafts, and with these it
    goes on in the model's place."""

    def __init__(self, embedding: VocabParallelEmbedding) -> None:
        super().__init__()
        # Kept out of the module tree: its parameters are the model's.
        self._embedding = (embedding,)

    @abstractmethod
    def join(self, states: HiddenStates) -> torch.Tensor:
        """Return what it sees of the model's hidden states, [T, H]."""

    @abstractmethod
    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Drafts [R] int64 of its own hidden states [R, H], in the model's vocabulary."""

    @abstractmethod
    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        """Yield its modules by their names in a checkpoint that holds tensors of these names."""

    @abstractmethod
    def unused_tensors(self) -> tuple[str, ...]:
        """Return how names begin of what a checkpoint holds beside, and it does not compute."""

    @property
    def dtype(self) -> torch.dtype:
        """Tell the dtype of its hidden states."""
        return self._embedding[0].weight.dtype

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._embedding[0](token_ids)
        return embedded


def settled(normed: Normed) -> torch.Tensor:
    """The stream that was normed."""
    normed.tensor()
    return normed.stream.residual


def joining(name: str, rows: int, columns: int) -> Projection:
    return Projection(name=name, rows=rows, columns=columns, split=Split.NOTHING, quantizable=False)
