"""The encoder of Qwen3-VL and Qwen3.5: a learned grid of positions, and rotated rows and columns.

In Qwen3-VL, results of inner layers are added to the decoder's first layers (DeepStack, Meng et al.
2024). Keys and defaults are those of transformers' classes.
"""

from __future__ import annotations

from typing import ClassVar

from atom.sizing.config_fields import Config, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.vision.facts import MOST_KEPT_TOKENS, Family, Grid, Patches, VisionFacts
from atom.sizing.vision.fields import (
    channel_count,
    head_count,
    layer_count,
    rope_theta,
    single,
    vision_config,
    whole,
)

_DEEPSTACK = (8, 16, 24)


class QwenVisionFacts(VisionFacts, frozen=True, kw_only=True, tag=True):
    """Adds the fields of Qwen's encoders. inner_layers: the layers whose results go to the
    decoder's first layers, in their order; positions: learned ones, of a square grid; sections:
    pairs of the decoder's heads that rotate by time, height and width, unless its rope names
    others."""

    family: ClassVar[Family] = "qwen3_vl"

    inner_layers: tuple[int, ...]
    positions: int
    theta: float
    activation: str
    sections: tuple[int, int, int]

    @property
    def decoder_layers(self) -> int:
        return len(self.inner_layers)

    @property
    def has_axes(self) -> bool:
        return True

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return (grid[1] * grid[2], self.patches.numbers)

    @property
    def parameters(self) -> int:
        hidden = self.hidden_size
        patches = hidden * self.patches.numbers + hidden
        positions = self.positions * hidden
        merged = hidden * self.patches.merge**2
        merger = merged**2 + merged + merged * self.output_size + self.output_size
        mergers = merger + 2 * hidden + len(self.inner_layers) * (merger + 2 * merged)
        return patches + positions + self.num_layers * self.plain_layer_parameters + mergers


def qwen3_vl(config: Config, text: Config) -> QwenVisionFacts:
    """Read the facts. config: the whole config.json; text: its decoder's. Raises ModelFactsError
    for a value that encoder and decoder do not compute together."""
    vision = vision_config(config)
    layers = layer_count(vision, "depth", 27)
    inner = _inner_layers(vision, layers, positive(text, "num_hidden_layers"))
    return _facts(config, text, inner, 151_655, (24, 20, 20))


def qwen3_5(config: Config, text: Config) -> QwenVisionFacts:
    """Read the facts of Qwen3.5, whose decoder gets the last layer's outputs alone. As
    `qwen3_vl`."""
    return _facts(config, text, (), 248_056, (11, 11, 10))


def _facts(
    config: Config,
    text: Config,
    inner_layers: tuple[int, ...],
    image_token_id: int,
    sections: tuple[int, int, int],
) -> QwenVisionFacts:
    vision = vision_config(config)
    layers, output = layer_count(vision, "depth", 27), positive(text, "hidden_size")
    hidden = whole(vision, "hidden_size", 1152)
    out = positive(vision, "out_hidden_size", default=output)
    if out != output:
        raise ModelFactsError(
            f"config.json: vision_config.out_hidden_size is {out}; it must be the decoder's "
            f"hidden_size, {output}",
            field="out_hidden_size",
        )
    return QwenVisionFacts(
        hidden_size=hidden,
        intermediate_size=whole(vision, "intermediate_size", 4304),
        num_layers=layers,
        num_heads=head_count(vision, "num_heads", 16, hidden),
        patches=Patches(
            size=single(vision, "patch_size", 16),
            merge=single(vision, "spatial_merge_size", 2),
            channels=channel_count(vision, "in_channels"),
            frames=single(vision, "temporal_patch_size", 2),
        ),
        output_size=output,
        most_image_tokens=MOST_KEPT_TOKENS,
        image_token_id=positive(config, "image_token_id", default=image_token_id),
        inner_layers=inner_layers,
        positions=whole(vision, "num_position_embeddings", 2304),
        theta=rope_theta(vision),
        activation=str(vision.get("hidden_act") or "gelu_pytorch_tanh"),
        sections=sections,
    )


def _inner_layers(vision: Config, layers: int, decoder_layers: int) -> tuple[int, ...]:
    value = vision.get("deepstack_visual_indexes", _DEEPSTACK)
    listed = value if isinstance(value, (list, tuple)) else ()
    known = all(isinstance(each, int) and 0 <= each < layers for each in listed)
    ascending = list(listed) == sorted(set(listed))
    if not isinstance(value, (list, tuple)) or not known or not ascending:
        raise ModelFactsError(
            f"config.json: vision_config.deepstack_visual_indexes is {value!r}; it must be "
            f"ascending layers of the encoder, from 0 to {layers - 1}",
            field="deepstack_visual_indexes",
        )
    if len(listed) >= decoder_layers:
        raise ModelFactsError(
            f"config.json: {len(listed)} layers of the encoder (deepstack_visual_indexes) have "
            f"results for the decoder's first layers; it has {decoder_layers} and must have more",
            field="deepstack_visual_indexes",
        )
    return tuple(int(each) for each in listed)
