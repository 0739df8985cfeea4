"""Hugging Face architecture name → its family's file, imported when asked for.

The table is `atom.sizing.architectures`. A family's module has `spec(config) -> ModelSpec`; all are
built as a CausalLM.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import cast

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.linear import Build
from atom.models.decoder.causal_lm import CausalLM
from atom.models.decoder.spec import ModelSpec
from atom.sizing.architectures import SERVED

# The name that serving engines' guides give this table; importable from model_runner too.
support_model_arch_dict: dict[str, str] = {
    name: f"atom.models.{row.module}" for name, row in SERVED.items()
}


def model_spec(config: ModelConfig) -> ModelSpec:
    """Build the spec of the configuration's architecture. Raises `ModelError` if the architecture,
    or the meaning of a field of config.json, is not supported."""
    row = SERVED.get(config.architecture)
    if row is None:
        raise ModelError(
            f"architecture {config.architecture} is not supported; supported: {', '.join(SERVED)}"
        )
    return cast(ModelSpec, import_module(f"atom.models.{row.module}").spec(config))


def counted(config: ModelConfig, spec: ModelSpec) -> ModelConfig:
    """Return the configuration with the exact bytes of weights, which a config.json only bounds for
    a model without a family. spec: of the configuration."""
    if spec.fallback is None:
        return config
    inputs = replace(config.facts.inputs, fallback=spec.fallback.weights)
    return replace(config, facts=replace(config.facts, inputs=inputs))


def build_model(spec: ModelSpec, build: Build) -> CausalLM:
    """Build the model with empty parameters, on the current default device and dtype."""
    return CausalLM(spec, build)
