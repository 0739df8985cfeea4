"""Llama 2 and 3 (Touvron et al. 2023; Llama 3 herd, 2024): the plain decoder, scaled rope."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.model_ops.backends.interface import Ops
from atom.models.decoder import CausalLM
from atom.models.spec import decoder_spec


class LlamaForCausalLM(CausalLM):
    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        super().__init__(decoder_spec(config), ops)
