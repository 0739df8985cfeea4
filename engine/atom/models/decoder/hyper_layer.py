"""HyperLayer: a layer between several residual streams (DeepSeek V4), which hyper-connections mix
before and after its attention and its experts."""

from __future__ import annotations

import torch

from atom.model_ops.linear import Build
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import Stream
from atom.models.decoder.decoder_layers import DecoderLayer
from atom.models.decoder.hyper_connections import HyperConnection
from atom.models.decoder.mlp import ExpertsByToken
from atom.models.decoder.spec import LayerSpec


class HyperLayer(DecoderLayer):
    """Take a stream's residual as [T, n, H], n streams of each token."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        assert spec.streams is not None
        self.attn_hc = HyperConnection(spec.streams, hidden_size)
        self.ffn_hc = HyperConnection(spec.streams, hidden_size)

    def forward(
        self,
        stream: Stream,
        positions: torch.Tensor,
        aux: torch.Tensor | None = None,
        token_ids: torch.Tensor | None = None,
    ) -> Stream:
        """Run the layer; token_ids [T]: of the step's tokens, whose experts may follow from
        them."""
        assert aux is None, "no draft model sees what several streams are"
        streams = stream.residual
        x, mixing = self.attn_hc(streams)
        attended = self.attention(self.input_layernorm(Stream(x)), positions)
        tokens = self._wanted_tokens()
        if tokens is not None:
            streams, attended, mixing = streams[tokens], attended[tokens], mixing.of(tokens)
            token_ids = None if token_ids is None else token_ids[tokens]
        streams = mixing.join(streams, self._group.reduce(self.attention.o_proj(attended)))
        x, mixing = self.ffn_hc(streams)
        h = self.post_attention_layernorm(Stream(x))
        by_token = isinstance(self.mlp, ExpertsByToken)
        result = self.mlp(h, token_ids) if by_token else self.mlp(h)
        return Stream(mixing.join(streams, self._group.reduce(result)))
