"""RequestBounds: the limits that every request keeps, whichever interface it came by.

The HTTP routes, batch files, the Python API and other replicas all end at the engine core, which
checks each request here once more: an id beyond the vocabulary or a length beyond the context would
end the steps of every other request. Pure and torch-free; used by InputProcessor, which reports the
error early, and by EngineCore, which trusts no sender.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atom.config import ModelConfig
from atom.errors import RequestError
from atom.model_engine.request import MAX_PRIORITY, MAX_SALT_CHARS, Request
from atom.model_engine.wire.request_images import check_images
from atom.model_engine.wire.request_size import check_size
from atom.sampling_params import SamplingParams
from atom.structured_outputs.thinking_budget import ThinkingBudget

MAX_CLIENT_CHARS = 64
MAX_LORA_NAME_CHARS = 256
_MOST_MARK_TOKENS = 256  # of each part of a thinking budget
_MOST_NUMBER = 2**63 - 1


class RequestBounds:
    """Check requests against one model's limits. Each check raises `RequestError` with the field at
    fault."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._size = model.vocab_size
        # A pooled prompt may fill the context: the token that ends its row is never computed.
        self._most_total = model.max_model_len + (model.pooling is not None)

    def check(self, request: Request) -> None:
        """Check a request as it reaches an engine core."""
        prompt, output = request.prompt_token_ids, request.output_token_ids
        known = len(prompt) + len(output)
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        self.check_ids(prompt, "prompt_token_ids")
        self.check_ids(output, "output_token_ids")
        if not known < request.max_total_tokens <= self._most_total:
            raise RequestError(
                f"max_total_tokens is {request.max_total_tokens}: it must be more than the {known} "
                f"tokens that are known, and at most {self._most_total}",
                param="max_total_tokens",
            )
        self._check_service(request)
        if request.params.n != 1:
            raise RequestError(
                f"n is {request.params.n}: each answer is a request of its own", param="n"
            )
        self.check_params(request.params)
        check_images(request.images, len(prompt), self._model)
        check_size([prompt], request.params)

    def check_params(self, params: SamplingParams) -> None:
        """Check the limits that depend on the model: lengths, ids, and whether any token is
        allowed."""
        context_tokens = self._model.max_model_len
        for name, asked in (("max_tokens", params.max_tokens), ("min_tokens", params.min_tokens)):
            if asked is not None and asked > context_tokens:
                raise RequestError(
                    f"{name} is {asked}, more than the context of {self._model.served_name}, "
                    f"{context_tokens} tokens; ask for fewer",
                    param=name,
                )
        if params.top_k > self._size:
            raise RequestError(
                f"top_k is {params.top_k}, more than the vocabulary of {self._model.served_name} "
                f"has; send -1 to keep every token",
                param="top_k",
            )
        named = {
            "stop_token_ids": params.stop_token_ids,
            "logit_bias": params.logit_bias,
            "allowed_token_ids": params.allowed_token_ids,
            "bad_words": [token for word in params.bad_words_token_ids for token in word],
        }
        for param, token_ids in named.items():
            if token_ids:
                self.check_ids(list(token_ids), param)
        if params.thinking is not None:
            self._check_thinking(params.thinking)
        if params.min_tokens or any(named.values()):
            self._check_something_allowed(params)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Check that token ids, possibly very many, are in the model's vocabulary."""
        for extreme in (min(token_ids), max(token_ids)) if token_ids else ():
            if not 0 <= extreme < self._size:
                raise RequestError(
                    f"token id {extreme} is outside the vocabulary of {self._model.served_name}, "
                    f"which has ids 0 to {self._size - 1}",
                    param=param,
                )

    def _check_service(self, request: Request) -> None:
        """Check the fields that name a request's client and order its wait."""
        for bound in _BOUNDS:
            if not bound.holds(request):
                raise RequestError(f"{bound.name} must be {bound.words}", param=bound.name)

    def _check_thinking(self, budget: ThinkingBudget) -> None:
        param = "thinking_token_budget"
        parts: Mapping[str, Sequence[int]] = {
            "opening": budget.opening,
            "closing": budget.closing,
            "then": budget.then,
            "excluded": () if budget.excluded is None else (budget.excluded,),
        }
        for name, token_ids in parts.items():
            if len(token_ids) > _MOST_MARK_TOKENS:
                raise RequestError(
                    f"{param}: {name} has {len(token_ids)} tokens; at most {_MOST_MARK_TOKENS} "
                    f"are followed",
                    param=param,
                )
            self.check_ids(token_ids, param)
        if not budget.closing or not (budget.opening or budget.opened):
            raise RequestError(
                f"{param}: the marks that begin and end the reasoning have no tokens; name both",
                param=param,
            )
        if budget.tokens > _MOST_NUMBER:
            raise RequestError(f"{param} must fit in 64 bits", param=param)

    def _check_something_allowed(self, params: SamplingParams) -> None:
        """Check that the bans never forbid every allowed token. A bad word of several tokens
        forbids its last one only sometimes, but that token may then be the only one left."""
        forbidden = {word[-1] for word in params.bad_words_token_ids}
        if params.min_tokens:
            forbidden.update(params.stop_token_ids)
            forbidden.update(() if params.ignore_eos else self._model.eos_token_ids)
        allowed = params.allowed_token_ids
        if allowed is None:
            nothing_is_left = len(forbidden) >= self._size
        else:
            nothing_is_left = forbidden.issuperset(allowed)
        if not nothing_is_left:
            return
        raise RequestError(
            "bad_words, or min_tokens and what would end the answer, can forbid every token that "
            "is allowed; allow another token",
            param="bad_words" if allowed is None else "allowed_token_ids",
        )


@dataclass(frozen=True, slots=True)
class _Bound:
    """Bound a field of a request: the check of its value, and the requirement in words."""

    name: str
    words: str
    holds: Callable[[Request], bool]


_BOUNDS = (
    _Bound(
        "priority",
        f"between {-MAX_PRIORITY} and {MAX_PRIORITY}",
        lambda request: -MAX_PRIORITY <= request.priority <= MAX_PRIORITY,
    ),
    _Bound(
        "arrive_time",
        "a finite number of seconds",
        lambda request: math.isfinite(request.arrive_time),
    ),
    _Bound(
        "deadline_seconds",
        "a finite number of seconds",
        lambda request: math.isfinite(request.deadline_seconds or 0.0),
    ),
    _Bound(
        "cache_salt",
        f"at most {MAX_SALT_CHARS} characters",
        lambda request: len(request.cache_salt) <= MAX_SALT_CHARS,
    ),
    _Bound(
        "client_id",
        f"at most {MAX_CLIENT_CHARS} printable characters",
        lambda request: (
            len(request.client_id) <= MAX_CLIENT_CHARS and request.client_id.isprintable()
        ),
    ),
    _Bound(
        "lora",
        f"a name of 1 to {MAX_LORA_NAME_CHARS} characters with a number from 1 on",
        lambda request: (
            request.lora is None
            or (
                0 < len(request.lora.lora_name) <= MAX_LORA_NAME_CHARS
                and 0 < request.lora.lora_int_id <= _MOST_NUMBER
            )
        ),
    ),
    _Bound(
        "num_losses",
        "a small number that is not negative",
        lambda request: 0 <= request.num_losses <= _MOST_NUMBER,
    ),
)
