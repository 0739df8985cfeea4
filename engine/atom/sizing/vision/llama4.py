"""Llama 4's encoder (Meta, 2025): tiles of a fixed size, rotated rows and columns, a class patch
behind each tile's patches, and an adapter that joins neighbouring patches to tokens. Keys and
defaults are those of transformers' classes."""

from __future__ import annotations

from typing import ClassVar

from atom.sizing.config_fields import Config, number, positive
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

_MOST_TILES = 16  # of a canvas, by the processor's default; the whole picture comes behind them


class Llama4VisionFacts(VisionFacts, frozen=True, kw_only=True, tag=True):
    """Adds the fields of Llama 4. side: patches on a side of a tile; adapter_size: elements between
    the adapter's matrices, and of its outputs; theta: base of the rotation."""

    family: ClassVar[Family] = "llama4"

    side: int
    adapter_size: int
    theta: float

    @property
    def tile_tokens(self) -> int:
        """Return the tokens of one tile."""
        return (self.side // self.patches.merge) ** 2

    def tiles(self, grid: Grid) -> int:
        """Return the tiles of an image: those of its canvas and, of several, the whole picture."""
        canvas = grid[1] * grid[2] // self.side**2
        return canvas + (canvas > 1)

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        pixels = self.side * self.patches.size
        return (self.tiles(grid), self.patches.channels, pixels, pixels)

    def image_tokens(self, grid: Grid) -> int:
        return self.tiles(grid) * self.tile_tokens

    def takes(self, grid: Grid) -> bool:
        time, height, width = grid
        return (
            time == 1 and min(height, width) > 0 and not (height % self.side or width % self.side)
        )

    def largest_tokens(self, max_model_len: int) -> int:
        tiles = min(self.most_image_tokens, max_model_len) // self.tile_tokens
        return (tiles if tiles > 2 else 1) * self.tile_tokens  # two tiles come with a third

    def largest_grid(self, max_model_len: int) -> Grid:
        tiles = self.largest_tokens(max_model_len) // self.tile_tokens
        return 1, self.side, self.side * (tiles - (tiles > 1))

    def encoded_patches(self, grid: Grid) -> int:
        return self.tiles(grid) * (self.side**2 + 1)

    @property
    def parameters(self) -> int:
        hidden = self.hidden_size
        embedded = hidden * self.patches.numbers + hidden + (self.side**2 + 1) * hidden
        adapter = self.intermediate_size * self.adapter_size + self.adapter_size**2
        projector = self.adapter_size * self.output_size
        return (
            embedded
            + 4 * hidden
            + self.num_layers * self.plain_layer_parameters
            + adapter
            + projector
        )


def llama4(config: Config, text: Config) -> Llama4VisionFacts:
    """Read the facts. config: the whole config.json; text: its decoder's. Raises ModelFactsError
    for sizes that do not fit each other."""
    vision = vision_config(config)
    hidden, inner = whole(vision, "hidden_size", 768), whole(vision, "intermediate_size", 5632)
    patch = single(vision, "patch_size", 14)
    side, merge = single(vision, "image_size", 448) // patch, _merge(vision)
    adapter = whole(vision, "projector_input_dim", 4096)
    for key, default, wanted in (
        ("projector_output_dim", 4096, adapter),
        ("vision_output_dim", 7680, adapter),
        ("intermediate_size", 5632, hidden * merge**2),
    ):
        if whole(vision, key, default) != wanted:
            raise _unfit(key, whole(vision, key, default), f"must be {wanted}")
    if not side or side % merge:
        raise _unfit("image_size", side * patch, f"must be whole groups of {merge} patches")
    tokens = (side // merge) ** 2
    return Llama4VisionFacts(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layer_count(vision, "num_hidden_layers", 34),
        num_heads=head_count(vision, "num_attention_heads", 16, hidden),
        patches=Patches(patch, merge, channel_count(vision)),
        output_size=positive(text, "hidden_size"),
        most_image_tokens=(_MOST_TILES + 1) * tokens,
        image_token_id=positive(config, "image_token_index", default=200_092),
        side=side,
        adapter_size=adapter,
        theta=rope_theta(vision),
    )


def _merge(vision: Config) -> int:
    """Return the patches of a token's side: the inverse of a ratio."""
    ratio = number(vision, "pixel_shuffle_ratio", default=0.5)
    merge = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not merge or abs(merge * ratio - 1) > 1e-6:
        raise _unfit("pixel_shuffle_ratio", ratio, "must be the inverse of a whole number")
    return merge


def _unfit(key: str, value: float, wanted: str) -> ModelFactsError:
    return ModelFactsError(
        f"config.json: vision_config.{key} is {value}; it {wanted}; --language-model-only serves "
        "the text part",
        field=key,
    )
