"""Response bodies of the OpenAI API.

Plain frozen structs; UNSET fields are left out, None is null. No engine, no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from atom.entrypoints.kv_transfer.answer import ShownParams
from atom.entrypoints.openai.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs
from atom.model_engine.request import AnswerMove, AnswerTimes, RequestOutput

# What several bodies have alike.
AnswerId = Annotated[str, Meta(description="Ends with the request's id.")]
Created = Annotated[int, Meta(description="When the request came, in Unix time.")]
ServedModel = Annotated[str, Meta(description="The served model.")]
Fingerprint = Annotated[
    str | UnsetType, Meta(description="Version of the weights that the answer began with.")
]
AnswerTokenIds = Annotated[
    Sequence[int] | UnsetType,
    Meta(description="Ids of the answer's tokens, if they were asked for."),
]
PromptTokenIds = Annotated[
    Sequence[int] | UnsetType,
    Meta(description="Ids of the prompt's tokens, if they were asked for."),
]
AskedPromptLogprobs = Annotated[
    PromptLogprobs | UnsetType,
    Meta(description="One entry for each token of the prompt, if they were asked for."),
]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: Annotated[
        int, Meta(description="Prompt tokens that were in the prefix cache already.")
    ]
    image_tokens: Annotated[
        int | UnsetType, Meta(description="Prompt tokens of images, if it has any.")
    ] = UNSET


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Count the parts of an answer's tokens. reasoning_tokens: with those of the marks."""

    reasoning_tokens: Annotated[
        int, Meta(description="Tokens of reasoning, with those of its marks.")
    ]


class Usage(msgspec.Struct, frozen=True):
    """Counts the tokens of a request. completion_tokens_details: where the model's reasoning is
    known."""

    prompt_tokens: Annotated[
        int, Meta(description="Tokens of the prompt; of several prompts together.")
    ]
    completion_tokens: Annotated[int, Meta(description="Tokens generated, over all answers.")]
    total_tokens: Annotated[int, Meta(description="The sum of both.")]
    prompt_tokens_details: Annotated[
        PromptTokensDetails, Meta(description="What of the prompt was known already.")
    ]
    completion_tokens_details: Annotated[
        CompletionTokensDetails | UnsetType,
        Meta(description="There where the model's reasoning is known."),
    ] = UNSET


class Timings(msgspec.Struct, frozen=True):
    """Divide the time of an answer; of several answers to one request, of the whole request. The
    names are llama.cpp's where it has one."""

    queue_ms: Annotated[
        float, Meta(description="Milliseconds from the request's arrival to its first step.")
    ]
    prompt_ms: Annotated[
        float, Meta(description="Milliseconds from the first step to the first token.")
    ]
    predicted_ms: Annotated[
        float, Meta(description="Milliseconds from the first token to the last.")
    ]
    cache_n: Annotated[int, Meta(description="Prompt tokens that were in the prefix cache.")]
    prompt_n: Annotated[int, Meta(description="Prompt tokens that were computed.")]
    predicted_n: Annotated[int, Meta(description="Tokens generated.")]
    draft_n_accepted: Annotated[
        int, Meta(description="Generated tokens that were accepted drafts.")
    ]
    requests_before: Annotated[
        int, Meta(description="Requests that were open when this one arrived.")
    ]


