"""Values of flags as people write them, vLLM's spellings too: text to value, or what is wrong."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

from atom.sizing.options.option import OneOf

DTYPES = ("auto", "float32", "bfloat16", "float16")
_DTYPE_NAMES = {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16"}
KV_CACHE_DTYPES = ("auto", "bf16", "fp16", "fp32", "fp8")
KV_CACHE_DTYPE = OneOf(
    KV_CACHE_DTYPES, f"auto, the model's own type, or one of {', '.join(KV_CACHE_DTYPES[1:])}"
)
_KV_NAMES = {
    "fp8_e4m3": "fp8",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}
_LOAD_FORMATS = ("auto", "safetensors", "hf", "dummy")
# vLLM's: k, m and g count thousands, K, M and G count 1024s.
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_NEGATIVE = re.compile(r"-\d+(\.\d*)?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def is_flag(word: str) -> bool:
    """Return whether a word of a command line is a flag: it begins with a dash, and is no
    number."""
    return word.startswith("-") and _NEGATIVE.fullmatch(word) is None


def dtype(text: str) -> str:
    found = _DTYPE_NAMES.get(text, text)
    if found not in DTYPES:
        raise argparse.ArgumentTypeError(f"unknown type {text!r}; use {', '.join(DTYPES)}")
    return found


def kv_cache_dtype(text: str) -> str:
    found = _KV_NAMES.get(text, text)
    problem = KV_CACHE_DTYPE.problem("kv_cache_dtype", found)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return found


def whole_number(text: str) -> int:
    """Parse a whole number as people write it: 8, -1, 1_000, 32k (32,000) or 32K (32,768)."""
    match = _COUNT.fullmatch(text)
    if match and match[2]:
        count = float(match[1]) * _UNITS[match[2]]
        if count == int(count):
            return int(count)
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number such as 8 or 32k") from None


def count_up_to(most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 to `most`."""

    def count(text: str) -> int:
        found = whole_number(text)
        if not 1 <= found <= most:
            raise argparse.ArgumentTypeError(f"{found} is not within 1 to {most}")
        return found

    return count


def number(text: str) -> float:
    """Parse a number, also with an exponent."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number such as 2 or 0.5") from None


def share(text: str) -> float:
    """Parse a share of a whole: 0.9 or 90%."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share such as 0.9 or 90%") from None


def token_count(text: str) -> int:
    """Parse a count of tokens: 32768, 32k (32,000), 32K (32,768), 1M."""
    match = _COUNT.fullmatch(text)
    count = float(match[1]) * _UNITS[match[2]] if match else -1.0
    if count != int(count) or count < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no count of tokens; use 32768, 32k or 32K")
    return int(count)


def context_length(text: str) -> int | None:
    """Parse a context length; None for auto and -1, the model's own."""
    return None if text in ("auto", "-1") else token_count(text)


def is_dummy(text: str) -> bool:
    if text not in _LOAD_FORMATS:
        raise argparse.ArgumentTypeError(
            f"unknown load format {text!r}; use auto, which reads safetensors or a GGUF file, or "
            "dummy"
        )
    return text == "dummy"


def image_limit(text: str) -> int:
    """Parse the most images of a prompt: a number, or a JSON object with the one key `image`."""
    value: Any = int(text) if text.isdigit() else json_object(text)
    if isinstance(value, dict):
        others = sorted(value.keys() - {"image", "video", "audio"})
        if others or any(value.get(kind) for kind in ("video", "audio")):
            raise argparse.ArgumentTypeError(
                f'{text!r} limits what is not read: images alone are read; use {{"image": N}}'
            )
        value = value.get("image")
    if not isinstance(value, int) or isinstance(value, bool):
        raise argparse.ArgumentTypeError(f'{text!r} is no number of images; use {{"image": N}}')
    return value


def json_object(text: str) -> dict[str, Any]:
    """Read an option's value that is a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON ({error}): {text!r}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return value
