"""Load tokenizer.json into the library's tokenizer, or state why it cannot be loaded.

The library accepts any number as an id, and gives an added token another id than the file's if the
file's is not the next one; both would show as wrong answers or not at all. This module knows no
model: model_engine/front/vocabulary.py checks that the tokenizer matches the model. Called by
Tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import tokenizers

from atom.errors import ModelError
from atom.tokenizer_conversion import VOCABULARIES

# The largest vocabularies have some 262,000 tokens; an id of this size is damage.
MOST_TOKEN_ID = 2**24 - 1


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Content(msgspec.Struct):
    added_tokens: list[_AddedToken] | None = None


@dataclass(frozen=True, slots=True)
class ReadTokenizer:
    """A tokenizer as it was read. misplaced: added tokens whose id in texts differs from the
    file's, each as (token, the file's id, the actual id); transformers has the same ids."""

    tokenizer: tokenizers.Tokenizer
    misplaced: tuple[tuple[str, int, int], ...]


def read_tokenizer(file: Path) -> ReadTokenizer:
    """Load a tokenizer. Raises `ModelError` if the file is missing, damaged, or has ids that no
    model has."""
    if not file.is_file():
        raise ModelError(
            f"{file}: missing, and there is no vocabulary to make it from "
            f"({', '.join(VOCABULARIES)}). Download the model folder again, or write the file with "
            "transformers' AutoTokenizer.save_pretrained"
        )
    try:
        data = file.read_bytes()
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
        added = msgspec.json.decode(data, type=_Content).added_tokens or []
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file}: damaged ({error}); download it again") from error
    _refuse_impossible_ids(file, tokenizer, added)
    given = {token.content: tokenizer.token_to_id(token.content) for token in added}
    misplaced = tuple(
        (token.content, token.id, at)
        for token in added
        if (at := given[token.content]) is not None and at != token.id
    )
    return ReadTokenizer(tokenizer, misplaced)


def _refuse_impossible_ids(
    file: Path, tokenizer: tokenizers.Tokenizer, added: list[_AddedToken]
) -> None:
    found = {f"added_tokens: {token.content!r}": token.id for token in added}
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if vocabulary:
        token = max(vocabulary, key=vocabulary.__getitem__)
        found[f"model.vocab: {token!r}"] = vocabulary[token]
    for field, token_id in found.items():
        if not 0 <= token_id <= MOST_TOKEN_ID:
            raise ModelError(
                f"{file}: {field} has id {token_id}, and a model has ids up to {MOST_TOKEN_ID} at "
                "the most; correct the id, or download the file again"
            )