AskedTimings = Annotated[
    Timings | UnsetType, Meta(description="Where the time went, if it was asked for.")
]


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that a tool call names. arguments: JSON text, as the model wrote it."""

    name: Annotated[str, Meta(description="Which of the tools is called.")]
    arguments: Annotated[str, Meta(description="JSON text, as the model wrote it.")]


class AnswerToolCall(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(description="To be named by the message that brings the result.")]
    function: Annotated[CalledFunction, Meta(description="Which function, with what.")]
    type: Annotated[Literal["function"], Meta(description="Always function.")] = "function"


class ChatAnswer(msgspec.Struct, frozen=True):
    """Represent the message of a chat answer. content: null if there are only calls or reasoning.
    refusal: always null; clients with strict types expect the field. reasoning and
    reasoning_content: equal, under both of the names that clients look for."""

    content: Annotated[
        str | None, Meta(description="The answer; null where there are only calls or reasoning.")
    ]
    role: Annotated[Literal["assistant"], Meta(description="Always assistant.")] = "assistant"
    refusal: Annotated[
        None, Meta(description="Always null; clients with strict types expect the field.")
    ] = None
    reasoning: Annotated[
        str | UnsetType, Meta(description="What the model thought before it answered.")
    ] = UNSET
    reasoning_content: Annotated[
        str | UnsetType,
        Meta(description="The same as reasoning, by the other name that clients look for."),
    ] = UNSET
    tool_calls: Annotated[
        list[AnswerToolCall] | UnsetType,
        Meta(description="Calls of tools that the model asks for."),
    ] = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """Represent one choice of a chat answer. finish_detail: this server's own word for the end;
    stop_reason: the stop string or token id, if any."""

    index: Annotated[int, Meta(description="Number of the choice, from 0.")]
    message: Annotated[ChatAnswer, Meta(description="The answer.")]
    finish_reason: Annotated[str, Meta(description="stop, length, tool_calls, or abort.")]
    finish_detail: Annotated[str, Meta(description="This server's own word for the end.")]
    stop_reason: Annotated[
        str | int | None, Meta(description="The stop text or token that ended it, if one did.")
    ]
    logprobs: Annotated[ChatLogprobs | None, Meta(description="There if they were asked for.")]
    token_ids: AnswerTokenIds = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: AnswerId
    object: Annotated[Literal["chat.completion"], Meta(description="Always chat.completion.")] = (
        "chat.completion"
    )
    created: Created
    model: ServedModel
    choices: Annotated[list[ChatChoice], Meta(description="The answers, n of them.")]
    usage: Annotated[Usage, Meta(description="What the request cost.")]
    timings: AskedTimings = UNSET
    system_fingerprint: Fingerprint = UNSET
    prompt_logprobs: AskedPromptLogprobs = UNSET
    prompt_token_ids: PromptTokenIds = UNSET
    kv_transfer_params: ShownParams = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The first of a call has its id, type and name, and arguments that are empty yet."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    """Represent the part of a message that one event adds. reasoning, reasoning_content: as in
    `ChatAnswer`."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    finish_detail: str | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Represent one event of a streamed chat answer. usage: absent unless asked for; then null in
    every chunk but the last. moves: beside timings, of an answer that other servers continued."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    moves: Sequence[AnswerMove] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    index: Annotated[
        int, Meta(description="Number of the choice, from 0: those of the first prompt come first.")
    ]
    text: Annotated[str, Meta(description="What was generated.")]
    finish_reason: Annotated[
        str | None, Meta(description="stop, length or abort; null in a stream before the end.")
    ] = None
    logprobs: Annotated[TextLogprobs | None, Meta(description="There if they were asked for.")] = (
        None
    )
    finish_detail: Annotated[
        str | UnsetType, Meta(description="This server's own word for the end.")
    ] = UNSET
    stop_reason: Annotated[
        str | int | UnsetType | None,
        Meta(description="The stop text or token that ended it, if one did."),
    ] = UNSET
    prompt_logprobs: AskedPromptLogprobs = UNSET
    token_ids: AnswerTokenIds = UNSET
    prompt_token_ids: PromptTokenIds = UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer and every chunk of a stream alike."""

    id: AnswerId
    object: Annotated[Literal["text_completion"], Meta(description="Always text_completion.")] = (
        "text_completion"
    )
    created: Created
    model: ServedModel
    choices: Annotated[list[TextChoice], Meta(description="The answers, n to each prompt.")]
    system_fingerprint: Fingerprint = UNSET
    usage: Annotated[Usage | UnsetType | None, Meta(description="What the request cost.")] = UNSET
    timings: AskedTimings = UNSET
    kv_transfer_params: ShownParams = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(description="The name by which requests name the model.")]
    object: Annotated[Literal["model"], Meta(description="Always model.")] = "model"
    created: Annotated[int, Meta(description="When the server started, in Unix time.")]
    owned_by: Annotated[str, Meta(description="Always atom.")] = "atom"
    max_model_len: Annotated[
        int, Meta(description="The most tokens of a prompt and its answer together.")
    ]
    vocab_size: Annotated[int, Meta(description="How many tokens the model knows.")]
    supported_endpoints: Annotated[
        list[str],
        Meta(description="The paths of the endpoints that the model answers, the usual one first."),
    ]
    input_modalities: Annotated[
        list[str],
        Meta(description="What requests may hold: text, and image if the model reads it."),
    ]
    weight_version: Annotated[
        str | UnsetType,
        Meta(description="Of the model's weights, as answers name it in system_fingerprint."),
    ] = UNSET
    notice: Annotated[
        str | UnsetType,
        Meta(description="A restriction that users of the model should know, if it has one."),
    ] = UNSET
    root: Annotated[
        str | UnsetType, Meta(description="Of an adapter: the folder or hub id that it is from.")
    ] = UNSET
    parent: Annotated[
        str | UnsetType, Meta(description="Of an adapter: the model that it adds to.")
    ] = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Annotated[Literal["list"], Meta(description="Always list.")] = "list"
    data: Annotated[
        list[ModelCard], Meta(description="One card for each name of the served model.")
    ]


class Tokens(msgspec.Struct, frozen=True):
    """The answer of /tokenize."""

    count: Annotated[int, Meta(description="How many tokens there are.")]
    max_model_len: Annotated[
        int, Meta(description="The most that a prompt and its answer may have together.")
    ]
    tokens: Annotated[list[int], Meta(description="Their ids.")]
    token_strs: Annotated[
        list[str] | UnsetType, Meta(description="Their texts, if they were asked for.")
    ] = UNSET


class Text(msgspec.Struct, frozen=True):
    """The answer of /detokenize."""

    prompt: Annotated[str, Meta(description="The text of the tokens.")]


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /tokenizer_info, in the words of a tokenizer_config.json."""

    tokenizer_class: Annotated[
        str | None, Meta(description="Its class in transformers, if the model's files name it.")
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="The Jinja text that makes a prompt of messages.")
    ] = None
    bos_token: Annotated[str | None, Meta(description="Text of the token at the beginning.")] = None
    eos_token: Annotated[str | None, Meta(description="Text of the token at the end.")] = None
    pad_token: Annotated[str | None, Meta(description="Text of the padding token.")] = None
    unk_token: Annotated[str | None, Meta(description="Text of the unknown token.")] = None
    sep_token: Annotated[str | None, Meta(description="Text of the separator.")] = None
    cls_token: Annotated[str | None, Meta(description="Text of the class token.")] = None
    vocab_size: Annotated[int, Meta(description="How many tokens there are, added ones too.")]
    model_max_length: Annotated[
        int, Meta(description="The most that a prompt and its answer may have together.")
    ]


