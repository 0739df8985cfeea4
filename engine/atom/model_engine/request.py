"""The engine's input and output: Request in, RequestOutput out.

Torch-free values only. `Request` crosses the wire to an EngineCore; `RequestOutput` is what the
output processor hands to HTTP handlers and to the offline API, one per engine step that produced
something for the request.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from atom.errors import RequestError
from atom.model_engine.request_image import RequestImage
from atom.model_engine.transfer_legs import Leg, TicketNote
from atom.sampling_params import SamplingParams

MAX_PRIORITY = 100
MAX_SALT_CHARS = 256


class FinishReason(enum.StrEnum):
    """Name the ends of generation, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class LoRARequest(msgspec.Struct, frozen=True, array_like=True):
    """Names an adapter. lora_int_id: counted from 1, and never given to another one while the
    engine lives, though a name may be."""

    lora_name: str
    lora_int_id: int


class Request(msgspec.Struct, frozen=True):
    """Describe one sequence to generate.

    id: unique in this server's life; later messages name the request by it.
    prompt_token_ids: at least one token, all within the vocabulary, shorter than the context.
    max_total_tokens: prompt plus generated tokens at which it ends (already within the context).
    arrive_time: monotonic seconds at which the server took it.
    priority: lower is served sooner; one step is worth a second of waiting.
    cache_salt: its prompt shares cached blocks only with requests of the same salt.
    client_id: the client, for resources that clients share (engine time, compilations): at most 64
    characters, "" if unknown. The part before a slash names a group, which vouches for the rest:
    the clients of one group divide the group's share.
    lora: the adapter that computes it; None for the model alone.
    output_token_ids: tokens of the answer that another engine, or a lost rank, has generated: the
    answer continues after these tokens, which are not reported again.
    num_losses: engines or ranks that ended without notice while they computed it.
    kv_transfer: the leg of a request whose prompt and answer are computed by different engines;
    None for a whole request.
    images: of the prompt, in the order of their tokens.
    deadline_seconds: from its arrival to its first token, as its client allows; None for the
    server's own. For a server that takes the request over: engines compute late ones too.
    """

    id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    max_total_tokens: int
    arrive_time: float
    priority: int = 0
    cache_salt: str = ""
    client_id: str = ""
    lora: LoRARequest | None = None
    output_token_ids: list[int] = []
    num_losses: int = 0
    kv_transfer: Leg | None = None
    images: list[RequestImage] = []
    deadline_seconds: float | None = None


def group_of(client_id: str) -> str:
    """Return the group of a client; the client itself if it has none."""
    return client_id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Hold a token's log-probability (natural logarithm, of the model's raw logits) at its
    position. rank: 1 + how many tokens were more likely. top_logprobs: (token id, log-probability)
    of the most likely tokens there, most likely first; as many as were asked for."""

    token_id: int
    logprob: float
    rank: int
    top_logprobs: tuple[tuple[int, float], ...] = ()


class AnswerTimes(msgspec.Struct, frozen=True, gc=False):
    """Hold where the time of one request went, in seconds. waited: from its arrival to its first
    step; prompt: from there to its first token; answer: from there to its last. steps: that brought
    tokens, each one more than it accepted drafts. tokens: of the answer. others: requests that were
    open on arrival."""

    waited: float
    prompt: float
    answer: float
    steps: int
    tokens: int
    others: int


class AnswerMove(msgspec.Struct, frozen=True):
    """Name the servers between which an answer moved. ended: that computed it before; went_on: that
    continued it; tokens: of the answer so far."""

    ended: str
    went_on: str
    tokens: int


class RequestOutput(msgspec.Struct, frozen=True, gc=False):
    """Represent the output that one engine step added to one request. (A struct that the garbage
    collector ignores, because one is created per token.)

    request_id: the caller's name of the request.
    output_tokens: token ids new in this step; text: the text they completed (may be empty while a
    character is incomplete or a stop string may be forming; never part of a stop string).
    finish_detail: the exact end: eos, stop_<token id>, stop_sequence, max_tokens, grammar_complete,
    aborted, or the error's text.
    stop_reason: the stop string or the stop token id that ended it.
    error_param: the request's field at fault, if it ended in an error of the caller's.
    logprobs: one entry per output token, None if the request did not ask for them; prompt_logprobs:
    one entry per prompt token, the first None (no token precedes it); in the request's first
    output, if it asked for them.
    pooled: of a pooling model, in the last output: the prompt's vector, packed float32.
    ticket: of a prefill leg, in the last output: the pages that it left.
    """

    request_id: str
    output_tokens: list[int]
    text: str
    finished: bool
    finish_reason: FinishReason | None
    finish_detail: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    stop_reason: str | int | None = None
    error_param: str | None = None
    pooled: bytes | None = None
    ticket: TicketNote | None = None

    def refusal(self) -> RequestError | None:
        """Return the caller's error if the request ended because of its content."""
        if self.error_param is None:
            return None
        return RequestError(str(self.finish_detail), param=self.error_param)
