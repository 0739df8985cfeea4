"""Recognise values that may be secret, so that no output has them. Pure.

A name tells most of them; some values tell it themselves. A false alarm costs one finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAME = re.compile(
    r"(token|secret|passw|api[-_]?key|credential|private[-_]?key|access[-_]?key)", re.I
)
# Numbers and paths of these names are no secrets, and `tokens` counts tokens.
_HARMLESS = re.compile(r"(tokens|tokenizer|token[-_]?ids?|_path|_file|-file|_dir)s?\b", re.I)
# Hugging Face, OpenAI and Anthropic, NVIDIA, GitHub, AWS, Slack, and tokens in three parts.
_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|nvapi-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}"
    r"|AKIA[A-Z0-9]{8,}|xox[a-z]-[A-Za-z0-9-]{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_USER_INFO = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@]+@", re.I)
_PEM = "PRIVATE KEY-----"


def is_secret_name(name: str) -> bool:
    """Return whether values of a variable, flag or field with this name may be secret."""
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)


def is_secret_text(text: str) -> bool:
    """Return whether a text itself shows that it is secret."""
    return bool(_VALUE.search(text) or _USER_INFO.search(text)) or _PEM in text


def holds_secret(value: Any) -> bool:
    """Return whether a value, or one inside it, shows that it is secret."""
    return any(is_secret_text(text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
