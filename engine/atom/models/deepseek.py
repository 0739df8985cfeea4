"""DeepSeek V2 and V3 (arXiv 2405.04434, 2412.19437), and what shares their names, such as R1 and
Kimi-K2: latent attention whose rope turns neighbouring elements, and scores that grow with a
lengthened context."""

from __future__ import annotations

from dataclasses import replace

from atom.config import ModelConfig
from atom.model_ops.rotary_embedding import RopeConfig, yarn_mscale
from atom.model_ops.values import LatentShape
from atom.models.spec import LayerSpec, ModelSpec, decoder_spec, rope_parameters


def spec(config: ModelConfig) -> ModelSpec:
    """What config.json says of a DeepSeek model. Raises `ModelError` as `decoder_spec` does."""
    plain = decoder_spec(config)
    return replace(
        plain,
        layers=tuple(
            replace(layer, attention=_shape(config, layer), rope=_rope(config, layer))
            for layer in plain.layers
        ),
    )


def _shape(config: ModelConfig, layer: LayerSpec) -> LatentShape:
    shape, parameters = layer.attention, rope_parameters(config.hf_config)
    assert isinstance(shape, LatentShape)
    lengthened = float(parameters.get("mscale_all_dim") or 0.0)
    if layer.rope.scaling is None or not lengthened:
        return shape
    mscale = yarn_mscale(float(parameters.get("factor") or 1.0), lengthened)
    return replace(shape, scale=shape.scale * mscale * mscale)


def _rope(config: ModelConfig, layer: LayerSpec) -> RopeConfig:
    interleaved = config.hf_config.get("rope_interleave")
    return replace(layer.rope, interleaved=True if interleaved is None else bool(interleaved))
