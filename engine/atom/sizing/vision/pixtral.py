"""Pixtral's encoder with Mistral Small 3's projector: rows and columns rotate queries and keys, and
squares of patches are merged into tokens. Keys and defaults are those of transformers' classes."""

from __future__ import annotations

from typing import ClassVar

from atom.sizing.config_fields import Config, flag, number, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.vision.facts import Family, Grid, Patches, VisionFacts
from atom.sizing.vision.fields import (
    channel_count,
    head_count,
    layer_count,
    rope_theta,
    single,
    vision_config,
    whole,
)

_IMAGE_SIZE = 1024  # of transformers' class


class PixtralFacts(VisionFacts, frozen=True, kw_only=True, tag=True):
    """Adds the fields of Pixtral and of the projector. feature_layer: the layer whose result is
    projected, counted from 1, 0 for the first layer's input; activation, projector_activation: of
    the MLPs and of the projector; projector_eps: of the projector's norm; projector_bias: whether
    its two matrices have biases."""

    family: ClassVar[Family] = "pixtral"

    feature_layer: int
    theta: float
    activation: str
    projector_activation: str
    projector_eps: float
    projector_bias: bool

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return (self.patches.channels, grid[1] * self.patches.size, grid[2] * self.patches.size)

    @property
    def parameters(self) -> int:
        hidden = self.hidden_size
        layer = 4 * hidden**2 + 3 * hidden * self.intermediate_size + 2 * hidden
        encoder = hidden * self.patches.numbers + hidden + self.num_layers * layer
        merger = hidden + hidden**2 * self.patches.merge**2
        out = self.output_size
        biases = 2 * out if self.projector_bias else 0
        return encoder + merger + hidden * out + out**2 + biases


def pixtral(config: Config, text: Config) -> PixtralFacts:
    """Read the facts. config: the whole config.json; text: its decoder's. Raises ModelFactsError
    for a value that the encoder does not compute."""
    vision = vision_config(config)
    layers, hidden = (
        layer_count(vision, "num_hidden_layers", 24),
        whole(vision, "hidden_size", 1024),
    )
    patch, merge = single(vision, "patch_size", 16), single(config, "spatial_merge_size", 2)
    side = positive({"side": _longest_side(vision)}, "side") // patch // merge
    return PixtralFacts(
        hidden_size=hidden,
        intermediate_size=whole(vision, "intermediate_size", 4096),
        num_layers=layers,
        num_heads=head_count(vision, "num_attention_heads", 16, hidden),
        patches=Patches(patch, merge, channel_count(vision)),
        output_size=positive(text, "hidden_size"),
        most_image_tokens=max(1, side) ** 2,
        image_token_id=_image_token_id(config),
        feature_layer=_feature_layer(config, layers),
        theta=rope_theta(vision),
        activation=str(vision.get("hidden_act") or "gelu"),
        projector_activation=str(config.get("projector_hidden_act") or "gelu"),
        projector_eps=number(text, "rms_norm_eps", default=1e-6),
        projector_bias=flag(config, "multimodal_projector_bias"),
    )


def _longest_side(vision: Config) -> object:
    """Return the longest side of an image in pixels: the table of rotations has no more."""
    value = vision.get("image_size")
    return max(value) if isinstance(value, list) and value else value or _IMAGE_SIZE


def _image_token_id(config: Config) -> int:
    key = "image_token_index" if config.get("image_token_index") is not None else "image_token_id"
    return positive(config, key, default=10)


def _feature_layer(config: Config, layers: int) -> int:
    """Return the wanted layer, counted from 0; a checkpoint may count it from the end."""
    value = config.get("vision_feature_layer")
    listed = [-1] if value is None else value if isinstance(value, list) else [value]
    layer = listed[0] if len(listed) == 1 else None
    if isinstance(layer, bool) or not isinstance(layer, int) or not -layers - 1 <= layer <= layers:
        raise ModelFactsError(
            f"config.json: vision_feature_layer is {value!r}; it must be one layer of the encoder, "
            f"from {-layers - 1} to {layers}; --language-model-only serves the text part",
            field="vision_feature_layer",
        )
    return layer % (layers + 1)
