"""The layouts of pictures, by family of models that read images: grid, pixels, tokens of a prompt,
and the arguments of transformers' model.

A picture has a size in tokens; a family whose pictures have fixed sizes makes squares or tiles of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from atom.images.item import ImageItem
from atom.sizing.vision.facts import Grid

IMAGE_TOKEN = 292  # of the vocabulary, and in none of the texts
START_TOKEN, BREAK_TOKEN, END_TOKEN = 291, 291, 293
_WORDS = [7, 8]  # between the squares of one picture

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """An image's size in tokens, and the seed of its pixels."""

    height: int
    width: int
    seed: int = 0


class SeeingFamily:
    """A family by one checkpoint's config. token_key: of config.json, the token of images; texts:
    of the three tokens; encoder: changes of the encoder's config that tests of the family begin
    with."""

    token_key: ClassVar[str] = "image_token_id"
    texts: ClassVar[tuple[str, str, str]] = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
    encoder: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: Any) -> None:
        self.config, self.vision = config, config.vision_config

    def grid(self, picture: Picture) -> Grid:
        raise NotImplementedError

    def shape(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of the pixels."""
        raise NotImplementedError

    def tokens(self, picture: Picture) -> list[int]:
        """Return the tokens of a picture, with those around it."""
        raise NotImplementedError

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        """Return the arguments of transformers' model besides the tokens [1, T]."""
        raise NotImplementedError

    @property
    def sees_both_ways(self) -> bool:
        return False

    def processor(self) -> Inputs | None:
        """Return the fields of preprocessor_config.json that differ from defaults."""
        return None


class PixtralFamily(SeeingFamily):
    token_key = "image_token_index"
    texts = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    encoder: ClassVar[dict[str, Any]] = {"image_size": 280}

    def grid(self, picture: Picture) -> Grid:
        merge = self.config.spatial_merge_size
        return 1, picture.height * merge, picture.width * merge

    def shape(self, grid: Grid) -> tuple[int, ...]:
        patch = self.vision.patch_size
        return 3, grid[1] * patch, grid[2] * patch

    def tokens(self, picture: Picture) -> list[int]:
        row = [IMAGE_TOKEN] * picture.width
        return [*([*row, BREAK_TOKEN] * picture.height)[:-1], END_TOKEN]

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        sizes = [item.pixels.shape[1:] for item in items]
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        padded = np.zeros((len(items), 3, height, width), np.float32)
        for index, (item, size) in enumerate(zip(items, sizes, strict=True)):
            padded[index, :, : size[0], : size[1]] = item.pixels
        return {"pixel_values": torch.from_numpy(padded), "image_sizes": torch.tensor(sizes)}


class QwenFamily(SeeingFamily):
    def grid(self, picture: Picture) -> Grid:
        merge = self.vision.spatial_merge_size
        return 1, picture.height * merge, picture.width * merge

    def shape(self, grid: Grid) -> tuple[int, ...]:
        frames = self.vision.temporal_patch_size
        return grid[1] * grid[2], 3 * frames * self.vision.patch_size**2

    def tokens(self, picture: Picture) -> list[int]:
        return [START_TOKEN, *[IMAGE_TOKEN] * (picture.height * picture.width), END_TOKEN]

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        return {
            "pixel_values": torch.from_numpy(np.concatenate([item.pixels for item in items])),
            "image_grid_thw": torch.tensor([item.grid for item in items]),
            "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
        }

    def processor(self) -> Inputs:
        return {
            "patch_size": self.vision.patch_size,
            "merge_size": self.vision.spatial_merge_size,
            "temporal_patch_size": self.vision.temporal_patch_size,
        }


class KimiFamily(SeeingFamily):
    texts = ("<|media_pad|>", "<|media_begin|>", "<|media_end|>")

    def grid(self, picture: Picture) -> Grid:
        merge = self.vision.merge_kernel_size[0]
        return 1, picture.height * merge, picture.width * merge

    def shape(self, grid: Grid) -> tuple[int, ...]:
        return grid[1] * grid[2], 3 * self.vision.patch_size**2

    def tokens(self, picture: Picture) -> list[int]:
        return [START_TOKEN, *[IMAGE_TOKEN] * (picture.height * picture.width), END_TOKEN]

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        side = self.vision.patch_size
        pixels = np.concatenate([item.pixels for item in items]).reshape(-1, 3, side, side)
        return {
            "pixel_values": torch.from_numpy(pixels),
            "image_grid_thw": torch.tensor([item.grid for item in items]),
        }

    def processor(self) -> Inputs:
        merge = self.vision.merge_kernel_size[0]
        return {"patch_size": self.vision.patch_size, "merge_size": merge}


class Gemma3Family(SeeingFamily):
    """A picture is one square, or with parts two or three."""

    token_key = "image_token_index"
    texts = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")
    encoder: ClassVar[dict[str, Any]] = {"image_size": 56}

    def grid(self, picture: Picture) -> Grid:
        side = self.vision.image_size // self.vision.patch_size
        small = min(picture.height, picture.width) == 1
        return (1 if small else 2 + (picture.height + picture.width) % 2), side, side

    def shape(self, grid: Grid) -> tuple[int, ...]:
        return grid[0], 3, self.vision.image_size, self.vision.image_size

    def tokens(self, picture: Picture) -> list[int]:
        square = [START_TOKEN, *[IMAGE_TOKEN] * self.config.mm_tokens_per_image, END_TOKEN]
        squares = self.grid(picture)[0]
        return [*square, *[*_WORDS, *square] * (squares - 1)]

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        return {
            "pixel_values": torch.from_numpy(np.concatenate([item.pixels for item in items])),
            "token_type_ids": (ids == IMAGE_TOKEN).long(),
        }

    def processor(self) -> Inputs:
        side = self.vision.image_size
        return {"size": {"height": side, "width": side}}


class Gemma4Family(SeeingFamily):
    @property
    def sees_both_ways(self) -> bool:
        """Return whether a step computes all tokens of an image."""
        return bool(self.config.text_config.use_bidirectional_attention == "vision")

    texts = ("<|image|>", "<|image>", "<image|>")

    def grid(self, picture: Picture) -> Grid:
        pool = self.vision.pooling_kernel_size
        return 1, picture.height * pool, picture.width * pool

    def shape(self, grid: Grid) -> tuple[int, ...]:
        return grid[1] * grid[2], 3 * self.vision.patch_size**2

    def tokens(self, picture: Picture) -> list[int]:
        return [START_TOKEN, *[IMAGE_TOKEN] * (picture.height * picture.width), END_TOKEN]

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        most = max(len(item.pixels) for item in items)
        pixels = np.zeros((len(items), most, items[0].pixels.shape[1]), np.float32)
        places = np.full((len(items), most, 2), -1)
        for index, item in enumerate(items):
            _, height, width = item.grid
            pixels[index, : len(item.pixels)] = item.pixels
            rows, columns = np.divmod(np.arange(height * width), width)
            places[index, : height * width] = np.stack((columns, rows), axis=1)
        return {
            "pixel_values": torch.from_numpy(pixels),
            "image_position_ids": torch.from_numpy(places),
            "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
        }

    def processor(self) -> Inputs:
        sizes = ("patch_size", "pooling_kernel_size")
        return {size: getattr(self.vision, size) for size in sizes}


class Llama4Family(SeeingFamily):
    """A picture's rows and columns are tiles, at most two of each."""

    token_key = "image_token_index"
    texts = ("<|patch|>", "<|image|>", "<|image_end|>")
    encoder: ClassVar[dict[str, Any]] = {"image_size": 56}

    def grid(self, picture: Picture) -> Grid:
        side = self.vision.image_size // self.vision.patch_size
        return 1, min(picture.height, 2) * side, min(picture.width, 2) * side

    def shape(self, grid: Grid) -> tuple[int, ...]:
        side = self.vision.image_size
        tiles = grid[1] * grid[2] // (side // self.vision.patch_size) ** 2
        return tiles + (tiles > 1), 3, side, side

    def tokens(self, picture: Picture) -> list[int]:
        side = self.vision.image_size // self.vision.patch_size
        count = round((side * self.vision.pixel_shuffle_ratio) ** 2)
        tile, rows, columns = [IMAGE_TOKEN] * count, min(picture.height, 2), min(picture.width, 2)
        canvas = [*tile, BREAK_TOKEN] * (rows * columns) if rows * columns > 1 else []
        return [*canvas, BREAK_TOKEN, *tile, END_TOKEN]

    def inputs(self, ids: torch.Tensor, items: Sequence[ImageItem]) -> Inputs:
        return {"pixel_values": torch.from_numpy(np.concatenate([item.pixels for item in items]))}

    def processor(self) -> Inputs:
        side = self.vision.image_size
        return {"size": {"height": side, "width": side}}


FAMILIES: dict[str, type[SeeingFamily]] = {
    "gemma3": Gemma3Family,
    "gemma4": Gemma4Family,
    "kimi-k2.5": KimiFamily,
    "llama4": Llama4Family,
    "mistral3": PixtralFamily,
    **dict.fromkeys(("qwen3-vl", "qwen3-vl-moe", "qwen3.5", "qwen3.5-moe"), QwenFamily),
}
