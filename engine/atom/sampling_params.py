"""SamplingParams: the sampling controls of one request, checked once when they are made.

Torch-free; crosses the wire as part of `Request`. Every limit is stated in the error message.
Names and meanings are those of vLLM and OpenAI, so that a client's fields can be passed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from atom.errors import RequestError
from atom.structured_outputs import StructuredOutputsParams
from atom.structured_outputs.reasoning_span import ReasoningSpan
from atom.structured_outputs.thinking_budget import ThinkingBudget

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
# Tokens of one bad word: as many as the device remembers of every answer that has bad words.
MAX_BAD_WORD_TOKENS = 16
# As in vLLM. A float32 division of logits by a smaller one would overflow.
_GREEDY_BELOW = 1e-5
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
TruncationSide = Literal["left", "right"]


class DrawParams(msgspec.Struct, frozen=True, kw_only=True):
    """Controls of the distribution that tokens are drawn from.

    temperature: 0 is greedy, and so is less than 0.00001; larger flattens the distribution.
    top_k: keep the k most likely tokens (and those as likely as the last of them); -1 or 0 keeps
    all.
    top_p: then keep the smallest set of tokens whose probability reaches p, in (0, 1].
    min_p: then keep tokens at least this share as likely as the most likely one, in [0, 1].
    seed: same seed, same prompt, same tokens, whatever else is in the batch; None draws one.
    repetition_penalty: above 1 makes tokens of prompt and answer less likely (positive logits are
    divided by it, negative ones multiplied), below 1 more likely; 1 is off. 0.01 to 100.
    presence_penalty: subtracted from the logit of every token that the answer contains.
    frequency_penalty: subtracted from a token's logit once for each occurrence in the answer.
    logit_bias: token id → added to its logit, -100 to 100.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None


class EndParams(DrawParams, frozen=True, kw_only=True):
    """Add the controls of the tokens that an answer may hold, and of its end.

    max_tokens: most tokens to generate; None means as many as the context allows.
    min_tokens: no end token, stop token or stop string ends the answer before this many tokens.
    stop_strings: generation ends before the first of these texts; never part of the output. The
    name of a special token means that token.
    stop_token_ids: generation ends at one of these tokens, besides the model's own end tokens.
    ignore_eos: the model's end tokens do not end generation (for benchmarks).
    allowed_token_ids: only these can be chosen; None allows all.
    bad_words: texts that are not generated; bad_words_token_ids: the same as token ids. The last
    token of a word is forbidden after the word's other tokens.
    """

    max_tokens: int | None = 64
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()


class ShownParams(EndParams, frozen=True, kw_only=True):
    """Add the controls of the prompt, and of how an answer is shown.

    logprobs: report for every generated token its log-probability and those of this many most
    likely tokens (0: only its own); None reports none. Taken from the model's raw logits.
    prompt_logprobs: the same for the prompt's tokens.
    include_stop_str_in_output: the stop string or stop token that ends an answer is part of it.
    skip_special_tokens: false shows special tokens as text. shown_special_token_ids: special
    tokens that are always shown, as marks that a parser of the answer needs.
    truncate_prompt_tokens: a longer prompt loses its beginning (truncation_side left) or its end;
    -1 keeps as much as leaves room for max_tokens. None for a side: left, or of an input that is
    pooled, the tokenizer's.
    return_prompt_token_ids: return the prompt's tokens with the answer.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    shown_special_token_ids: tuple[int, ...] = ()
    truncate_prompt_tokens: int | None = None
    truncation_side: TruncationSide | None = None
    return_prompt_token_ids: bool = False


class SamplingParams(ShownParams, frozen=True, kw_only=True):
    """Sampling controls of one request. Raises `RequestError` on a value out of range.

    n: independent answers; the front end makes a request of each.
    structured_outputs: the structure that the answer must have. The grammar ends the answer: a
    complete grammar overrides min_tokens and ignore_eos.
    thinking: the bound on the tokens of reasoning; None for no bound.
    reasoning: the place of the reasoning, in which no stop string is searched for; None if there is
    none, or if the caller does not separate it.
    """

    n: int = 1
    structured_outputs: StructuredOutputsParams | None = None
    thinking: ThinkingBudget | None = None
    reasoning: ReasoningSpan | None = None

    def __post_init__(self) -> None:
        _within("n", self.n, 1, MAX_CHOICES)
        _within("temperature", self.temperature, 0, 100)
        _within("min_p", self.min_p, 0, 1)
        _within("presence_penalty", self.presence_penalty, -2, 2)
        _within("frequency_penalty", self.frequency_penalty, -2, 2)
        if self.top_k < -1:
            raise RequestError(
                f"top_k must be -1 (off) or at least 0, got {self.top_k}", param="top_k"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}", param="top_p")
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100)
        if self.seed is not None and not -_INT64_MAX - 1 <= self.seed <= _INT64_MAX:
            raise RequestError("seed must fit in 64 bits", param="seed")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _within(name, count, 0, MAX_LOGPROBS)
        kept = self.truncate_prompt_tokens
        if kept is not None and (kept < -1 or kept == 0):
            raise RequestError(
                f"truncate_prompt_tokens must be -1 (what fits) or at least 1, got {kept}",
                param="truncate_prompt_tokens",
            )
        self._check_lengths()
        self._check_stops()
        self._check_tokens()

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(
                f"max_tokens must be at least 1, got {self.max_tokens}", param="max_tokens"
            )
        limit = _INT32_MAX if self.max_tokens is None else self.max_tokens
        if not 0 <= self.min_tokens <= limit:
            raise RequestError(
                f"min_tokens must be at least 0 and at most max_tokens ({self.max_tokens}), "
                f"got {self.min_tokens}",
                param="min_tokens",
            )

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
            raise RequestError(
                f"at most {MAX_STOP_TOKEN_IDS} stop token ids", param="stop_token_ids"
            )

    def _check_tokens(self) -> None:
        biases = self.logit_bias or {}
        if len(biases) > MAX_LOGIT_BIASES:
            raise RequestError(f"at most {MAX_LOGIT_BIASES} logit biases", param="logit_bias")
        for bias in biases.values():
            _within("logit_bias", bias, -100, 100)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError(
                "allowed_token_ids must name at least one token; leave it out to allow all",
                param="allowed_token_ids",
            )
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise RequestError(f"at most {MAX_BAD_WORDS} bad words", param="bad_words")
        for word in self.bad_words:
            if not 0 < len(word) <= MAX_BAD_WORD_CHARS:
                raise RequestError(
                    f"a bad word must have 1 to {MAX_BAD_WORD_CHARS} characters", param="bad_words"
                )
        _check_bad_words(self.bad_words_token_ids)

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW

    @property
    def penalizes(self) -> bool:
        """Return whether the tokens that a sequence already has change the next one's logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _within(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise RequestError(f"{name} must be between {least} and {most}, got {value}", param=name)


def _check_bad_words(words: Iterable[tuple[int, ...]]) -> None:
    sequences = tuple(words)
    # Each text becomes up to two sequences: with and without a leading space.
    if len(sequences) > 3 * MAX_BAD_WORDS:
        raise RequestError(f"at most {MAX_BAD_WORDS} bad words", param="bad_words")
    for sequence in sequences:
        if not 0 < len(sequence) <= MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"a bad word must have 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(sequence)}; "
                f"a shorter part of it has the same effect",
                param="bad_words",
            )
