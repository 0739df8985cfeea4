"""Place images in a prompt: from the text of a chat template to tokens and the images' positions.

The template writes a secret mark where it would write its placeholder, so that a client's words
that spell the placeholder are never taken for one. The text of an expansion joins the prompt before
it is tokenised; each group of image tokens is one token then, and is expanded by its place in the
text. A token that stands for images anywhere else was spelled by the client, and becomes the tokens
of its letters. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from atom.errors import ModelError
from atom.images.item import ImageItem, Mask, PlacedImage
from atom.images.processing.processor import Expansion, ImageProcessor, TokenRun


class Vocabulary(Protocol):
    """The tokenizer of the model."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text."""
        ...

    def encode_with_starts(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[list[int], list[int]]:
        """Return the tokens of a text, and each token's first character in it."""
        ...

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is written like this."""
        ...


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """A prompt with images: its expanded tokens, and where the outputs of the encoder go."""

    token_ids: list[int]
    images: tuple[PlacedImage, ...]


@dataclass(slots=True)
class _Group:
    """The tokens of one group of an expansion, and the image that they belong to."""

    runs: Sequence[TokenRun]
    image: int


@dataclass(slots=True)
class _Span:
    """The positions of one image while its prompt is expanded."""

    offset: int = -1
    mask: list[bool] = field(default_factory=list)


class ImagePlacer:
    """Places the images of one model's prompts."""

    def __init__(self, processor: ImageProcessor, vocabulary: Vocabulary) -> None:
        """Raises `ModelError` if the vocabulary lacks a token that stands for images."""
        self._processor = processor
        self._vocabulary = vocabulary
        self.placeholder = processor.marks.placeholder
        self._literal = {
            self._id_of(text): _letters(text, vocabulary) for text in processor.marks.reserved
        }

    def place(
        self, text: str, mark: str, items: Sequence[ImageItem], *, add_special_tokens: bool = False
    ) -> PlacedPrompt:
        """Expand the marks of a rendered conversation. items: the images in order of their marks,
        one for each."""
        pieces = text.split(mark)
        assert len(pieces) == len(items) + 1
        expansions = [self._processor.expansion_of(item.grid) for item in items]
        whole, groups = _joined(pieces, expansions)
        ids, starts = self._vocabulary.encode_with_starts(
            whole, add_special_tokens=add_special_tokens
        )
        return self._expanded(ids, starts, groups, items)

    def spells(self, text: str) -> bool:
        """Return whether a text has words that spell a token of images."""
        return any(each in text for each in self._processor.marks.reserved)

    def _expanded(
        self,
        ids: Sequence[int],
        starts: Sequence[int],
        groups: dict[int, _Group],
        items: Sequence[ImageItem],
    ) -> PlacedPrompt:
        found: list[int] = []
        spans = [_Span() for _ in items]
        for token, start in zip(ids, starts, strict=True):
            group = groups.get(start)
            if group is not None and token == self._id_of(group.runs[0].token):
                self._write(group.runs, spans[group.image], found)
                del groups[start]
            else:
                found.extend(self._literal.get(token, (token,)))
        if groups:
            raise ModelError(
                "the tokenizer does not read a mark of an image as one token; the checkpoint's "
                "tokenizer.json and processor_config.json do not belong together"
            )
        placed = (
            PlacedImage(item, span.offset, _trimmed(span.mask))
            for item, span in zip(items, spans, strict=True)
        )
        return PlacedPrompt(found, tuple(placed))

    def _write(self, runs: Sequence[TokenRun], span: _Span, found: list[int]) -> None:
        """Append the tokens of a group, and note the positions of its image."""
        if span.offset >= 0:  # text between two groups of one image
            span.mask.extend([False] * (len(found) - span.offset - len(span.mask)))
        for run in runs:
            if run.is_image and span.offset < 0:
                span.offset = len(found)
            if span.offset >= 0:
                span.mask.extend([run.is_image] * run.count)
            found.extend([self._id_of(run.token)] * run.count)

    def _id_of(self, text: str) -> int:
        found = self._vocabulary.token_id(text)
        if found is None:
            raise ModelError(
                f"the tokenizer has no token {text!r}, which stands for images; start the server "
                "with --language-model-only, or download the checkpoint again"
            )
        return found


def _joined(
    pieces: Sequence[str], expansions: Sequence[Expansion]
) -> tuple[str, dict[int, _Group]]:
    """Return the text with one token for each group, and the groups by their places in it."""
    parts: list[str] = []
    groups: dict[int, _Group] = {}
    length = 0
    for index, piece in enumerate(pieces):
        texts: Expansion = (piece,) if index == 0 else (*expansions[index - 1], piece)
        for each in texts:
            if not isinstance(each, str):
                groups[length] = _Group(each, index - 1)
            part = each if isinstance(each, str) else each[0].token
            parts.append(part)
            length += len(part)
    return "".join(parts), groups


def _trimmed(mask: list[bool]) -> Mask:
    """Return the positions up to the last one that the encoder's output fills."""
    found = np.array(mask, dtype=np.bool_)
    return found[: int(found.nonzero()[0][-1]) + 1]


def _letters(text: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of a special token's letters: it is read in two parts, so that neither is
    the token."""
    parts = (text[:1], text[1:])
    return tuple(
        token for part in parts for token in vocabulary.encode(part, add_special_tokens=False)
    )