class Traces(msgspec.Struct, frozen=True):
    """The answer of /stop_profile: where each rank's trace was written."""

    traces: Annotated[list[str], Meta(description="Paths on the server, one for each rank.")]


class Health(msgspec.Struct, frozen=True):
    """The answer of the probes."""

    status: Annotated[str, Meta(description="ok, starting, draining, stalled or dead.")]
    reason: Annotated[str | UnsetType, Meta(description="Why not ok.")] = UNSET
    progress: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="Of /health while it starts: phase, fraction of it, bytes and seconds."),
    ] = UNSET


class Load(msgspec.Struct, frozen=True):
    """The answer of /load."""

    server_load: Annotated[int, Meta(description="Requests that are open.")]
    requests_running: Annotated[int, Meta(description="Requests that generate.")]
    requests_waiting: Annotated[int, Meta(description="Requests that wait for room.")]


class Version(msgspec.Struct, frozen=True):
    """The answer of /version."""

    version: Annotated[str, Meta(description="Of this server.")]


class Sleeping(msgspec.Struct, frozen=True):
    """GET /is_sleeping."""

    is_sleeping: Annotated[bool, Meta(description="Whether the device's memory is given back.")]


class Empty(msgspec.Struct, frozen=True):
    """The empty answer {}: the request was carried out."""


def timings_of(usage: Usage, each: Sequence[AnswerTimes]) -> Timings | UnsetType:
    """Divide the time of a request with these answers; UNSET if no answer has a token."""
    if not each:
        return UNSET
    waited = min(times.waited for times in each)
    first = min(times.waited + times.prompt for times in each)
    end = max(times.waited + times.prompt + times.answer for times in each)
    cached = usage.prompt_tokens_details.cached_tokens
    return Timings(
        queue_ms=_milliseconds(waited),
        prompt_ms=_milliseconds(first - waited),
        predicted_ms=_milliseconds(end - first),
        cache_n=cached,
        prompt_n=usage.prompt_tokens - cached,
        predicted_n=usage.completion_tokens,
        draft_n_accepted=sum(times.tokens - times.steps for times in each),
        requests_before=min(times.others for times in each),
    )


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)


def usage_of(
    lasts: Sequence[RequestOutput],
    n: int,
    *,
    prompt_only: bool = False,
    reasoning_tokens: int | None = None,
    image_tokens: int = 0,
) -> Usage:
    """Sum the usage over the last outputs of a response's choices, `n` per prompt: a prompt counts
    once. prompt_only: the generated tokens were not requested. image_tokens: of the prompts."""
    prompt = sum(output.num_prompt_tokens for output in lasts[::n])
    cached = sum(output.num_cached_tokens for output in lasts[::n])
    completion = 0 if prompt_only else sum(output.num_output_tokens for output in lasts)
    details = UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens)
    of_prompt = PromptTokensDetails(cached, image_tokens or UNSET)
    return Usage(prompt, completion, prompt + completion, of_prompt, details)
