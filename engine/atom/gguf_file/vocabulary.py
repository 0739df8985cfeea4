"""The vocabulary of a GGUF file: its tokens, their kinds and the tokenizer's settings.

This module checks types and values, so that tokenizer.py can build a tokenizer without further
checks. Torch-free; a pure function of the header.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from atom.errors import ModelError
from atom.gguf_file.header import GgufHeader

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATES = "tokenizer.chat_templates"
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}


class TokenKind(IntEnum):
    """The kinds of tokens, by llama.cpp's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The parts that a tokenizer is built from. model: llama.cpp's name of the tokenizer's kind;
    pre: llama.cpp's name of the rule that splits texts into words; kinds, scores: one per token,
    scores only for sentencepiece; add_bos, add_eos, add_space_prefix: None if the file leaves the
    choice to the kind; roles: the texts of bos_token and so on."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    roles: dict[str, str]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None

    def special(self) -> list[str]:
        """List the tokens that are no text."""
        return [text for text, kind in self._by_kind() if kind in _SPECIAL]

    def user_defined(self) -> list[str]:
        """Return the texts that are always a single token."""
        return [text for text, kind in self._by_kind() if kind == TokenKind.USER_DEFINED]

    def _by_kind(self) -> list[tuple[str, int]]:
        return list(zip(self.tokens, self.kinds, strict=True))


_SPECIAL = (TokenKind.CONTROL, TokenKind.UNKNOWN)


def read_vocabulary(header: GgufHeader) -> GgufVocabulary:
    """Read the vocabulary. Raises `ModelError` naming the key that is missing or unsound."""
    tokens = _texts(header, "tokens")
    _refuse_twins(header, tokens)
    kinds = _numbers(header, "token_type", len(tokens), default=TokenKind.NORMAL)
    scores = _numbers(header, "scores", len(tokens), default=0.0)
    return GgufVocabulary(
        model=_text(header, "model"),
        pre=_text(header, "pre", default="default"),
        tokens=tuple(tokens),
        kinds=tuple(int(kind) for kind in kinds),
        scores=tuple(scores),
        merges=tuple(_merge(header, text) for text in _texts(header, "merges", default=[])),
        roles=_roles(header, tokens),
        add_bos=_flag(header, "add_bos_token"),
        add_eos=_flag(header, "add_eos_token"),
        add_space_prefix=_flag(header, "add_space_prefix"),
    )


def tokenizer_settings(header: GgufHeader, roles: dict[str, str]) -> dict[str, Any]:
    """Return the settings of a tokenizer_config.json: special tokens, and the chat templates."""
    templates = {"default": header.metadata.get(_TEMPLATE)}
    names = header.metadata.get(_TEMPLATES, [])
    for name in names if isinstance(names, list) else []:
        templates[str(name)] = header.metadata.get(f"{_TEMPLATE}.{name}")
    named = [
        {"name": name, "template": text} for name, text in templates.items() if text is not None
    ]
    settings: dict[str, Any] = dict(roles)
    if len(named) == 1 and named[0]["name"] == "default":
        settings["chat_template"] = named[0]["template"]
    elif named:
        settings["chat_template"] = named
    return settings


def _roles(header: GgufHeader, tokens: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, key in _ROLES.items():
        token_id = header.metadata.get(f"{_PREFIX}{key}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            found[f"{role}_token"] = tokens[token_id]
    return found


def _refuse_twins(header: GgufHeader, tokens: list[str]) -> None:
    first: dict[str, int] = {}
    for token_id, text in enumerate(tokens):
        other = first.setdefault(text, token_id)
        if other != token_id:
            raise _unsound(header, "tokens", f"has {text[:40]!r} twice, as {other} and {token_id}")


def _merge(header: GgufHeader, text: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right):
        raise _unsound(header, "merges", f"holds {text[:40]!r}, which is no pair of tokens")
    return left, right


def _texts(header: GgufHeader, key: str, default: list[str] | None = None) -> list[str]:
    value = header.metadata.get(_PREFIX + key, default)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _unsound(header, key, "is missing" if value is None else "is no list of texts")
    return [str(item) for item in value]


def _numbers(header: GgufHeader, key: str, count: int, default: float) -> list[float]:
    value = header.metadata.get(_PREFIX + key)
    if value is None:
        return [default] * count
    numbers = [
        item
        for item in (value if isinstance(value, list) else [])
        if isinstance(item, (int, float)) and math.isfinite(item)
    ]
    if not isinstance(value, list) or len(numbers) != count or len(value) != count:
        raise _unsound(header, key, f"is no list of {count} numbers, one for each token")
    return numbers


def _text(header: GgufHeader, key: str, default: str | None = None) -> str:
    value = header.metadata.get(_PREFIX + key, default)
    if not isinstance(value, str):
        raise _unsound(header, key, "is missing" if value is None else "is no text")
    return value


def _flag(header: GgufHeader, key: str) -> bool | None:
    value = header.metadata.get(_PREFIX + key)
    if value is not None and not isinstance(value, bool):
        raise _unsound(header, key, "is neither true nor false")
    return value


def _unsound(header: GgufHeader, key: str, what: str) -> ModelError:
    return ModelError(
        f"{header.file}: {_PREFIX}{key} {what}; download the file again, or pass the model's "
        "tokenizer with --tokenizer FOLDER"
    )
