"""Gemma 4's encoder (Gemma team, 2026): learned positions of rows and of columns, rotated ones,
norms around attention and MLP; squares of patches are averaged to tokens. Keys and defaults of
transformers' classes."""

from __future__ import annotations

from math import isqrt
from typing import ClassVar

from msgspec import Struct

from atom.sizing.config_fields import Config, flag, mapping, number, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.vision.facts import Family, Grid, Patches, VisionFacts
from atom.sizing.vision.fields import layer_count, single, vision_config, whole

_MOST_TOKENS = 1120  # the most that its processor makes of a picture
_THETA = 100.0


class KeyHeads(Struct, frozen=True):
    """The heads of keys and values that heads share. count: how many; size: elements of each."""

    count: int
    size: int


class Places(Struct, frozen=True):
    """The positions by which an encoder tells patches apart. learned: positions of a side; theta:
    base of the rotation."""

    learned: int
    theta: float


class Gemma4VisionFacts(VisionFacts, frozen=True, kw_only=True, tag=True):
    """Adds the fields of Gemma 4. activation: of the MLPs; eps: of all norms; clips: matrices bound
    their inputs and outputs; standardizes: outputs are shifted and scaled; sees_ahead: of the base,
    in layers with a window."""

    family: ClassVar[Family] = "gemma4"

    keys: KeyHeads
    places: Places
    activation: str
    eps: float
    clips: bool
    standardizes: bool
    sees_ahead: bool

    @property
    def head_dim(self) -> int:
        return self.keys.size

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return (grid[1] * grid[2], self.patches.numbers)

    def takes(self, grid: Grid) -> bool:
        fits = max(grid[1:]) <= self.places.learned
        return fits and VisionFacts.takes(self, grid)

    def largest_tokens(self, max_model_len: int) -> int:
        return self.image_tokens(self.largest_grid(max_model_len))

    def largest_grid(self, max_model_len: int) -> Grid:
        limit, merge = min(self.most_image_tokens, max_model_len), self.patches.merge
        side = max(1, min(limit, self.places.learned // merge))
        most_rows = min(side, isqrt(limit))  # a grid has as many tokens lying as upright
        rows = max(range(1, most_rows + 1), key=lambda count: count * min(side, limit // count))
        return 1, rows * merge, min(side, limit // rows) * merge

    @property
    def parameters(self) -> int:
        hidden, inner, size = self.hidden_size, self.intermediate_size, self.keys.size
        heads, kv = self.num_heads * size, self.keys.count * size
        matrices = 2 * hidden * heads + 2 * hidden * kv + 3 * hidden * inner
        clips = 7 * 4 if self.clips else 0
        layer = matrices + clips + 2 * size + 4 * hidden
        embedded = hidden * self.patches.numbers + 2 * self.places.learned * hidden
        ends = hidden * self.output_size + (2 * hidden if self.standardizes else 0)
        return embedded + self.num_layers * layer + ends


def gemma4(config: Config, text: Config) -> Gemma4VisionFacts:
    """Read the facts. config: the whole config.json; text: its decoder's. Raises ModelFactsError
    for heads that do not share keys evenly."""
    vision = vision_config(config)
    hidden = whole(vision, "hidden_size", 768)
    heads, size = whole(vision, "num_attention_heads", 12), whole(vision, "head_dim", 64)
    kv = whole(vision, "num_key_value_heads", 12)
    if heads % kv or size % 4:
        raise ModelFactsError(
            f"config.json: vision_config has {heads} heads of {size} elements over {kv} of keys; "
            "each must be a multiple of these, and of 4 elements; --language-model-only serves "
            "the text part",
            field="num_key_value_heads",
        )
    return Gemma4VisionFacts(
        hidden_size=hidden,
        intermediate_size=whole(vision, "intermediate_size", 3072),
        num_layers=layer_count(vision, "num_hidden_layers", 16),
        num_heads=heads,
        patches=Patches(
            single(vision, "patch_size", 16), single(vision, "pooling_kernel_size", 3), 3
        ),
        output_size=positive(text, "hidden_size"),
        most_image_tokens=_MOST_TOKENS,
        image_token_id=positive(config, "image_token_id", default=258_880),
        keys=KeyHeads(kv, size),
        places=Places(
            whole(vision, "position_embedding_size", 10_240),
            number(mapping(vision, "rope_parameters"), "rope_theta", default=_THETA),
        ),
        activation=str(vision.get("hidden_activation") or "gelu_pytorch_tanh"),
        eps=number(vision, "rms_norm_eps", default=1e-6),
        clips=flag(vision, "use_clipped_linears"),
        standardizes=flag(vision, "standardize"),
        sees_ahead=text.get("use_bidirectional_attention") == "vision",
    )
