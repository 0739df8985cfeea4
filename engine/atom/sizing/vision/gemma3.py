"""Gemma 3's encoder (SigLIP, Zhai et al. 2023) with its projector: learned positions of a square of
fixed size, whose patches are averaged to a fixed number of tokens. An image may have several such
squares. Keys and defaults are those of transformers' classes."""

from __future__ import annotations

from math import isqrt
from typing import ClassVar

from atom.sizing.config_fields import Config, number, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.vision.facts import Family, Grid, Patches, VisionFacts
from atom.sizing.vision.fields import (
    channel_count,
    layer_count,
    plain_head_count,
    single,
    vision_config,
    whole,
)

_TOKENS = 256  # of one square
_MOST_SQUARES = 5  # the whole picture and its parts


class Gemma3VisionFacts(VisionFacts, frozen=True, kw_only=True, tag=True):
    """Adds the fields of SigLIP. side: patches on a side of a square; activation: of the MLPs; eps:
    of all norms."""

    family: ClassVar[Family] = "gemma3"

    side: int
    activation: str
    eps: float

    @property
    def sees_ahead(self) -> bool:
        return True

    @property
    def square_tokens(self) -> int:
        """Return the tokens of one square."""
        return (self.side // self.patches.merge) ** 2

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        pixels = self.side * self.patches.size
        return (grid[0], self.patches.channels, pixels, pixels)

    def image_tokens(self, grid: Grid) -> int:
        return grid[0] * self.square_tokens

    def takes(self, grid: Grid) -> bool:
        return grid[0] > 0 and grid[1:] == (self.side, self.side)

    def largest_tokens(self, max_model_len: int) -> int:
        whole_squares = min(self.most_image_tokens, max_model_len) // self.square_tokens
        return max(1, whole_squares) * self.square_tokens

    def largest_grid(self, max_model_len: int) -> Grid:
        return self.largest_tokens(max_model_len) // self.square_tokens, self.side, self.side

    @property
    def parameters(self) -> int:
        hidden = self.hidden_size
        embedded = hidden * self.patches.numbers + hidden + self.side**2 * hidden
        projector = hidden + hidden * self.output_size
        return embedded + self.num_layers * self.plain_layer_parameters + 2 * hidden + projector


def gemma3(config: Config, text: Config) -> Gemma3VisionFacts:
    """Read the facts. config: the whole config.json; text: its decoder's. Raises ModelFactsError
    for sizes that do not divide into tokens."""
    vision = vision_config(config)
    hidden, patch = whole(vision, "hidden_size", 768), single(vision, "patch_size", 16)
    side = single(vision, "image_size", 224) // patch
    tokens = positive(config, "mm_tokens_per_image", default=_TOKENS)
    pool = side // isqrt(tokens)
    if isqrt(tokens) ** 2 != tokens or not pool or side // pool != isqrt(tokens):
        raise ModelFactsError(
            f"config.json: mm_tokens_per_image is {tokens}; {side} by {side} patches of an image "
            "must be averaged to a square of so many tokens; --language-model-only serves the "
            "text part",
            field="mm_tokens_per_image",
        )
    return Gemma3VisionFacts(
        hidden_size=hidden,
        intermediate_size=whole(vision, "intermediate_size", 3072),
        num_layers=layer_count(vision, "num_hidden_layers", 12),
        num_heads=plain_head_count(vision, "num_attention_heads", 12, hidden),
        patches=Patches(patch, pool, channel_count(vision)),
        output_size=positive(text, "hidden_size"),
        most_image_tokens=_MOST_SQUARES * tokens,
        image_token_id=positive(config, "image_token_index", default=262_144),
        side=side,
        activation=str(vision.get("hidden_act") or "gelu_pytorch_tanh"),
        eps=number(vision, "layer_norm_eps", default=1e-6),
    )
