"""WholeModelDraft: a model with the same vocabulary drafts, such as Qwen3-0.6B for Qwen3-32B.

Method draft_model, which SGLang calls STANDALONE (arXiv 2211.17192). It has its own embedding and
head, and sees no hidden states. Published sizes of a family pad their vocabularies differently: ids
that one of the two models does not have stand for no text. Built by build_draft.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import SamplingTensors
from atom.models.decoder.causal_lm import CausalLM, Decoder
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.draft_models.draft_model import DraftModel


class WholeModelDraft(DraftModel):
    """A model that drafts for another one by its own next tokens. target_size: of the other's
    vocabulary."""

    sees_states = False

    def __init__(self, causal_lm: CausalLM, target_size: int) -> None:
        assert isinstance(causal_lm.model, Decoder), "nothing else drafts"
        super().__init__(causal_lm.model.embed_tokens)
        self.causal_lm = causal_lm
        self._size, self._target_size = causal_lm.spec.vocab_size, target_size

    def join(self, states: HiddenStates) -> torch.Tensor:
        return states.last  # which it ignores

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        if self._size < self._target_size:
            token_ids = token_ids.clamp_max(self._size - 1)
        states: HiddenStates = self.causal_lm.model(token_ids, positions)
        return states.last

    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        drawn = self.causal_lm.lm_head.draw(hidden, sampling)
        return drawn.clamp_max(self._target_size - 1) if self._size > self._target_size else drawn

    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        return self.causal_lm.named_modules()

    def unused_tensors(self) -> tuple[str, ...]:
        return self.causal_lm.unused_tensors()
