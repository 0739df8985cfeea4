"""Build the spec of a model without a family: its class is described, compared and proven."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from atom.checkpoint import open_checkpoint
from atom.config import ModelConfig
from atom.errors import ModelError
from atom.missing_packages import missing_package
from atom.model_ops.activations import Activation
from atom.model_ops.rotary_embedding import RopeConfig
from atom.models.decoder.fallback.attention_call import (
    AttentionCall,
    FallbackRefusalError,
    FallbackSpec,
)
from atom.models.decoder.fallback.published_class import (
    build_class,
    calls_of,
    class_config,
    stored_names,
)
from atom.models.decoder.fallback.self_proof import prove
from atom.models.decoder.spec import LayerSpec, ModelSpec, NormSpec
from atom.sizing.architectures import nearest_with_family
from atom.sizing.layers import FallbackFacts, LayerFacts
from atom.sizing.model_facts import ModelFacts


def spec(config: ModelConfig) -> ModelSpec:
    """Build a model's spec from transformers' class, which is proven first, with the bytes of its
    tensors in the current default dtype. Raises `ModelError` with the module or field that prevents
    it."""
    raw = open_checkpoint(config.path).config
    with _told(config, raw):
        published = class_config(config.architecture, raw)
        with torch.device("meta"):
            model = build_class(config.architecture, published)
        weights = FallbackFacts(
            elements=sum(each.numel() for each in model.parameters()),
            buffer_bytes=sum(each.nbytes for each in model.buffers()),
        )
        calls = calls_of(model)
        _check_facts(config.facts, calls)
        renamed = stored_names(model)
        prove(config.architecture, published, calls)
    return ModelSpec(
        hidden_size=config.facts.hidden_size,
        vocab_size=config.facts.vocab_size,
        max_position=config.max_model_len,
        tie_word_embeddings=False,
        norm=_UNUSED_NORM,
        layers=tuple(map(_layer, config.facts.layers, calls)),
        body=FallbackSpec(published, config.architecture, calls, renamed, weights),
    )


_UNUSED_NORM = NormSpec(eps=0.0)  # the class has its own


def _layer(facts: LayerFacts, call: AttentionCall) -> LayerSpec:
    return LayerSpec(
        facts=facts,
        matrices={},
        mlp=(),
        attention=call.shape,
        rope=RopeConfig(call.head_dim, 0, 10_000.0),
        activation=Activation.SILU,  # unused: the class computes its own
        norm=_UNUSED_NORM,
    )


def _check_facts(facts: ModelFacts, calls: tuple[AttentionCall, ...]) -> None:
    """Check that the plan's cache is the one that the class fills."""
    if len(calls) != facts.num_layers:
        raise FallbackRefusalError(
            f"num_hidden_layers: {facts.num_layers} by config.json, and {len(calls)} attend"
        )
    for layer, call in zip(facts.layers, calls, strict=True):
        heads = layer.attention
        planned = heads.num_heads, heads.num_kv_heads, heads.head_dim
        found = call.num_heads, call.num_kv_heads, call.head_dim
        if planned != found:
            raise FallbackRefusalError(
                f"{call.module}: heads, KV heads and their size are {found}, and {planned} by "
                "config.json; write num_attention_heads, num_key_value_heads and head_dim there"
            )


@contextlib.contextmanager
def _told(config: ModelConfig, raw: dict[str, Any]) -> Iterator[None]:
    """Turn a refusal of the class, or a missing package, into the `ModelError` for users."""
    try:
        yield
    except ModuleNotFoundError as error:
        text = missing_package(error, f"a {config.architecture}")
        raise ModelError(text or str(error)) from error
    except FallbackRefusalError as error:
        raise ModelError(_refusal(config, raw, error)) from error


def _refusal(config: ModelConfig, raw: dict[str, Any], error: FallbackRefusalError) -> str:
    near = nearest_with_family(config.architecture, raw)
    return (
        f"{config.path}: {config.architecture} has no family here, and transformers' class cannot "
        f"be computed with the engine's attention: {error}"
        f"{f'; the nearest family is {near}' if near else ''}"
    )
