"""A request's sampling fields and the model's defaults to SamplingParams. Pure.

The order for each value: the client's, then the checkpoint's generation_config.json, then OpenAI's.
"""

from __future__ import annotations

import re
from typing import TypeVar

from atom.config import GenerationDefaults
from atom.entrypoints.openai.protocol import GenerationRequest
from atom.errors import RequestError
from atom.sampling_params import SamplingParams

_Number = TypeVar("_Number", int, float)
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,18}")


def sampling_params_of(
    request: GenerationRequest,
    defaults: GenerationDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Raises `RequestError` naming the field that is out of range. logprobs, prompt_logprobs: as
    the endpoint's own fields ask for them."""
    stop = [] if request.stop is None else request.stop
    allowed = request.allowed_token_ids
    return SamplingParams(
        n=_chosen(request.n, None, 1),
        temperature=_chosen(request.temperature, defaults.temperature, 1.0),
        top_k=_chosen(request.top_k, defaults.top_k, -1),
        top_p=_chosen(request.top_p, defaults.top_p, 1.0),
        min_p=_chosen(request.min_p, defaults.min_p, 0.0),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=_chosen(request.min_tokens, None, 0),
        stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        repetition_penalty=_chosen(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=_chosen(request.presence_penalty, None, 0.0),
        frequency_penalty=_chosen(request.frequency_penalty, None, 0.0),
        logit_bias=_logit_bias(request.logit_bias or {}),
        allowed_token_ids=None if allowed is None else tuple(dict.fromkeys(allowed)),
        bad_words=tuple(request.bad_words or ()),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        include_stop_str_in_output=request.includes_stop,
        skip_special_tokens=request.hides_special_tokens,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side,
        return_prompt_token_ids=bool(request.return_token_ids),
        structured_outputs=request.structured_outputs_params(),
    )


def _logit_bias(biases: dict[str, float]) -> dict[int, float] | None:
    """Convert the keys to token ids: JSON's keys are texts. Each id has one spelling, so that none
    is named twice."""
    found = {int(token): bias for token, bias in biases.items() if _TOKEN_ID.fullmatch(token)}
    if len(found) < len(biases):
        raise RequestError(
            "logit_bias: its keys must be token ids, as texts of digits", param="logit_bias"
        )
    return found or None


def _chosen(asked: _Number | None, default: _Number | None, otherwise: _Number) -> _Number:
    if asked is not None:
        return asked
    return otherwise if default is None else default
