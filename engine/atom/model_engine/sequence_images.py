"""SequenceImages: the images of one sequence, with their tokens, positions, and names of blocks.

Pure numpy. A block of the KV cache with an image's tokens depends on the picture besides the
tokens, which are the same for every picture. Such a block is named by a digest of its tokens and of
each picture with its place in the block (`named`): the chain of hashes and the proof of a hit then
work as for text. Blocks before an image keep their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.request_image import RequestImage
from atom.model_engine.row_columns import NO_SHIFT
from atom.sizing.vision.facts import VisionFacts

_NO_TOKEN = np.int32(np.iinfo(np.int32).min)  # the bit that no token's id has


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The place of an image in a prompt. first, end: the tokens that it fills, and those between;
    height, width: in tokens."""

    first: int
    end: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class SequenceImage:
    """An image with its pixels. digest: of these; positions [n] int32: of the tokens that it
    fills."""

    digest: bytes
    span: ImageSpan
    positions: NDArray[np.int32]
    grid: tuple[int, int, int]
    pixels: NDArray[np.float32]


class SequenceImages:
    """The images of a sequence, in the order of its prompt. runs: first and end of the tokens that
    a step computes together, since they see each other both ways; spans: for the runner, if tokens
    have several positions, else empty; position_delta: the difference of the rotary positions of
    the tokens after all images from their positions, at most 0; NO_SHIFT if they are equal."""

    def __init__(self, images: Sequence[RequestImage], vision: VisionFacts) -> None:
        self.images = tuple(_unpacked(image, vision.patches.merge) for image in images)
        spans = tuple(image.span for image in self.images)
        self.runs: tuple[tuple[int, int], ...] = ()
        if vision.sees_ahead:
            self.runs = tuple(run for image in self.images for run in runs_of(image.positions))
        self.spans = spans if vision.has_axes else ()
        self.position_delta = sum(map(_delta, spans)) if vision.has_axes else NO_SHIFT

    @property
    def pixel_bytes(self) -> int:
        """Return the bytes of the pixels of all images."""
        return sum(image.pixels.nbytes for image in self.images)

    def has_any(self, digests: Collection[bytes]) -> bool:
        """Return whether an image with one of these digests is among them."""
        return any(image.digest in digests for image in self.images)

    def overlapping(self, first: int, end: int) -> Iterator[SequenceImage]:
        """Yield the images that fill any of these tokens."""
        for image in self.images:
            if image.span.first < end and image.span.end > first:
                yield image

    def run_around(self, place: int) -> tuple[int, int] | None:
        """Return the run that a chunk with this end would cut; None if it cuts none."""
        return next((run for run in self.runs if run[0] < place < run[1]), None)

    def named(self, tokens: NDArray[np.int32], first: int, size: int) -> NDArray[np.int32]:
        """Return the names of blocks of `size` tokens: the tokens themselves, or of a block with an
        image's tokens as many numbers that no tokens are. tokens: of whole blocks, and perhaps some
        more, from position `first` on."""
        found = None
        for block, seen in self._blocks(first, len(tokens) // size, size):
            found = tokens.copy() if found is None else found
            at = slice(block * size, (block + 1) * size)
            digest = shake_256(tokens[at].tobytes())
            for image in seen:
                digest.update(image.digest)
                place = image.span.first - (first + block * size)
                digest.update(place.to_bytes(8, "little", signed=True))
            found[at] = np.frombuffer(digest.digest(4 * size), np.int32) | _NO_TOKEN
        return tokens if found is None else found

    def extra_keys(
        self, first: int, count: int, size: int
    ) -> dict[int, tuple[tuple[str, int], ...]]:
        """Return, of the blocks among `count` from position `first` on that have an image's tokens,
        each image's digest and where it begins, counted from the block's first token."""
        return {
            block: tuple(
                (image.digest.hex(), image.span.first - (first + block * size)) for image in seen
            )
            for block, seen in self._blocks(first, count, size)
        }

    def _blocks(
        self, first: int, count: int, size: int
    ) -> Iterator[tuple[int, list[SequenceImage]]]:
        """Yield the blocks with images' tokens, with these images."""
        blocks: dict[int, list[SequenceImage]] = {}
        for image in self.overlapping(first, first + count * size):
            begin = max(image.span.first - first, 0) // size
            end = min(-(-(image.span.end - first) // size), count)
            for block in range(begin, end):
                blocks.setdefault(block, []).append(image)
        yield from sorted(blocks.items())


def runs_of(positions: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return first and end of each run of neighbouring positions, which ascend."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    return [(int(each[0]), int(each[-1]) + 1) for each in np.split(positions, cuts) if len(each)]


def rope_shifts(spans: Sequence[ImageSpan]) -> NDArray[np.int32]:
    """Return [3, tokens] the difference of the rotary positions of time, height and width from the
    position of each token of a prompt, up to the end of its last image. An image's tokens are all
    at one time; the text after it continues behind its longer side (Qwen2-VL, section 2.1)."""
    shifts = np.zeros((3, spans[-1].end), dtype=np.int32)
    delta, before = 0, 0
    for span in spans:
        shifts[:, before : span.first] = delta
        count = span.end - span.first
        own = np.arange(count, dtype=np.int32)
        shifts[:, span.first : span.end] = delta - own
        shifts[1, span.first : span.end] += own // span.width
        shifts[2, span.first : span.end] += own % span.width
        delta += _delta(span)
        before = span.end
    return shifts


def _delta(span: ImageSpan) -> int:
    return max(span.height, span.width) - (span.end - span.first)


def _unpacked(image: RequestImage, merge: int) -> SequenceImage:
    filled = np.frombuffer(image.filled, np.uint8)
    return SequenceImage(
        digest=image.digest,
        span=ImageSpan(image.offset, image.end, image.grid[1] // merge, image.grid[2] // merge),
        positions=(image.offset + np.flatnonzero(filled)).astype(np.int32),
        grid=image.grid,
        pixels=np.frombuffer(image.pixels, "<f4").reshape(image.shape),
    )
