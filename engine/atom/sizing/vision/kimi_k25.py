"""Kimi-K2.5's encoder (MoonViT, Kimi Team 2025): learned positions of a square grid, resampled to
an image's own, rotated rows and columns; squares of patches become tokens.

Keys and defaults of transformers' classes, and the keys of the published checkpoints.
"""

from __future__ import annotations

from typing import ClassVar

from atom.sizing.config_fields import Config, number, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.vision.facts import Family, Grid, Patches, VisionFacts
from atom.sizing.vision.fields import (
    head_count,
    layer_count,
    rope_theta,
    single,
    vision_config,
    whole,
)

# The processor scales a picture to 16,384 patches, which whole squares round up.
_MOST_TOKENS = 4_500
_MOST_SIDE = 512  # patches
_IMAGE_TOKEN = 163_605
# The published checkpoints' key of each of transformers'.
_PUBLISHED = {
    "hidden_size": "vt_hidden_size",
    "intermediate_size": "vt_intermediate_size",
    "num_attention_heads": "vt_num_attention_heads",
    "num_hidden_layers": "vt_num_hidden_layers",
    "pos_emb_height": "init_pos_emb_height",
    "pos_emb_width": "init_pos_emb_width",
    "projection_hidden_size": "mm_hidden_size",
    "projection_layer_norm_eps": "projector_ln_eps",
}
# Of keys that choose among kinds of encoders, the value that this one has.
_KINDS = {
    "pos_emb_type": "divided_fixed",
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmerger",
    "projector_hidden_act": "gelu",
}


class KimiVisionFacts(VisionFacts, frozen=True, kw_only=True, tag=True):
    """Adds the fields of MoonViT. positions: rows and columns of learned positions; theta: base of
    the rotation; activation: of the MLPs; eps: of the projector's norm."""

    family: ClassVar[Family] = "kimi_k25"

    positions: tuple[int, int]
    theta: float
    activation: str
    eps: float

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return grid[1] * grid[2], self.patches.numbers

    def takes(self, grid: Grid) -> bool:
        return super().takes(grid) and max(grid[1:]) <= _MOST_SIDE

    @property
    def parameters(self) -> int:
        hidden, merged = self.hidden_size, self.hidden_size * self.patches.merge**2
        rows, columns = self.positions
        embedded = hidden * self.patches.numbers + hidden + rows * columns * hidden
        layers = self.num_layers * self.plain_layer_parameters + 2 * hidden
        projector = merged**2 + merged + merged * self.output_size + self.output_size
        return embedded + layers + 2 * hidden + projector


def kimi_k25(config: Config, text: Config) -> KimiVisionFacts:
    """Read the facts. config: the whole config.json; text: its decoder's. Raises ModelFactsError
    for another kind of encoder."""
    vision = _with_usual_keys(config)
    for key, kind in _KINDS.items():
        if vision.get(key) not in (None, kind):
            raise _other(key, vision[key], f"the engine computes {kind}")
    hidden = whole(vision, "hidden_size", 1152)
    projected = whole(vision, "projection_hidden_size", 1152)
    if projected != hidden:
        raise _other("projection_hidden_size", projected, f"the encoder's states have {hidden}")
    return KimiVisionFacts(
        hidden_size=hidden,
        intermediate_size=whole(vision, "intermediate_size", 4304),
        num_layers=layer_count(vision, "num_hidden_layers", 27),
        num_heads=head_count(vision, "num_attention_heads", 16, hidden),
        patches=Patches(
            single(vision, "patch_size", 14), single(vision, "merge_kernel_size", 2), 3
        ),
        output_size=positive(text, "hidden_size"),
        most_image_tokens=_MOST_TOKENS,
        image_token_id=_image_token_id(config),
        positions=(whole(vision, "pos_emb_height", 64), whole(vision, "pos_emb_width", 64)),
        theta=rope_theta(vision),
        activation=str(vision.get("hidden_act") or "gelu_pytorch_tanh"),
        eps=number(vision, "projection_layer_norm_eps", default=1e-5),
    )


def _with_usual_keys(config: Config) -> dict[str, object]:
    """Return the encoder's and the projector's fields under transformers' keys."""
    vision = dict(vision_config(config))
    for key, published in _PUBLISHED.items():
        for found in (vision.get(published), config.get(key)):
            if vision.get(key) is None and found is not None:
                vision[key] = found
    return vision


def _image_token_id(config: Config) -> int:
    key = "media_placeholder_token_id"
    key = key if config.get(key) is not None else "image_token_id"
    return positive(config, key, default=_IMAGE_TOKEN)


def _other(key: str, value: object, why: str) -> ModelFactsError:
    return ModelFactsError(
        f"config.json: vision_config.{key} is {value!r}, and {why}; --language-model-only serves "
        "the text part",
        field=key,
    )
