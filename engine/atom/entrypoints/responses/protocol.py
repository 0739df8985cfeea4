"""The request schema of /v1/responses, with every bound on its size.

Items, tools and choices among tools are plain values here, since each has a type that defines its
shape: `input_items` and `tools` read them, and name the place of an error. The table of
`request_fields` states the effect of undeclared fields. Parsing only.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from atom.entrypoints.openai.protocol import (
    ID_PATTERN,
    MAX_MESSAGES,
    MAX_TEMPLATE_ARGUMENTS,
    MAX_TIMEOUT_SECONDS,
    RequestBody,
)
from atom.entrypoints.openai.tools import MAX_TOOLS
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.model_engine.request import MAX_PRIORITY, MAX_SALT_CHARS
from atom.sampling_params import MAX_LOGIT_BIASES, MAX_LOGPROBS

PATH = "/v1/responses"

MAX_ITEMS = MAX_MESSAGES
MAX_METADATA = 16  # OpenAI's bound
ENCRYPTED_REASONING = "reasoning.encrypted_content"
TEXT_LOGPROBS = "message.output_text.logprobs"

_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def _whole(value: Any) -> Any:
    """Convert whole floats to integers: JSON has one kind of number, and some clients write 3 as
    3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Whole = Annotated[int, BeforeValidator(_whole)]
_Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS)]
_Item = dict[str, Any]


def _kind(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<text>"


def _choice_kind(value: Any) -> str:
    return "<word>" if isinstance(value, str) else "<tool>"


_Input = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[_Item], Field(fail_fast=True, max_length=MAX_ITEMS), Tag("<list>")],
    Discriminator(_kind),
]
_Texts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_kind),
]
_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[dict[str, Any], Tag("<tool>")],
    Discriminator(_choice_kind),
]


class TextFormat(BaseModel):
    """The form of an answer's text; a schema is kept to whether it is strict or not."""

    model_config = _STRICT
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(BaseModel):
    model_config = _STRICT
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # for templates that know it


# OpenAI's names. Those of tools and inputs that this server lacks add nothing.
_Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningConfig(BaseModel):
    """Options of the model's reasoning. summary: accepted; open models show their reasoning itself,
    and no summary of it."""

    model_config = _STRICT
    effort: _Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None


class SamplingFields(RequestBody):
    """Fields that a chat has by the same names, among them other servers'. They are handed on."""

    model_config = _STRICT

    temperature: float | None = None
    top_p: float | None = None
    top_k: _Whole | None = None
    min_p: float | None = None
    seed: _Whole | None = None
    stop: _Texts | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIASES)] | None = None
    priority: Annotated[_Whole, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_SALT_CHARS)] | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)] | None
    ) = None


class ConversationFields(RequestBody):
    """Fields that make the prompt. None means the model's or the server's default."""

    model_config = _STRICT

    model: str | None = None
    input: _Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[_Item], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: _Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None


class ResponsesRequest(SamplingFields, ConversationFields):
    """A body of POST /v1/responses."""

    endpoint: ClassVar = Endpoint.RESPONSES

    max_output_tokens: Annotated[_Whole, Field(ge=1)] | None = None
    top_logprobs: Annotated[_Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[_Included], Field(max_length=32)] | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    request_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    timeout_seconds: _Timeout | None = None
    timeout: _Timeout | None = None

    def includes(self, what: str) -> bool:
        return what in (self.include or ())

    @property
    def most_logprobs(self) -> int | None:
        """Return how many of the likeliest tokens to report with each token of the text; None for
        none."""
        if self.top_logprobs or self.includes(TEXT_LOGPROBS):
            return self.top_logprobs or 0
        return None


class InputTokensRequest(ConversationFields):
    """A body of POST /v1/responses/input_tokens."""

    endpoint: ClassVar = Endpoint.RESPONSES_INPUT_TOKENS
