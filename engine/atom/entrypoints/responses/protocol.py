"""The request schema of /v1/responses, with every bound on its size.

Items, tools and choices among tools are plain values here, since each has a type that defines its
shape: `input_items` and `tools` read them, and name the place of an error. `request_fields` has the
effect of undeclared fields. Parsing only.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from atom.entrypoints.openai.protocol import MAX_MESSAGES, MAX_TEMPLATE_ARGUMENTS
from atom.entrypoints.openai.tools import MAX_TOOLS
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.generation_fields import SamplingFields
from atom.entrypoints.request_fields.request_body import (
    DeadlineFields,
    RequestBody,
    ServedBody,
    StrictModel,
    Whole,
)
from atom.sampling_params import MAX_LOGPROBS

PATH = "/v1/responses"

MAX_ITEMS = MAX_MESSAGES
MAX_METADATA = 16  # OpenAI's bound
ENCRYPTED_REASONING = "reasoning.encrypted_content"
TEXT_LOGPROBS = "message.output_text.logprobs"

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
_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[dict[str, Any], Tag("<tool>")],
    Discriminator(_choice_kind),
]


class TextFormat(StrictModel):
    """The form of an answer's text; a schema is kept to whether it is strict or not."""

    type: Literal["text", "json_object", "json_schema"]
    """text, json_object or json_schema."""
    name: str | None = None
    """For people; not shown to the model."""
    description: str | None = None
    """For people; not shown to the model."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema that the text keeps to."""
    strict: bool | None = None
    """The schema is kept to either way."""


class TextConfig(StrictModel):
    format: TextFormat | None = None
    """text, json_object, or json_schema with a schema."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Passed to the chat template, for templates that know it."""


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


class ReasoningConfig(StrictModel):
    """Options of the model's reasoning."""

    effort: _Effort | None = None
    """As reasoning_effort of a chat."""
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """Accepted; the answer has the reasoning itself, without a summary."""


class ConversationFields(RequestBody):
    """Fields that make the prompt. None means the model's or the server's default."""

    input: _Input | None = None
    """A text, or items by their types; images and files are refused with 400."""
    instructions: str | None = None
    """System message before everything else, of this response alone."""
    previous_response_id: str | None = None
    """Id of a stored response that this one continues; 404 if it is not stored."""
    tools: Annotated[list[_Item], Field(max_length=MAX_TOOLS)] | None = None
    """Tools that the answer may call; types that cannot run here have no effect."""
    tool_choice: _Choice | None = None
    """As tool_choice of a chat; a tool of a type that cannot run here is refused."""
    parallel_tool_calls: bool | None = None
    """Whether several calls may come in one answer; they may unless it is false."""
    reasoning: ReasoningConfig | None = None
    """How the model reasons."""
    text: TextConfig | None = None
    """The form of the text."""


class RecordFields(StrictModel):
    """Fields of the record of a response, and of the client."""

    store: bool | None = None
    """Store the response; 400 if --responses-store-mib is 0."""
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    """Is shown with the response."""
    user: str | None = None
    """Is shown with the response."""
    safety_identifier: str | None = None
    """Is shown with the response."""
    prompt_cache_key: str | None = None
    """Is shown with the response; prompts are cached in any case."""
    service_tier: str | None = None
    """Is shown with the response."""


class ResponsesRequest(
    RecordFields, SamplingFields, ConversationFields, DeadlineFields, ServedBody
):
    """A body of POST /v1/responses."""

    endpoint: ClassVar = Endpoint.RESPONSES

    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    """The most tokens of the answer, with its reasoning."""
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Number of likely tokens to report with each token of the text."""
    include: Annotated[list[_Included], Field(max_length=32)] | None = None
    """reasoning.encrypted_content or message.output_text.logprobs."""
    stream: bool | None = None
    """Send the answer as events."""
    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)] | None
    ) = None
    """Variables of the chat template."""

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
