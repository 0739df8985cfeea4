"""End-of-text tokens of a checkpoint: the union of those that its generation_config.json, its
config.json and its tokenizer name.

Fine-tunes of base models need all three: their turns end with the tokenizer's `eos_token`, but the
configuration that came with the base model still names another token. Torch-free; called once by
atom.config, before a process starts.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from atom.bounded_input.bounded_json import LISTING, read_json_file
from atom.checkpoint import Checkpoint
from atom.errors import ModelError
from atom.sizing.model_facts import ModelFacts
from atom.sizing.text_part import text_part

logger = logging.getLogger(__name__)

_MOST_IDS = 4096
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] | None = None


class _Added(msgspec.Struct):
    added_tokens: list[_AddedToken] | None = None


class _Model(msgspec.Struct):
    model: _Vocabulary | None = None


def end_token_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """List every end token once, the generation config's first. Raises `ModelError` for a value
    that is neither an id nor a list of ids."""
    found: dict[int, None] = {}
    for file, source in (
        ("generation_config.json", checkpoint.generation_config),
        ("config.json", text_part(checkpoint.config)),
    ):
        found.update(dict.fromkeys(_ids(checkpoint.path / file, source.get("eos_token_id"))))
    own = tokenizer_end_token(checkpoint.path)
    if own is not None:
        found[own] = None
    return tuple(found)


def tokenizer_end_token(folder: Path) -> int | None:
    """Return the id of the tokenizer's `eos_token`; None if it names none, or a token that it does
    not have."""
    text = next(filter(None, map(_eos_text, map(folder.joinpath, _SETTINGS))), None)
    if text is None:
        return None
    decoder = _read(folder / _SETTINGS[0]).get("added_tokens_decoder")
    for token_id, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("content") == text and token_id.isdecimal():
            return int(token_id)
    return _id_in_tokenizer(folder / "tokenizer.json", text)


def _ids(file: Path, value: Any) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if len(ids) > _MOST_IDS:
        raise ModelError(
            f"{file}: eos_token_id lists {len(ids)} ids, of which at most {_MOST_IDS} are read: "
            "correct it, or download the file again"
        )
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise ModelError(
                f"{file}: eos_token_id is {repr(value)[:80]}; it must be a token's id or a list of "
                "ids: correct it, or download the file again"
            )
    return ids


def _eos_text(file: Path) -> str | None:
    """Return the `eos_token` of a tokenizer's file, given as a text or as an object with its
    content."""
    value = _read(file).get("eos_token")
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _id_in_tokenizer(file: Path, text: str) -> int | None:
    """Look among the added tokens first: the vocabulary takes a hundred times as long to read."""
    try:
        data = file.read_bytes()
        for token in msgspec.json.decode(data, type=_Added).added_tokens or []:
            if token.content == text:
                return token.id
        model = msgspec.json.decode(data, type=_Model).model
    except (OSError, msgspec.DecodeError):
        return None  # the tokenizer's loader reports the fault
    vocab = None if model is None else model.vocab
    return vocab.get(text) if isinstance(vocab, dict) else None


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON object; {} if the file cannot be read, which the tokenizer's loader reports."""
    try:
        content = read_json_file(file, LISTING)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def ids_that_exist(
    end_ids: tuple[int, ...], facts: ModelFacts, checkpoint: Checkpoint
) -> tuple[int, ...]:
    """Drop end tokens that the model cannot generate; the log names them."""
    impossible = [end for end in end_ids if not 0 <= end < facts.vocab_size]
    if impossible:
        logger.warning(
            "%s: eos_token_id %s is outside the vocabulary (vocab_size %d in config.json) and ends "
            "no answer; correct eos_token_id in generation_config.json and config.json, or the "
            "tokenizer's eos_token",
            checkpoint.path, ", ".join(map(str, impossible[:16])), facts.vocab_size,
        )  # fmt: skip
    return tuple(end for end in end_ids if 0 <= end < facts.vocab_size)
