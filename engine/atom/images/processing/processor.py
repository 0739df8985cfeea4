"""ImageProcessor: the interface of a family's processing, and the tokens that stand for an image.

A processor first plans: the grid of an image follows from its height and width alone, and so do its
tokens. Processing then computes the pixels. The text of an expansion is part of the prompt's text
when it is tokenised, because it may join the words around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from atom.images.item import ImageItem

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TokenRun:
    """One token, by its text in the vocabulary, `count` times. is_image: the encoder's output fills
    these positions."""

    token: str
    count: int
    is_image: bool


# Texts, and groups of tokens that are adjacent in the prompt.
Expansion = tuple[str | tuple[TokenRun, ...], ...]


@dataclass(frozen=True, slots=True)
class ImageMarks:
    """The texts of a family's tokens. placeholder: the text that the chat template writes for an
    image; reserved: the tokens that a client's own words never become, as they stand for an
    image."""

    placeholder: str
    reserved: tuple[str, ...]


def image_alone(marks: ImageMarks, count: int) -> Expansion:
    """Return `count` tokens of an image, whose surroundings the template writes."""
    return ((TokenRun(marks.placeholder, count, True),),)


class ImageProcessor(Protocol):
    """The processing of one checkpoint."""

    @property
    def marks(self) -> ImageMarks:
        """Return the texts of the family's tokens."""
        ...

    def plan(self, height: int, width: int) -> Grid:
        """Return the grid of an image of this size in pixels. Raises `ImageError` for a size that
        the family refuses."""
        ...

    def tokens_of(self, grid: Grid) -> int:
        """Return the number of positions that the encoder's output fills."""
        ...

    def expansion_of(self, grid: Grid) -> Expansion:
        """Return the text and tokens that replace the template's placeholder."""
        ...

    def process(self, picture: Image.Image) -> ImageItem:
        """Compute the pixels of an RGB picture. Raises `ImageError` as `plan` does."""
        ...
