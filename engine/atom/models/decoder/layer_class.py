"""Select the class of a decoder layer by the norms, scales and factors of its spec."""

from __future__ import annotations

from atom.models.decoder.decoder_layers import (
    DecoderLayer,
    MixerLayer,
    PostNormLayer,
    SandwichLayer,
    ScaledLayer,
)
from atom.models.decoder.gemma4_layer import Gemma4Layer
from atom.models.decoder.hyper_layer import HyperLayer
from atom.models.decoder.spec import LayerSpec, NormPlacement

_LAYERS = {
    NormPlacement.BEFORE: DecoderLayer,
    NormPlacement.AROUND: SandwichLayer,
    NormPlacement.BEHIND: PostNormLayer,
}


def layer_class(spec: LayerSpec) -> type[DecoderLayer]:
    if spec.facts.mlp.is_absent:
        return MixerLayer
    if spec.streams is not None:
        return HyperLayer
    if spec.facts.output_factor:
        assert spec.norms is NormPlacement.AROUND, "no layer without has such a factor"
        return Gemma4Layer
    return ScaledLayer if spec.residual_scale != 1.0 else _LAYERS[spec.norms]
