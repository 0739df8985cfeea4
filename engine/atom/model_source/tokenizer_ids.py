"""Compare the token ids of two checkpoints that exchange them, a model and its draft model.

Called by config.py before anything is loaded, without the tokenizers library: it reads
tokenizer.json alone.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from atom.errors import ModelError
from atom.model_source.json_object import read_object


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    """The vocabulary: ids by token, or tokens with their scores in the order of their ids."""

    vocab: dict[str, int] | list[tuple[str, Any]] = msgspec.field(default_factory=dict)


class _Content(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_AddedToken] | None = None


def tokens_that_differ(folder: Path, other: Path) -> Iterator[str]:
    """Yield a reason if an id stands for different tokens in the tokenizer.json of two folders. An
    id that only one of them has, such as of a token that a fine-tune added, is no difference, and a
    folder without the file has no ids. Raises `ModelError` for a damaged file."""
    own, others = _tokens(folder), _tokens(other)
    differing = [each for each, token in own.items() if others.get(each, token) != token]
    if differing:
        first = min(differing)
        token, another = (reprlib.repr(each[first]) for each in (own, others))
        yield (
            f"the tokenizers differ in {len(differing)} ids: id {first} is {another} in {other}, "
            f"and {token} in {folder}; use a draft model with the same tokenizer"
        )


def _tokens(folder: Path) -> dict[int, str]:
    file = folder / "tokenizer.json"
    try:
        content = msgspec.convert(read_object(file), _Content)
    except msgspec.ValidationError as error:
        raise ModelError(f"{file}: damaged ({error}); download it again") from error
    vocabulary = content.model.vocab
    if isinstance(vocabulary, dict):
        found = {index: token for token, index in vocabulary.items()}
    else:
        found = {index: token for index, (token, _) in enumerate(vocabulary)}
    return found | {token.id: token.content for token in content.added_tokens or ()}
