"""A request's sampling fields and the model's defaults to SamplingParams. Pure.

The order for each value: the client's, then the checkpoint's generation_config.json, then OpenAI's.
"""

from __future__ import annotations

from typing import TypeVar

from atom.config import GenerationDefaults
from atom.entrypoints.openai.protocol import GenerationRequest
from atom.sampling_params import SamplingParams

_Number = TypeVar("_Number", int, float)


def sampling_params_of(
    request: GenerationRequest, defaults: GenerationDefaults, *, max_tokens: int | None
) -> SamplingParams:
    """Raises `RequestError` naming the field that is out of range."""
    stop = [] if request.stop is None else request.stop
    return SamplingParams(
        temperature=_chosen(request.temperature, defaults.temperature, 1.0),
        top_k=_chosen(request.top_k, defaults.top_k, -1),
        top_p=_chosen(request.top_p, defaults.top_p, 1.0),
        seed=request.seed,
        max_tokens=max_tokens,
        stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
    )


def _chosen(asked: _Number | None, default: _Number | None, otherwise: _Number) -> _Number:
    if asked is not None:
        return asked
    return otherwise if default is None else default
