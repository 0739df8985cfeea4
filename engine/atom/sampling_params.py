"""SamplingParams: how the tokens of one request are chosen, checked once when it is made.

Torch-free; crosses the wire as part of `Request`. Every limit is stated in the error message.
"""

from __future__ import annotations

import math

import msgspec

from atom.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
_INT64_MAX = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling controls of one request. Raises `RequestError` on a value out of range.

    temperature: 0 is greedy; larger flattens the distribution.
    top_k: keep the k most likely tokens; -1 or 0 keeps all.
    top_p: keep the smallest set of tokens whose probability reaches p, in (0, 1].
    seed: same seed, same prompt, same tokens, whatever else is in the batch; None draws one.
    max_tokens: most tokens to generate; None means as many as the context allows.
    stop_strings: generation ends before the first of these texts; never part of the output.
    stop_token_ids: generation ends at one of these tokens, besides the model's own end tokens.
    ignore_eos: the model's end tokens do not end generation (for benchmarks).
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 64
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise RequestError(
                f"temperature must be between 0 and 100, got {self.temperature}",
                param="temperature",
            )
        if self.top_k < -1:
            raise RequestError(
                f"top_k must be -1 (off) or at least 0, got {self.top_k}", param="top_k"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}", param="top_p")
        if self.seed is not None and not -_INT64_MAX - 1 <= self.seed <= _INT64_MAX:
            raise RequestError("seed must fit in 64 bits", param="seed")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(
                f"max_tokens must be at least 1, got {self.max_tokens}", param="max_tokens"
            )
        self._check_stops()

    def _check_stops(self) -> None:
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise RequestError(f"at most {MAX_STOP_STRINGS} stop strings", param="stop")
        for text in self.stop_strings:
            if not 0 < len(text) <= MAX_STOP_STRING_CHARS:
                raise RequestError(
                    f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters",
                    param="stop",
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise RequestError(f"at most {MAX_STOP_TOKEN_IDS} stop token ids", param="stop")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0
