"""FallbackDecoder: transformers' class as the engine's decoder, with the engine's attention.

The class computes embeddings, norms, matrices and logits for a step's tokens as one flat sequence:
none of these mixes tokens. Only attention does, and the engine's attention knows the rows of a step
and their pages. Built by CausalLM in place of a Decoder. The logits of the wanted tokens take the
place of their hidden states, since the class may scale or bound them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from atom.model_ops.attention import Attention
from atom.model_ops.backends.interface import Ops, SamplingTensors
from atom.model_ops.linear import Build
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RopeConfig, RotaryEmbedding
from atom.models.decoder.fallback.attention_call import (
    AttentionCall,
    FallbackRefusalError,
    FallbackSpec,
    Heads,
)
from atom.models.decoder.fallback.published_class import build_class, connect
from atom.models.decoder.hidden_states import HiddenStates
from atom.utils.forward_context import get_forward_context


class FallbackDecoder(nn.Module):
    """A class of transformers over the paged KV cache."""

    def __init__(self, spec: FallbackSpec, build: Build) -> None:
        super().__init__()
        self.published = build_class(spec.architecture, spec.config)
        self._renamed = dict(spec.renamed)
        sizes = dict.fromkeys(call.head_dim for call in spec.calls)
        # Heads arrive rotated: the engine's own rotation stands still.
        still = {size: RotaryEmbedding(RopeConfig(size, 0, 10_000.0), 1) for size in sizes}
        self.ropes = nn.ModuleList(still.values())
        self.layers = nn.ModuleList()
        for call in spec.calls:
            layer = Attention(call.shape, still[call.head_dim], norms=None, ops=build.ops)
            self.layers.append(layer)
            connect(self.published.get_submodule(call.module), _PagedAttention(call, layer))

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of every tensor, under the class's own name; a checkpoint
        of the bare decoder has none of the class's prefix."""
        stored = self.published.state_dict(keep_vars=True)
        prefix = f"{self.published.base_model_prefix}."
        seen: set[int] = set()
        for own, tensor in stored.items():
            if id(tensor) in seen:
                continue  # a head that is the embedding
            seen.add(id(tensor))
            whole = Placement.whole(self._renamed.get(own, own), tensor.data)
            others = dict.fromkeys((own, own.removeprefix(prefix)))
            aliases = tuple(name for name in others if name != whole.name)
            yield replace(whole, aliases=aliases)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> HiddenStates:
        """Compute input_ids [T] at positions [T] → the logits [n, V] of the tokens that the forward
        context selects."""
        wanted = get_forward_context().logits_indices
        found = self.published(
            input_ids=input_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=0 if wanted is None else wanted,
        )
        return HiddenStates(found.logits[0])


class _PagedAttention:
    """Attend for one layer of the class over the paged cache."""

    def __init__(self, call: AttentionCall, layer: Attention) -> None:
        self._call, self._layer = call, layer

    def __call__(self, heads: Heads, given: Mapping[str, Any]) -> torch.Tensor:
        if AttentionCall.read(self._call.module, heads, given) != self._call:
            raise FallbackRefusalError(
                f"{self._call.module}: settings of its attention depend on the step"
            )
        parts = (heads.queries, heads.keys, heads.values)
        flat = [part[0].transpose(0, 1).flatten(1).to(heads.values.dtype) for part in parts]
        qkv = torch.cat(flat, dim=1)
        still = torch.zeros(len(qkv), dtype=torch.int64, device=qkv.device)
        attended: torch.Tensor = self._layer(qkv, still)
        return attended.view(1, -1, self._call.num_heads, self._call.head_dim)


class GivenLogits(nn.Module):
    """The head of a model that computes logits itself: it returns and samples the given ones."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def forward(self, logits: torch.Tensor) -> torch.Tensor:  # [R, V] → [R, V]
        return logits

    def draw(self, logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Sample tokens [R] int64 for rows that need no shaping."""
        return self._ops.sample(logits, sampling)
