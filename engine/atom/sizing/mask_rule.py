"""MaskRule: the earlier tokens that a query attends to.

A model's facts have the rule of each layer (families/). Attention backends mask by the rule, the
KV cache keeps the tokens that it can still reach, and the operator's plan counts them. Only this
module, and kernels that are compiled for a rule, distinguish the kinds of rules; all other code
uses the value's methods. Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class MaskKind(enum.StrEnum):
    """The kinds of rules, by the names in papers."""

    CAUSAL = "causal"  # everything up to the query
    SLIDING_WINDOW = "sliding window"  # the newest tokens, the query's own included (Mistral)
    CHUNKED = "chunked"  # the tokens in the query's chunk, of contiguous chunks (Llama 4)


# The names in KV events of the tokens that a block's layers see.
_KV_CACHE_SPEC_KINDS = {
    MaskKind.CAUSAL: "full_attention",
    MaskKind.SLIDING_WINDOW: "sliding_window",
    MaskKind.CHUNKED: "chunked_local_attention",
}


@dataclass(frozen=True, slots=True)
class MaskRule:
    """The rule of one attention layer. `size`: tokens of a window or of a chunk, 0 of neither."""

    kind: MaskKind = MaskKind.CAUSAL
    size: int = 0

    def __post_init__(self) -> None:
        assert (self.size > 0) is (self.kind is not MaskKind.CAUSAL), self

    @property
    def window(self) -> int | None:
        """Return how many of the newest tokens any query may attend to, and a cache must keep; None
        for all. A chunk is kept as a window of its size, which always reaches far enough."""
        return self.size or None

    @property
    def kv_cache_spec_kind(self) -> str:
        """Return vLLM's name of a cache of such layers."""
        return _KV_CACHE_SPEC_KINDS[self.kind]

    def first_seen(self, at: Any) -> Any:
        """Return the first position that a query at position `at` attends to, or one below 0.

        `at` is an int or a tensor of ints, and the result is the same.
        """
        if self.kind is MaskKind.SLIDING_WINDOW:
            return at - (self.size - 1)
        if self.kind is MaskKind.CHUNKED:
            return at - at % self.size
        return at - at

    def sees(self, at: Any, key: Any) -> Any:
        """Return whether a query at position `at` attends to the token at `key`: ints, or tensors
        that broadcast to each other."""
        seen = key <= at
        return seen if self.window is None else seen & (key >= self.first_seen(at))

    def seen(self, context: int) -> int:
        """Count the tokens that the last of `context` attends to."""
        return context - max(0, int(self.first_seen(context - 1)))

    def most_seen(self, context: int) -> int:
        """Count the tokens that any of `context` attends to, at most."""
        return context if self.window is None else min(context, self.window)

    def within(self, longest: int) -> MaskRule:
        """Return the rule of sequences of at most `longest` tokens: a chunk that they fit is
        attended to as a whole."""
        fits = self.kind is MaskKind.CHUNKED and self.size >= longest
        return CAUSAL if fits else self


CAUSAL = MaskRule()


def sliding_window(tokens: int | None) -> MaskRule:
    """Return the rule of a layer that attends to the newest `tokens`; None or 0 for all."""
    return MaskRule(MaskKind.SLIDING_WINDOW, tokens) if tokens else CAUSAL


def chunked(tokens: int) -> MaskRule:
    """Return the rule of a layer that attends within chunks of `tokens`."""
    return MaskRule(MaskKind.CHUNKED, tokens)
