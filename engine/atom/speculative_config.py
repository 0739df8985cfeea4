"""SpeculativeConfig: what is asked of speculation, by a JSON document or by flags of its own.

The document's keys are vLLM's where there are such; the flags are upstream's. What this version
does not run is refused with what it does. Torch-free; read by the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from atom.errors import ConfigError
from atom.sizing.engine_support import SUPPORTED_DRAFT_METHODS

MOST_DRAFTS = 16
MOST_MATCHED = 64  # tokens that a look-up compares
_FEWEST_MATCHED, _USUALLY_MATCHED, _USUAL_DRAFTS = 2, 8, 5
_SUPPORTED = (
    "this version drafts from the request's own tokens alone: method ngram, with "
    "num_speculative_tokens, prompt_lookup_min, prompt_lookup_max and adaptive"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """method: who drafts; num_tokens: drafts of a row and step, at most; fewest_matched,
    most_matched: tokens at a row's end that have to occur before, for what followed there to be its
    draft; adaptive: a row carries as many drafts as pay, instead of as many as it may."""

    method: str = "ngram"
    num_tokens: int = _USUAL_DRAFTS
    fewest_matched: int = _FEWEST_MATCHED
    most_matched: int = _USUALLY_MATCHED
    adaptive: bool = True


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    method: str | None = None
    num_speculative_tokens: int = _USUAL_DRAFTS
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    adaptive: bool = True


def speculative_config(
    text: str | None, method: str | None, num_tokens: int | None
) -> SpeculativeConfig | None:
    """What --speculative-config, --method and --num-speculative-tokens ask for together; None for
    no speculation. Raises `ConfigError`."""
    if text is None:
        if method is None:
            if num_tokens:
                raise ConfigError(
                    f"--num-speculative-tokens {num_tokens}: nothing drafts them; add "
                    "--method ngram"
                )
            return None
        given: dict[str, Any] = {"method": method}
    else:
        given = _parsed(text)
        if method is not None and given.setdefault("method", method) != method:
            raise ConfigError(
                f"--method {method} and --speculative-config's method {given['method']!r} differ; "
                "leave one out"
            )
    if num_tokens is not None and given.setdefault("num_speculative_tokens", num_tokens) != (
        num_tokens
    ):
        raise ConfigError(
            f"--num-speculative-tokens {num_tokens} and --speculative-config's "
            f"{given['num_speculative_tokens']} differ; leave one out"
        )
    return _checked(given)


def _parsed(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config: no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError('--speculative-config: must be an object such as {"method": "ngram"}')
    return given


def _checked(given: dict[str, Any]) -> SpeculativeConfig:
    method = given.get("method")
    if method not in SUPPORTED_DRAFT_METHODS:
        asked = "names no method" if method is None else f"method {method!r} is not supported"
        raise ConfigError(f"speculation: {asked}; {_SUPPORTED}")
    try:
        document = msgspec.convert(given, _Document)
    except msgspec.ValidationError as error:
        raise ConfigError(f"speculation: {error}; {_SUPPORTED}") from error
    least, most = document.prompt_lookup_min, document.prompt_lookup_max
    if most is None:
        most = _USUALLY_MATCHED if least is None else max(least, _USUALLY_MATCHED)
    if least is None:
        least = min(most, _FEWEST_MATCHED)
    _within("num_speculative_tokens", document.num_speculative_tokens, 1, MOST_DRAFTS)
    _within("prompt_lookup_max", most, 1, MOST_MATCHED)
    _within("prompt_lookup_min", least, 1, most)
    return SpeculativeConfig(
        num_tokens=document.num_speculative_tokens,
        fewest_matched=least,
        most_matched=most,
        adaptive=document.adaptive,
    )


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"speculation: {name} must be {least} to {most}, got {value}")
