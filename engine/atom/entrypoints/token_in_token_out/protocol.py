"""Bodies and answers of token-in token-out, with vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from pydantic import Field

from atom.entrypoints.kv_transfer.answer import ShownParams
from atom.entrypoints.openai.body import parse_body
from atom.entrypoints.openai.logprobs import TextLogprobs
from atom.entrypoints.openai.protocol import CompletionRequest, GenerationRequest
from atom.entrypoints.openai.responses import Usage
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.generation_fields import StreamFields, TransferFields
from atom.entrypoints.request_fields.request_body import DeadlineFields, ServedBody

MAX_PARAMS = 64
# The fields of a request that affect its tokens, without those about the answer's form.
_TOLD = {
    "model", "stream", "stream_options", "request_id", "rid", "priority", "cache_salt", "timeout",
    "timeout_seconds", "return_token_ids", "return_tokens_as_token_ids", "return_timings",
    "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "logprobs",
    "top_logprobs", "kv_transfer_params", "deadline_ms",
}  # fmt: skip
PARAMS = frozenset(GenerationRequest.model_fields) - _TOLD


class GenerateRequest(StreamFields, TransferFields, DeadlineFields, ServedBody):
    """A body of POST /inference/v1/generate."""

    endpoint: ClassVar = Endpoint.GENERATE

    token_ids: Annotated[list[int], Field(fail_fast=True, min_length=1)]
    """The prompt's tokens."""
    sampling_params: Annotated[dict[str, Any], Field(max_length=MAX_PARAMS)] | None = None
    """Fields of /v1/completions by which tokens are drawn, such as max_tokens."""

    def completion(self) -> CompletionRequest:
        """Translate into a request for a completion. Raises `RequestError` for sampling parameters
        that a completion would refuse."""
        asked = {
            **(self.sampling_params or {}),
            "model": self.model,
            "prompt": self.token_ids,
            "return_token_ids": True,
            "priority": self.priority,
            "cache_salt": self.cache_salt,
        }
        request, _ = parse_body(msgspec.json.encode(asked), CompletionRequest)
        return request

    @property
    def own_id(self) -> str | None:
        return self.request_id

    @property
    def compiles_grammar(self) -> bool:
        return self.completion().asks_for_structure


class GeneratedTokens(msgspec.Struct, frozen=True):
    index: Annotated[int, Meta(description="Which answer, of several.")]
    token_ids: Annotated[list[int], Meta(description="The answer's tokens, or what is new.")]
    finish_reason: Annotated[str | None, Meta(description="Why it ended; null while it goes on.")]
    logprobs: Annotated[
        TextLogprobs | None, Meta(description="Of these tokens, where they were asked for.")
    ] = None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer and every event of a stream alike."""

    request_id: Annotated[str, Meta(description="The request's name, or one that was made.")]
    choices: Annotated[list[GeneratedTokens], Meta(description="The answers.")]
    usage: Annotated[
        Usage | UnsetType | None, Meta(description="Counted tokens; of a stream if asked for.")
    ] = UNSET
    kv_transfer_params: ShownParams = UNSET


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as a body of /inference/v1/generate."""

    request_id: Annotated[str, Meta(description="The request's name, or one that was made.")]
    model: Annotated[str, Meta(description="The model that is served.")]
    token_ids: Annotated[list[int], Meta(description="The prompt's tokens.")]
    text: Annotated[str, Meta(description="The prompt as the model reads it.")]
    sampling_params: Annotated[
        dict[str, Any], Meta(description="By which the request's tokens would be drawn.")
    ]
