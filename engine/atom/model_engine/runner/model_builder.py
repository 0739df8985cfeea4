"""ModelBuilder: build a model and its draft model on a device, and load their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from atom.config import Config
from atom.model_engine.runner.speculation.speculation_setup import SpeculationSetup
from atom.model_loader.weight_loader import fill_dummy
from atom.model_ops.linear import Build
from atom.models.decoder.causal_lm import CausalLM, finish_weights
from atom.models.registry import build_model
from atom.utils.default_dtype import default_dtype


@dataclass(frozen=True, slots=True)
class ModelBuilder:
    """Make models of one kind. build: settings of their layers; dtype: the default element type."""

    build: Build
    dtype: torch.dtype

    def make(self, speculation: SpeculationSetup, device: torch.device) -> CausalLM:
        """Make a model and its drafter on a device, with weights unfilled."""
        with default_dtype(self.dtype), device:
            model = build_model(speculation.spec, self.build)
            speculation.build(model, self.build)
        for part in speculation.models(model):
            part.to(device)  # tables that were computed on the host
        return model

    @staticmethod
    def fill(
        model: CausalLM,
        speculation: SpeculationSetup,
        config: Config,
        progress: Callable[[float], None],
    ) -> None:
        """Fill the weights of a model and its drafter, in the backend's layout."""
        parts = speculation.models(model)
        if config.model.load_dummy:
            for part in parts:
                fill_dummy(part, config.seed)
        else:
            speculation.read_weights(model, progress)
        for part in parts:
            finish_weights(part)
            part.eval()
