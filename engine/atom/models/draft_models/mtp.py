"""MTP: the layer for multi-token prediction of DeepSeek-V3, GLM-4.5, Qwen3-Next and MiMo-V2-Flash.

arXiv 2412.19437, section 2.2. Embedding and head are the model's. Qwen's layer continues from the
states after its norm, the others from those before it, as in vLLM; MiMo's also sees the input of
the model's last norm, as in SGLang. Built by build_draft.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.values import Stream
from atom.models.decoder.causal_lm import CausalLM, Decoder
from atom.models.decoder.decoder_layers import DecoderLayer
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.spec import ModelSpec
from atom.models.draft_models.draft_model import DraftModel, joining, settled


class MtpDraft(DraftModel):
    """The layer of multi-token prediction, which a checkpoint has after the model's own.
    sees_stream: the layer sees the input of the model's last norm, and not its output."""

    sees_stream = False
    _joining = "eh_proj"  # the matrix that joins embedding and hidden state

    def __init__(self, spec: ModelSpec, model: CausalLM, build: Build) -> None:
        decoder = model.model
        assert isinstance(decoder, Decoder), "nothing else drafts"
        super().__init__(decoder.embed_tokens)
        (layer,) = spec.mtp_layers
        size, self._head = spec.hidden_size, (model.lm_head,)
        self._prefix = f"model.layers.{len(spec.layers)}."
        self.enorm = build_norm(size, layer.norm, build)
        self.hnorm = build_norm(size, layer.norm, build)
        self.eh_proj = Linear((joining(self._joining, size, 2 * size),), build)
        self.layer = DecoderLayer(layer, decoder.rotary_of(layer.rope), build, size)
        self.layer.is_last = True
        self.shared_head = _SharedHead(build_norm(size, layer.norm, build))

    def join(self, states: HiddenStates) -> torch.Tensor:
        return states.last

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        parts = (self.enorm.of(self._embed(token_ids)), self.hnorm.of(hidden))
        joined: torch.Tensor = self.eh_proj(torch.cat(parts, dim=1))
        return settled(self.shared_head.norm(self.layer(Stream(joined), positions)))

    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        return self._head[0].draw(self.shared_head.norm.of(hidden), sampling)

    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.named_modules():
            yield f"{self._prefix}{name.removeprefix('layer.')}", module

    def unused_tensors(self) -> tuple[str, ...]:
        return (f"{self._prefix}embed_tokens.", f"{self._prefix}shared_head.head.")


_QWEN_NAMES = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "eh_proj": "fc",
    "layer": "layers.0",
    "shared_head.norm": "norm",
}


class QwenMtpDraft(MtpDraft):
    """The layer of Qwen3-Next and Qwen3.5, which has a name outside the model."""

    _joining = "fc"

    def __init__(self, spec: ModelSpec, model: CausalLM, build: Build) -> None:
        super().__init__(spec, model, build)
        self._prefix = spec.mtp_prefix

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        return self.shared_head.norm.of(super().forward(token_ids, positions, hidden))

    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        return self._head[0].draw(hidden, sampling)

    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.named_modules():
            for ours, theirs in _QWEN_NAMES.items():
                if name == ours or name.startswith(f"{ours}."):
                    yield f"{self._prefix}{theirs}{name.removeprefix(ours)}", module

    def unused_tensors(self) -> tuple[str, ...]:
        return (f"{self._prefix}embed_tokens.",)


_MIMO_NAMES = {
    "layer.post_attention_layernorm": "pre_mlp_layernorm",
    "shared_head.norm": "final_layernorm",
}


class MimoMtpDraft(MtpDraft):
    """The first of the three layers that MiMo-V2-Flash has: each sees the model's hidden states,
    and predicts a token further than the one before."""

    sees_stream = True

    def __init__(self, spec: ModelSpec, model: CausalLM, build: Build) -> None:
        super().__init__(spec, model, build)
        self._prefix = f"{spec.mtp_prefix}layers.0."

    def join(self, states: HiddenStates) -> torch.Tensor:
        assert states.aux is not None, "the model gives what its last norm is given"
        return states.aux

    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.named_modules():
            yield f"{self._prefix}{_MIMO_NAMES.get(name, name.removeprefix('layer.'))}", module

    def unused_tensors(self) -> tuple[str, ...]:
        others = (self._prefix.replace("0", number) for number in "12")
        return (f"{self._prefix}embed_tokens.", *others)


class _SharedHead(nn.Module):
    """The norm before the model's head."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.norm = norm
