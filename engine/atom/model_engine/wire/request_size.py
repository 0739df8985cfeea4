"""How much a call is for the engine: bounded before anything is made of it, and never too large for
one message.

Every answer is a request of its own with its own copy of the prompt and of whatever the sampling
parameters list, so that `n`, many prompts and long lists multiply. Pure; used by AsyncLLMEngine
(the bound) and by CoreManager (the parts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from atom.errors import RequestError
from atom.model_engine.request import Request
from atom.model_engine.request_image import image_bytes
from atom.sampling_params import SamplingParams

MOST_CALL_BYTES = 128 * 2**20
MOST_PROMPT_SCORES = 2**19  # they are kept and shown together
_PART_BYTES = 20 * 2**20
_TOKEN_BYTES = 5  # at most, on the wire


def check_size(prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    """Raises `RequestError` for a call whose answers together would be too large."""
    tokens = sum(map(len, prompts))
    _check_scores(tokens, params)
    size_bytes = tokens * _TOKEN_BYTES + len(prompts) * _bytes_of(params)
    size_bytes *= params.n
    if size_bytes > MOST_CALL_BYTES:
        raise RequestError(
            f"{len(prompts) * params.n} answers, each with its prompt and sampling parameters, "
            f"make {size_bytes // 2**20} MiB for the engine, which takes {MOST_CALL_BYTES // 2**20}"
            f" MiB at once; ask for fewer answers (n) or prompts, or shorten what they list",
            param="n" if params.n > 1 else "prompt",
        )


def _check_scores(tokens: int, params: SamplingParams) -> None:
    if params.prompt_logprobs is None:
        return
    scores = tokens * params.n * (1 + params.prompt_logprobs)
    if scores > MOST_PROMPT_SCORES:
        raise RequestError(
            f"{tokens} prompt tokens, with {params.prompt_logprobs} alternatives each, for "
            f"{params.n} answers are {scores} log-probabilities; one call brings at most "
            f"{MOST_PROMPT_SCORES}: ask for fewer alternatives or answers, or send fewer prompts",
            param="prompt_logprobs",
        )


def parts_of(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Divide requests into parts that each fit a message."""
    if len(requests) == 1:
        yield list(requests)
        return
    part: list[Request] = []
    part_bytes = 0
    for request in requests:
        tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        size_bytes = tokens * _TOKEN_BYTES + _bytes_of(request.params)
        size_bytes += image_bytes(request.images)
        if part and part_bytes + size_bytes > _PART_BYTES:
            yield part
            part, part_bytes = [], 0
        part.append(request)
        part_bytes += size_bytes
    if part:
        yield part


def _bytes_of(params: SamplingParams) -> int:
    return len(msgspec.msgpack.encode(params))
