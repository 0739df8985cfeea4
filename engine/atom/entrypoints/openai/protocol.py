"""What clients may send: request models of the OpenAI API, with every bound on their size.

Fields are declared when they have an effect, each with its text. `request_fields` has the effect of
every other field, those of other servers and unknown ones. Parsing only: no engine, no HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag

from atom.entrypoints.openai.structured import StructuredFields
from atom.entrypoints.openai.tools import MAX_TOOLS, ToolCall, ToolFields
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.generation_fields import (
    AnswerFields,
    SamplingFields,
    StreamFields,
    TokenFields,
    TransferFields,
)
from atom.entrypoints.request_fields.request_body import (
    ID_PATTERN,
    DeadlineFields,
    RequestBody,
    ServedBody,
    StrictModel,
    Whole,
)
from atom.entrypoints.request_fields.unread_parts import UNREAD_TYPES, words_for
from atom.sampling_params import MAX_LOGPROBS

MAX_MESSAGES = 2048
MAX_CONTENT_PARTS = 1024
MAX_PROMPTS = 128
MAX_ANSWERS = 1024  # prompts times n
MAX_TEMPLATE_ARGUMENTS = 32
MAX_DOCUMENTS = 256
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions only


class GenerationRequest(
    StructuredFields,
    StreamFields,
    TokenFields,
    AnswerFields,
    SamplingFields,
    TransferFields,
    DeadlineFields,
    ServedBody,
):
    """Fields of both endpoints."""

    rid: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    """SGLang's name of request_id."""

    @property
    def compiles_grammar(self) -> bool:
        """Return whether the engine may still refuse the requested format."""
        return self.asks_for_structure

    @property
    def own_id(self) -> str | None:
        """Return the client's name of the request."""
        return self.rid if self.request_id is None else self.request_id


class TextPart(StrictModel):
    """Represent a part of a message. Other types (images, audio, files) are refused, except in a
    tool's result: the server takes text."""

    type: Literal["text"]
    """text, or image_url if the model reads images. In a tool's result, words replace recordings
    and files, and pictures that the model does not read."""
    text: str
    """The text of the part."""


class UnreadPart(StrictModel):
    """Represent a picture, recording or document, which models of text alone do not read; in a
    tool's result it counts as words."""

    type: Annotated[str, Field(pattern=f"^({'|'.join(UNREAD_TYPES)})$")]
    """text, or image_url if the model reads images. In a tool's result, words replace recordings
    and files, and pictures that the model does not read."""
    image_url: Any = None
    """The image of an image_url: its URL, or an object with url and detail (auto, low, high)."""
    uuid: Any = None
    """The client's name of the image; equal images are known by their pixels in any case."""
    _place: str = PrivateAttr("")

    @property
    def place(self) -> str:
        """Return the place of a part that another API has, for errors; "" for one of a chat."""
        return self._place

    def placed_at(self, place: str) -> UnreadPart:
        """Note the place of the part in another API."""
        self._place = place
        return self

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


class ChatMessage(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks; developer counts as system."""
    content: _Content | None = None
    """Content of the message: a text, or parts of type text."""
    name: str | None = None
    """Name of the speaker, for templates that write it."""
    reasoning: str | None = None
    """The assistant's reasoning before this answer."""
    reasoning_content: str | None = None
    """The same as reasoning."""
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    """Calls that the assistant made."""
    tool_call_id: str | None = None
    """Of role tool: whose result this is."""
    prefix: bool | None = None
    """Of the last message, of role assistant: it is the beginning of the answer."""


_Messages = Annotated[
    list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
]


class Thinking(StrictModel):
    """DeepSeek's, GLM's and Anthropic's switch. adaptive: as the model likes."""

    type: Literal["enabled", "disabled", "adaptive"]
    """enabled, disabled, or adaptive: as the model likes."""
    budget_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    """The most tokens of reasoning; -1: no bound."""


_Budget = Annotated[Whole, Field(ge=-1)]  # tokens of reasoning; -1: no bound


class TemplateFields(ToolFields):
    """Fields that go into a chat template besides the messages."""

    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)] | None
    ) = None
    """More arguments for the chat template, by name."""
    reasoning_effort: str | None = None
    """For templates that know it; for others a budget of reasoning."""
    thinking: Thinking | None = None
    """DeepSeek's, GLM's and Anthropic's switch of reasoning."""
    enable_thinking: bool | None = None
    """DashScope's switch of reasoning."""
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] | None = None
    """Documents for the chat template; 400 if it does not read them."""
    add_generation_prompt: bool | None = None
    """Begin the assistant's turn after the messages; true unless it is sent."""
    continue_final_message: bool | None = None
    """Continue the last message, which is not ended."""


class ChatCompletionRequest(GenerationRequest, TemplateFields):
    endpoint: ClassVar = Endpoint.CHAT

    messages: _Messages
    """The conversation so far, oldest first; at least one message."""
    logprobs: bool | None = None
    """Return the log-probability of each token of the answer."""
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """With logprobs: those of so many of the likeliest tokens as well."""
    thinking_token_budget: _Budget | None = None
    """The most tokens of reasoning, after which the answer is forced; -1: no bound."""
    reasoning_budget_tokens: _Budget | None = None
    """llama.cpp's name of thinking_token_budget."""
    thinking_budget_tokens: _Budget | None = None
    """Another name of thinking_token_budget."""
    thinking_budget: _Budget | None = None
    """DashScope's name of thinking_token_budget."""
    include_reasoning: bool | None = None
    """False: reasoning is generated all the same, and left out of the answer."""

    @property
    def compiles_grammar(self) -> bool:
        return self.asks_for_structure or self.forces_call


def kind_of_prompt(value: Any) -> str:
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
    Discriminator(kind_of_prompt),
]


class CompletionRequest(GenerationRequest):
    """A body of POST /v1/completions."""

    endpoint: ClassVar = Endpoint.COMPLETIONS

    prompt: _Prompt
    """Text to continue, or several; or ids of tokens."""
    logprobs: Whole | None = None
    """Return each token's log-probability, and those of so many of the likeliest."""
    echo: bool | None = None
    """Put the prompt before each answer; with max_tokens 0 return the prompt alone."""


class TokenizeRequest(TemplateFields, RequestBody):
    """A body of POST /tokenize: prompt or messages."""

    endpoint: ClassVar = Endpoint.TOKENIZE

    prompt: str | None = None
    """Text to count; or send messages."""
    messages: _Messages | None = None
    """The conversation so far, oldest first; at least one message."""
    add_special_tokens: bool | None = None
    """Add the tokenizer's marks; true for a prompt, false for messages, unless it is sent."""
    return_token_strs: bool | None = None
    """Return the tokens' texts too."""


class DetokenizeRequest(RequestBody):
    endpoint: ClassVar = Endpoint.DETOKENIZE

    tokens: _Tokens
    """Ids of tokens."""
    skip_special_tokens: bool | None = None
    """Leave the model's marks out; true unless it is sent."""
