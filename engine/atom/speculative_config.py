"""SpeculativeConfig: the configuration of speculation, from a JSON document or from flags.

The document's keys are vLLM's if vLLM has them; the flags are upstream's. A refusal of an
unsupported value lists the supported ones. Torch-free; read by the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from atom.errors import ConfigError
from atom.sizing.engine_support import (
    DRAFT_CHECKPOINT_METHODS,
    LAYER_METHODS,
    SUPPORTED_DRAFT_METHODS,
)
from atom.sizing.options.drafting import MOST_DRAFTS, USUAL_DRAFTS

MOST_MATCHED = 64  # tokens that a look-up compares
_FEWEST_MATCHED, _USUALLY_MATCHED = 1, 8
_MOST_CACHED, _MOST_FACTOR = 1_000_000, 16.0
_SUPPORTED = (
    "methods: ngram (the request's own tokens, with prompt_lookup_min and prompt_lookup_max), "
    "suffix (also earlier answers, with suffix_decoding_max_tree_depth, "
    "suffix_decoding_max_cached_requests, suffix_decoding_max_spec_factor and "
    "suffix_decoding_min_token_prob), mtp (the checkpoint's own draft layer), eagle3 (a layer made "
    "for the model) and draft_model (a whole model of the same vocabulary), these two with model, "
    "folder or hub id of what drafts; each with num_speculative_tokens and adaptive"
)
_SUFFIX = "suffix_decoding_"  # how the keys of SuffixOptions begin, as in vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixOptions:
    """Options of method suffix. max_tree_depth: tokens that are matched at most;
    max_cached_requests: earlier answers that are kept, 0 for none; max_spec_factor: drafts for each
    matched token, at most; min_token_prob: the least share of the occurrences that continue as a
    draft does."""

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Options of speculative decoding. method: who drafts; num_tokens: drafts of a row and step, at
    most; fewest_matched, most_matched: tokens at a row's end that have to occur before, for what
    followed there to be its draft; adaptive: a row carries as many drafts as pay, instead of as
    many as it may. draft_model: folder or hub id of the checkpoint that drafts, of methods eagle3
    and draft_model; suffix: of method suffix."""

    method: str = "ngram"
    num_tokens: int = USUAL_DRAFTS
    fewest_matched: int = _FEWEST_MATCHED
    most_matched: int = _USUALLY_MATCHED
    adaptive: bool = True
    draft_model: str | None = None
    suffix: SuffixOptions = field(default_factory=SuffixOptions)

    @property
    def by_layers(self) -> bool:
        """Return whether layers draft, with their own weights and cache."""
        return self.method in LAYER_METHODS


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int = USUAL_DRAFTS
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    adaptive: bool = True
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_cached_requests: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None

    def suffix_options(self) -> dict[str, Any]:
        """Return the given options of method suffix, as fields of SuffixOptions."""
        keys = [key for key in self.__struct_fields__ if key.startswith(_SUFFIX)]
        given = {key.removeprefix(_SUFFIX): getattr(self, key) for key in keys}
        return {name: value for name, value in given.items() if value is not None}


def speculative_config(
    text: str | None,
    method: str | None,
    num_tokens: int | None,
    draft_model: str | None = None,
) -> SpeculativeConfig | None:
    """Return the configuration that --speculative-config, --method, --num-speculative-tokens and
    --draft-model give together; None for no speculation. Raises `ConfigError`."""
    given: dict[str, Any] = {} if text is None else _parsed(text)
    flags = (
        ("--method", "method", method),
        ("--num-speculative-tokens", "num_speculative_tokens", num_tokens or None),
        ("--draft-model", "model", draft_model),
    )
    for flag, key, value in flags:
        if value is None:
            continue
        if text is None and method is None:
            raise ConfigError(f"{flag} {value}: nothing says who drafts; add --method ngram")
        if given.setdefault(key, value) != value:
            raise ConfigError(
                f"{flag} {value} and --speculative-config's {key} {given[key]!r} differ; leave "
                "one out"
            )
    return _checked(given) if given or text is not None else None


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
    _check_method(document)
    least, most = document.prompt_lookup_min, document.prompt_lookup_max
    if most is None:
        most = _USUALLY_MATCHED if least is None else max(least, _USUALLY_MATCHED)
    if least is None:
        least = min(most, _FEWEST_MATCHED)
    _within("num_speculative_tokens", document.num_speculative_tokens, 1, MOST_DRAFTS)
    _within("prompt_lookup_max", most, 1, MOST_MATCHED)
    _within("prompt_lookup_min", least, 1, most)
    suffix = SuffixOptions(**document.suffix_options())
    _within(f"{_SUFFIX}max_tree_depth", suffix.max_tree_depth, 1, MOST_MATCHED)
    _within(f"{_SUFFIX}max_cached_requests", suffix.max_cached_requests, 0, _MOST_CACHED)
    _within(f"{_SUFFIX}max_spec_factor", suffix.max_spec_factor, 0.1, _MOST_FACTOR)
    _within(f"{_SUFFIX}min_token_prob", suffix.min_token_prob, 0.0, 1.0)
    return SpeculativeConfig(
        method=method,
        draft_model=document.model,
        num_tokens=document.num_speculative_tokens,
        fewest_matched=least,
        most_matched=most,
        adaptive=document.adaptive,
        suffix=suffix,
    )


def _check_method(document: _Document) -> None:
    """Refuse keys that belong to another method."""
    by_checkpoint = document.method in DRAFT_CHECKPOINT_METHODS
    if by_checkpoint and document.model is None:
        raise ConfigError(
            f"speculation: method {document.method} needs a draft model: name its folder or hub id "
            "with --draft-model, or as model in --speculative-config"
        )
    looked_up = (document.prompt_lookup_min, document.prompt_lookup_max) != (None, None)
    foreign = {
        "model": document.model is not None and not by_checkpoint,
        "prompt_lookup_min and prompt_lookup_max": looked_up and document.method != "ngram",
        **{_SUFFIX + name: document.method != "suffix" for name in document.suffix_options()},
    }
    for key, given in foreign.items():
        if given:
            raise ConfigError(
                f"speculation: {key} means nothing to method {document.method}; leave it out"
            )


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"speculation: {name} must be {least} to {most}, got {value}")
