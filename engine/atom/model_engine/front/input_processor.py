"""Turns a prompt and its SamplingParams into Requests that the engine can serve, or refuses them.

All errors in a request's content are found here, before it is queued: length, vocabulary, limits
that depend on the model. It knows nothing of HTTP and keeps no state, so it may run on any thread.
Called by LLMEngine and AsyncLLMEngine.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from operator import index
from typing import Any

import msgspec

from atom.config import ModelConfig
from atom.errors import RequestError
from atom.images.image_input import ImageInput
from atom.images.item import ImageItem, PlacedImage
from atom.images.placement import PlacedPrompt
from atom.model_engine.front.vocabulary import Vocabulary
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.request_image import RequestImage
from atom.model_engine.wire.request_bounds import RequestBounds
from atom.model_engine.wire.request_images import check_images
from atom.sampling_params import SamplingParams, TruncationSide
from atom.structured_outputs import StructuredOutputsParams
from atom.tokenizer import Tokenizer

Prompt = str | Sequence[int]

MOST_TOKENS = 2**18  # of a text that is only to be tokenised, or the context if that is more
_SEEDS = 1 << 64
_LEAST_SEED = -(1 << 63)


class InputProcessor:
    """Makes requests of prompts, by one model's tokenizer and limits."""

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer | None) -> None:
        """tokenizer: None serves token-id prompts only (random weights without a tokenizer)."""
        self._model = model
        self._tokenizer = tokenizer
        self.vocabulary = Vocabulary(model, tokenizer)
        self.bounds = RequestBounds(model)

    def tokenize(
        self, prompt: Prompt, *, add_special_tokens: bool = True, for_answer: bool = True
    ) -> list[int]:
        """Return the token ids of `prompt`; given ids are only checked against the vocabulary.
        for_answer: a text far beyond the context is refused before all of it is tokenized."""
        if not isinstance(prompt, str):
            return self._checked_ids(prompt)
        if self._tokenizer is None:
            raise RequestError(
                f"{self._model.path} has no tokenizer; give prompts as token ids", param="prompt"
            )
        context_tokens = self._model.max_model_len
        most_tokens = context_tokens if for_answer else max(MOST_TOKENS, context_tokens)
        try:
            if self._tokenizer.has_far_more_than(most_tokens, prompt):
                raise self._too_long(f"more than {2 * most_tokens}", for_answer=for_answer)
            token_ids = self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        except (UnicodeError, TypeError) as error:
            raise RequestError("the prompt is not valid Unicode text", param="prompt") from error
        self.vocabulary.check_encoded(token_ids, "prompt")
        return token_ids

    def tokenize_pair(
        self, first: str, second: str, most: int | None, side: TruncationSide | None = None
    ) -> list[int]:
        """Return the token ids of two texts that an encoder reads together; ids of the second
        segment count from the vocabulary's end, if the model tells segments apart. most: tokens
        that are kept, None for all; side: at which texts are cut, None for the tokenizer's. Raises
        `RequestError`."""
        if self._tokenizer is None:
            raise RequestError(f"{self._model.path} has no tokenizer, which pairs of texts need")
        longest = self._model.max_model_len
        if most is not None:  # the rest is cut
            longest = max(MOST_TOKENS, longest)
        try:
            for text in (first, second):
                if self._tokenizer.has_far_more_than(longest, text):
                    raise self._too_long(f"more than {2 * longest}", for_answer=most is None)
            ids, segments = self._tokenizer.encode_pair(first, second, most, side)
        except (UnicodeError, TypeError) as error:
            raise RequestError("a text is not valid Unicode text", param="prompt") from error
        self.vocabulary.check_encoded(ids, "prompt")
        size, last = self._model.facts.vocab_size, self._model.facts.segments - 1
        return [index + size * min(of, last) for index, of in zip(ids, segments, strict=True)]

    def place_images(
        self, images: ImageInput, text: str, items: Sequence[ImageItem], *, add_special_tokens: bool
    ) -> PlacedPrompt | None:
        """Tokenise a rendered conversation with images, or with words that spell a token of images;
        None for any other. Raises `RequestError` as `tokenize` does."""
        assert self._tokenizer is not None  # it rendered the text
        if not items and not images.placer.spells(text):
            return None
        if self._tokenizer.has_far_more_than(self._model.max_model_len, text):
            raise self._too_long(f"more than {2 * self._model.max_model_len}", for_answer=True)
        return images.placer.place(text, images.mark, items, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of these tokens."""
        ids = self._checked_ids(token_ids)
        if self._tokenizer is None:
            raise RequestError(f"{self._model.path} has no tokenizer", param="tokens")
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def check_pools(self, pools: bool) -> None:
        """Raise `RequestError` unless the model was started for the request: pools for a vector,
        else tokens."""
        pooling, name = self._model.pooling, self._model.served_name
        if pools and pooling is None:
            raise RequestError(
                f"{name} was started to generate, not for embeddings or scores; start another "
                "server with --runner pooling"
            )
        if not pools and pooling is not None:
            raise RequestError(
                f"{name} was started for {pooling.kind} (--runner pooling) and generates nothing; "
                + (
                    "it is an encoder: start another server with a model that generates"
                    if self._model.facts.is_encoder
                    else "start another server with --runner generate"
                )
            )

    def prepare(self, params: SamplingParams) -> SamplingParams:
        """Bring every number into the bounds of wire and device, and bad words to token ids; the
        choice of tokens is unchanged. Called once for all prompts and answers of a call: the lists
        of `params` may be long."""
        if params.structured_outputs is not None:
            self._check_structured(params.structured_outputs)
        changes: dict[str, Any] = {"temperature": 0.0} if params.greedy else {}
        if params.top_k >= self.vocabulary.size:
            changes["top_k"] = -1
        context_tokens = self._model.max_model_len
        for name in ("max_tokens", "min_tokens"):
            asked = getattr(params, name)
            if asked is not None and asked > context_tokens:
                changes[name] = context_tokens
        if params.thinking is not None and params.thinking.tokens >= context_tokens:
            changes["thinking"] = None
        elif params.thinking is not None:
            thinking = params.thinking
            marks = (*thinking.opening, *thinking.closing, *thinking.then)
            self.vocabulary.check_encoded(marks, "thinking_token_budget")
        if params.stop_strings and (named := self._named_by(params.stop_strings)):
            changes["stop_token_ids"] = tuple(dict.fromkeys((*params.stop_token_ids, *named)))
        if params.bad_words:
            found = (*params.bad_words_token_ids, *self._bad_words(params.bad_words))
            changes |= {"bad_words": (), "bad_words_token_ids": found}
        prepared = msgspec.structs.replace(params, **changes) if changes else params
        self.bounds.check_params(prepared)
        return prepared

    def build_requests(
        self,
        numbers: Iterator[int],
        token_ids: list[int],
        prepared: SamplingParams,
        *,
        arrive_time: float,
        priority: int = 0,
        cache_salt: str = "",
        client_id: str = "",
        lora: LoRARequest | None = None,
        images: Sequence[RequestImage] = (),
    ) -> list[Request]:
        """Build one request per answer to a prompt. numbers: yields the requests' ids; images: of
        the prompt, whose tokens it has.

        An answer longer than the context leaves room for is cut to that room (it then ends with
        finish reason "length"); a prompt that leaves no room for one token is refused.
        """
        check_images(images, len(token_ids), self._model)
        room_tokens = self._room_behind(token_ids)
        asked_tokens = room_tokens if prepared.max_tokens is None else prepared.max_tokens
        answer_tokens = min(asked_tokens, room_tokens)
        changes: dict[str, Any] = {}
        if prepared.max_tokens != answer_tokens:
            changes["max_tokens"] = answer_tokens
        if prepared.min_tokens > answer_tokens:
            changes["min_tokens"] = answer_tokens
        fitting = msgspec.structs.replace(prepared, **changes) if changes else prepared
        return [
            Request(
                id=next(numbers),
                prompt_token_ids=token_ids,
                params=params,
                max_total_tokens=len(token_ids) + answer_tokens,
                arrive_time=arrive_time,
                priority=priority,
                cache_salt=cache_salt,
                client_id=client_id,
                lora=lora,
                images=list(images),
            )
            for params in params_of_each_answer(fitting)
        ]

    def check_handed(self, request: Request) -> None:
        """Check a request that another replica has begun, as it comes from outside. Raises
        `RequestError`."""
        self.check_pools(False)
        self.check_length(request.prompt_token_ids)
        self.bounds.check(request)
        if request.params.structured_outputs is not None:
            self._check_structured(request.params.structured_outputs)

    def truncated(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        """Return the part of a prompt that is kept (truncate_prompt_tokens)."""
        most = params.truncate_prompt_tokens
        if most is None:
            return token_ids
        if most > self._model.max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens is {most}, more than the context of "
                f"{self._model.served_name}, {self._model.max_model_len} tokens",
                param="truncate_prompt_tokens",
            )
        if most == -1:
            room_tokens = self._model.max_model_len - (params.max_tokens or 1)
            most = self._longest_prompt if self._model.pooling else max(1, room_tokens)
        if self._model.pooling and self._tokenizer is not None:
            return self._tokenizer.cut(token_ids, most, params.truncation_side)
        # A pooled input is cut as transformers cuts it; a conversation's end is its question.
        side = params.truncation_side or (self.truncation_side if self._model.pooling else "left")
        return token_ids[:most] if side == "right" else token_ids[-most:]

    @property
    def truncation_side(self) -> TruncationSide:
        """Return the side at which a pooled input is cut, unless its request says another."""
        return "right" if self._tokenizer is None else self._tokenizer.truncation_side

    @property
    def _longest_prompt(self) -> int:
        """Return the most tokens of a prompt: an answered one leaves room for one token."""
        return self._model.max_model_len - (self._model.pooling is None)

    def check_length(self, token_ids: Sequence[int]) -> None:
        """Raises `RequestError` for a prompt that leaves no room for an answer, or is empty."""
        self._room_behind(list(token_ids))

    def _room_behind(self, token_ids: list[int]) -> int:
        if not token_ids:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        room_tokens = self._longest_prompt + 1 - len(token_ids)
        if room_tokens < 1:
            raise self._too_long(str(len(token_ids)), for_answer=True)
        return room_tokens

    def _too_long(self, tokens: str, *, for_answer: bool) -> RequestError:
        """Build the error for a text of `tokens` tokens."""
        if not for_answer:
            return RequestError(
                f"the text has {tokens} tokens, more than this server tokenises at once; send it "
                f"in parts",
                param="prompt",
                status=413,
            )
        if self._model.pooling is not None:
            return RequestError(
                f"the input has {tokens} tokens, but the context of {self._model.served_name} is "
                f"{self._model.max_model_len} tokens; shorten it, or send truncate_prompt_tokens",
                param="prompt",
                code="context_length_exceeded",
            )
        return RequestError(
            f"the prompt has {tokens} tokens, but the context of "
            f"{self._model.served_name} is {self._model.max_model_len} tokens for prompt and "
            f"answer together; shorten the prompt to at most {self._model.max_model_len - 1}",
            param="prompt",
            code="context_length_exceeded",
        )

    def _check_structured(self, asked: StructuredOutputsParams) -> None:
        """Check all that needs no compiling; the engine compiles it and may refuse it yet."""
        if self._tokenizer is None:
            raise asked.refusal(f"structured output needs a tokenizer; {self._model.path} has none")
        if find_spec("llguidance") is None:
            raise asked.refusal(
                "structured output is not available on this server: llguidance is not installed "
                "(pip install llguidance)"
            )
        asked.check_schema()

    def _named_by(self, stop_strings: Sequence[str]) -> list[int]:
        """Return the special tokens among the stop strings: they never become text, so that only
        their ids can end an answer."""
        if self._tokenizer is None:
            return []
        ids = map(self._tokenizer.special_token_id, stop_strings)
        named = [token_id for token_id in ids if token_id is not None]
        self.vocabulary.check_encoded(named, "stop")
        return named

    def _bad_words(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """Tokenize each word as it is spelled at the start of a text and after a space."""
        if self._tokenizer is None:
            raise RequestError(
                f"{self._model.path} has no tokenizer; give bad_words_token_ids", param="bad_words"
            )
        found: list[tuple[int, ...]] = []
        for word in words:
            bare = word.lstrip() or word
            plain = tuple(self._tokenizer.encode(bare, add_special_tokens=False))
            spaced = tuple(self._tokenizer.encode(f" {bare}", add_special_tokens=False))
            self.vocabulary.check_encoded((*plain, *spaced), "bad_words")
            found.append(plain)
            if spaced[-len(plain) :] != plain:  # else the plain one keeps it out as well
                found.append(spaced)
        return found

    def pack_images(
        self, images: Sequence[PlacedImage], params: SamplingParams
    ) -> list[RequestImage]:
        """Pack a prompt's images. Raises `RequestError` if the prompt is to be cut, since its
        images would lose their places."""
        if images and params.truncate_prompt_tokens is not None:
            raise RequestError(
                "truncate_prompt_tokens would cut the prompt's images; leave one of them out",
                param="truncate_prompt_tokens",
            )
        return [RequestImage.of(image) for image in images]

    def _checked_ids(self, token_ids: Sequence[int]) -> list[int]:
        try:
            if isinstance(token_ids, bytes | bytearray):
                raise TypeError
            ids = list(map(index, token_ids))  # numpy's integers too
        except TypeError:
            raise RequestError(
                f"a prompt must be a text (str) or a list of token ids (int), not "
                f"{reprlib.repr(token_ids)}",
                param="prompt",
            ) from None
        self.bounds.check_ids(ids, "prompt")
        return ids


def params_of_each_answer(params: SamplingParams) -> tuple[SamplingParams, ...]:
    """Split params of `n` answers into params for one answer each: the engine core never sees n.
    Answer i has the seed `seed + i` (within 64 bits), so that the first equals the answer of n = 1;
    without a seed each draws its own."""
    if params.n == 1:
        return (params,)
    if params.seed is None:
        return (msgspec.structs.replace(params, n=1),) * params.n
    seeds = [_wrapped(params.seed + index) for index in range(params.n)]
    return tuple(msgspec.structs.replace(params, n=1, seed=seed) for seed in seeds)


def _wrapped(seed: int) -> int:
    return (seed - _LEAST_SEED) % _SEEDS + _LEAST_SEED
