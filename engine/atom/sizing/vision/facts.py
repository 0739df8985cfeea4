"""VisionFacts: the shape of a model's image encoder, and what its outputs are in the decoder. Pure.

The loader and the encoder's modules use the shape, the plan its sums. A family subclasses the facts
with its own fields in a file beside this one, and counts the parameters of its modules exactly.
Facts are msgspec's structs: a configuration goes to the engine's processes as JSON, with the
family as a tag.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import msgspec

# Outputs of images that a device keeps, in tokens of a prompt, unless one image has more.
MOST_KEPT_TOKENS = 16_384
_CONTEXTS = 8

Grid = tuple[int, int, int]  # time, height and width in patches
Family = Literal["gemma3", "gemma4", "kimi_k25", "llama4", "pixtral", "qwen3_vl"]


class Patches(msgspec.Struct, frozen=True):
    """The parts of an image. size: pixels of a patch's side; merge: patches of a token's side;
    channels: numbers of a pixel; frames: pictures of a patch, one after another."""

    size: int
    merge: int
    channels: int
    frames: int = 1

    @property
    def numbers(self) -> int:
        """Return the numbers of a patch's pixels."""
        return self.channels * self.frames * self.size**2


class VisionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The encoder of a model that reads images.

    - `hidden_size`, `intermediate_size`, `num_layers`, `num_heads`: of the encoder's layers.
    - `patches`: the parts that an image is cut into.
    - `output_size`: elements of a token's embedding in the decoder.
    - `most_image_tokens`: of the largest image that a prompt may have.
    - `image_token_id`: at a prompt's positions that outputs fill.
    - `family`: the name of the file that computes it, below `atom.models.vision`.
    """

    family: ClassVar[Family]
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patches: Patches
    output_size: int
    most_image_tokens: int
    image_token_id: int

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the encoder and its projection."""
        raise NotImplementedError

    @property
    def plain_layer_parameters(self) -> int:
        """Return the number of parameters of a layer with two LayerNorms, four matrices of
        attention and two of an MLP, all of them with biases."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return 4 * hidden**2 + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden

    @property
    def decoder_layers(self) -> int:
        """Return how many of the decoder's first layers get outputs of their own added."""
        return 0

    @property
    def has_axes(self) -> bool:
        """Return whether an image's tokens have positions of time, height and width."""
        return False

    @property
    def sees_ahead(self) -> bool:
        """Return whether neighbouring tokens of an image attend to each other both ways in the
        decoder, in some of its layers. A step then computes all of them."""
        return False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of the pixels of an image with this grid of patches."""
        raise NotImplementedError

    def image_tokens(self, grid: Grid) -> int:
        """Return the tokens of an image with this grid of patches."""
        return grid[1] * grid[2] // self.patches.merge**2

    def takes(self, grid: Grid) -> bool:
        """Return whether an image may have this grid of patches, besides its number of tokens."""
        time, height, width = grid
        merge = self.patches.merge
        return time == 1 and min(height, width) > 0 and not (height % merge or width % merge)

    def largest_grid(self, max_model_len: int) -> Grid:
        """Return a grid of an image with the most tokens."""
        merge = self.patches.merge
        return 1, merge, self.largest_tokens(max_model_len) * merge

    def largest_pixel_bytes(self, max_model_len: int) -> int:
        """Return the bytes of the pixels of an image with the most tokens, in float32."""
        return 4 * math.prod(self.pixel_shape(self.largest_grid(max_model_len)))

    def encoded_patches(self, grid: Grid) -> int:
        """Return the patches that the encoder's layers compute of an image."""
        return grid[0] * grid[1] * grid[2]

    @property
    def row_size(self) -> int:
        """Return the elements of all outputs of one token: its embedding, and one output for each
        of the decoder's layers that gets one."""
        return self.output_size * (1 + self.decoder_layers)

    def largest_tokens(self, max_model_len: int) -> int:
        """Return the tokens of the largest image that a prompt of this context may have."""
        return min(self.most_image_tokens, max_model_len)

    def kept_tokens(self, max_model_len: int) -> int:
        """Return the tokens of images whose outputs a device keeps: at least of the largest image,
        and with short contexts not more than a few whole ones have."""
        useful = min(MOST_KEPT_TOKENS, _CONTEXTS * max_model_len)
        return max(useful, self.largest_tokens(max_model_len))

    def output_bytes(self, max_model_len: int, element_bytes: int) -> int:
        """Return the bytes of the outputs that a device keeps."""
        return self.kept_tokens(max_model_len) * self.row_size * element_bytes

    def activation_bytes(self, max_model_len: int, element_bytes: int) -> int:
        """Return the bytes that the largest image takes while it is encoded.

        At the widest point these are live: the image's pixels as they were sent, in float32, and in
        the model's type; the residual stream, its norm and a layer's output; and either queries,
        keys and values, twice if they are rotated, with their results, or an MLP's inner numbers.
        """
        patches = self.encoded_patches(self.largest_grid(max_model_len))
        pixels = patches * self.patches.numbers * (4 + element_bytes)
        widest = max(7 * self.hidden_size, 3 * self.intermediate_size)
        layers = patches * (3 * self.hidden_size + widest) * element_bytes
        outputs = self.largest_tokens(max_model_len) * self.row_size * element_bytes
        rotation = patches * self.head_dim * 2 * 4
        return pixels + layers + outputs + rotation
