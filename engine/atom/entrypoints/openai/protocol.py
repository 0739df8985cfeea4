"""What clients may send: request models of the OpenAI API, with every bound on their size.

Fields are declared when they have an effect. What becomes of every other field, those of other
servers and unknown ones, is in the table of `request_fields`. Parsing only: no engine, no HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from atom.entrypoints.openai.structured import StructuredFields
from atom.entrypoints.openai.tools import MAX_TOOLS, ToolCall, ToolFields
from atom.entrypoints.openai.unread_parts import UNREAD_TYPES, words_for
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.model_engine.request import MAX_PRIORITY, MAX_SALT_CHARS
from atom.sampling_params import MAX_BAD_WORDS, MAX_LOGIT_BIASES, MAX_LOGPROBS

MAX_MESSAGES = 2048
MAX_CONTENT_PARTS = 1024
MAX_PROMPTS = 128
MAX_ANSWERS = 1024  # prompts times n
MAX_TIMEOUT_SECONDS = 24 * 3600
MAX_TEMPLATE_ARGUMENTS = 32
MAX_DOCUMENTS = 256
ID_PATTERN = r"^[A-Za-z0-9._:/+=-]{1,128}$"  # of text that may be in a header, too
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions only

_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def _whole(value: Any) -> Any:
    """Convert whole floats to integers: JSON has one kind of number, and some clients write 3 as
    3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
_Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS)]


class RequestBody(BaseModel):
    """Base of the bodies that POST routes take. endpoint: whose fields the table of
    `request_fields` has for it."""

    model_config = _STRICT
    endpoint: ClassVar[Endpoint]


class StreamOptions(BaseModel):
    model_config = _STRICT
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # with include_usage, in every event


def _kind_of_stop(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<text>"


_TextOrTexts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_kind_of_stop),
]


class GenerationRequest(StructuredFields, RequestBody):
    """Fields of both endpoints. None means the model's or the server's default."""

    model_config = _STRICT

    model: str | None = None
    n: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    seed: Whole | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None  # OpenAI's newer name
    n_predict: Annotated[Whole, Field(ge=-1)] | None = None  # llama.cpp's; -1: no bound
    min_tokens: Whole | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIASES)] | None = None
    allowed_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    bad_words: Annotated[list[str], Field(fail_fast=True, max_length=MAX_BAD_WORDS)] | None = None
    prompt_logprobs: Whole | None = None
    stop: _TextOrTexts | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None  # SGLang's name of it
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Whole | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # The answer's id ends with it, as with the header X-Request-Id; `rid` is SGLang's name.
    request_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    rid: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    # Lower is served sooner; one step is worth a second of waiting.
    priority: Annotated[Whole, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    # Only requests of the same salt share cached prompts: one per tenant hides them by time too.
    cache_salt: Annotated[str, Field(max_length=MAX_SALT_CHARS)] | None = None
    timeout_seconds: _Timeout | None = None
    timeout: _Timeout | None = None  # the same as the header X-Request-Timeout
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def compiles_grammar(self) -> bool:
        """Return whether the engine may still refuse the requested format."""
        return self.asks_for_structure

    @property
    def own_id(self) -> str | None:
        """Return the client's name of the request."""
        return self.rid if self.request_id is None else self.request_id

    @property
    def includes_stop(self) -> bool:
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    @property
    def hides_special_tokens(self) -> bool:
        return self.skip_special_tokens is not False

    def most_tokens(self, default: int | None) -> int | None:
        """Read the bound on an answer's tokens, by whichever name it is sent; None for as many as
        the context allows."""
        for asked in (self.max_completion_tokens, self.max_tokens):
            if asked is not None:
                return asked
        if self.n_predict is not None:
            return None if self.n_predict < 0 else self.n_predict
        return default

    @property
    def wants_running_usage(self) -> bool:
        options = self.stream_options
        return (
            self.wants_usage_chunk and options is not None and bool(options.continuous_usage_stats)
        )

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(BaseModel):
    """Represent a part of a message. Other types (images, audio, files) are refused, except in a
    tool's result: the server takes text."""

    model_config = _STRICT
    type: Literal["text"]
    text: str


class UnreadPart(BaseModel):
    """Represent a picture, recording or document in a tool's result, which counts as words."""

    model_config = _STRICT
    type: Annotated[str, Field(pattern=f"^({'|'.join(UNREAD_TYPES)})$")]

    @property
    def text(self) -> str:
        return words_for(self.type) or ""


def _kind_of_part(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "<text>" if words_for(kind) is None else "<unread>"


_Part = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[UnreadPart, Tag("<unread>")],
    Discriminator(_kind_of_part),
]


def _kind_of_content(value: Any) -> str:
    return "<parts>" if isinstance(value, list) else "<text>"


_Content = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[_Part], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS), Tag("<parts>")],
    Discriminator(_kind_of_content),
]


class ChatMessage(BaseModel):
    model_config = _STRICT
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _Content | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    prefix: bool | None = None  # the last message is the beginning of the answer


_Messages = Annotated[
    list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
]


class Thinking(BaseModel):
    """DeepSeek's, GLM's and Anthropic's switch. adaptive: as the model likes."""

    model_config = _STRICT
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[Whole, Field(ge=-1)] | None = None


_Budget = Annotated[Whole, Field(ge=-1)]  # tokens of reasoning; -1: no bound


class TemplateFields(ToolFields):
    """Fields that go into a chat template besides the messages."""

    model_config = _STRICT

    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)] | None
    ) = None
    reasoning_effort: str | None = None  # for templates that know it, else a budget of tokens
    thinking: Thinking | None = None
    enable_thinking: bool | None = None  # DashScope's
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] | None = None
    add_generation_prompt: bool | None = None
    # The answer continues the last message, which is not ended.
    continue_final_message: bool | None = None


class ChatCompletionRequest(GenerationRequest, TemplateFields):
    endpoint: ClassVar = Endpoint.CHAT

    messages: _Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    thinking_token_budget: _Budget | None = None  # vLLM's
    reasoning_budget_tokens: _Budget | None = None  # llama.cpp's
    thinking_budget_tokens: _Budget | None = None  # llama.cpp's, too
    thinking_budget: _Budget | None = None  # DashScope's
    include_reasoning: bool | None = None  # false: it is generated all the same, and left out

    @property
    def compiles_grammar(self) -> bool:
        return self.asks_for_structure or self.forces_call


def _kind_of_prompt(value: Any) -> str:
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<token_lists>"
    return "<tokens>" if isinstance(first, int) else "<texts>"


_Tokens = Annotated[list[int], Field(fail_fast=True)]
_Prompts = Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)
_Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], _Prompts, Tag("<texts>")]
    | Annotated[_Tokens, Tag("<tokens>")]
    | Annotated[list[_Tokens], _Prompts, Tag("<token_lists>")],
    Discriminator(_kind_of_prompt),
]


class CompletionRequest(GenerationRequest):
    """A body of POST /v1/completions. echo: the prompt before each answer; with max_tokens 0
    nothing but the prompt."""

    endpoint: ClassVar = Endpoint.COMPLETIONS

    prompt: _Prompt
    logprobs: Whole | None = None
    echo: bool | None = None


class TokenizeRequest(TemplateFields, RequestBody):
    """A body of POST /tokenize. prompt or messages. add_special_tokens: true for a prompt, false
    for messages, unless it is said. return_token_strs: the tokens' texts too."""

    endpoint: ClassVar = Endpoint.TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: _Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestBody):
    endpoint: ClassVar = Endpoint.DETOKENIZE

    model: str | None = None
    tokens: _Tokens
    skip_special_tokens: bool | None = None
