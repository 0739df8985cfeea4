"""Qwen3 dense models (Qwen3 technical report, 2025): the decoder with RMS norms on q and k."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.backends.interface import Ops
from atom.models.decoder import CausalLM
from atom.models.spec import decoder_spec


class Qwen3ForCausalLM(CausalLM):
    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        if config.hf_config.get("use_sliding_window"):
            raise ModelError(
                "config.json: use_sliding_window is not supported; "
                "set it to false if the model's layers all attend in full"
            )
        super().__init__(decoder_spec(config), ops)
