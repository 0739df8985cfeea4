"""The request schema of Anthropic's Messages API, with every bound on sizes.

Fields are declared when they have an effect, each with its text; `request_fields` has the effect of
all others. Blocks of a kind that this server cannot take are refused here, by name. Parsing only:
conversation.py converts the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from atom.entrypoints.openai.protocol import MAX_CONTENT_PARTS, MAX_MESSAGES
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.request_body import RequestBody, StrictModel, Whole
from atom.entrypoints.request_fields.unread_parts import UNREAD_TYPES

MAX_TOOLS = 1024  # agents declare hundreds, of which most are deferred
_TEXT_ONLY = "this server takes text only; send text"
_NO_SERVER_TOOLS = "this server runs no tools; leave the block out, or send its text"
_REMEDIES = {"image": _TEXT_ONLY, "document": _TEXT_ONLY, "container_upload": _TEXT_ONLY}
IMAGE = "image"
_KNOWN_BLOCKS = (
    "text", "thinking", "redacted_thinking", "tool_use", "tool_result",
    "tool_addition", "tool_removal",
)  # fmt: skip


def not_taken(kind: str, known: Sequence[str] = _KNOWN_BLOCKS) -> str:
    """Return why a block of this kind is refused."""
    remedy = _REMEDIES.get(kind, _NO_SERVER_TOOLS)
    return f"{kind[:64]!r} blocks are not taken here ({', '.join(known)} are): {remedy}"


def _one_of(*known: str, also: Sequence[str] = ()) -> AfterValidator:
    """Build the check of a block's type. also: kinds that the conversation's reader may refuse."""

    def check(kind: str) -> str:
        if kind not in (*known, *also):
            raise PydanticCustomError("block_type", "{why}", {"why": not_taken(kind, known)})
        return kind

    return AfterValidator(check)


def _kind_of_content(value: Any) -> str:
    return "<blocks>" if isinstance(value, list) else "<text>"


class SystemBlock(StrictModel):
    """Text of the system prompt."""

    type: Annotated[str, _one_of("text")]
    """`text`."""
    text: str
    """A part of the system prompt."""


class ResultBlock(StrictModel):
    """Represent a part of a tool's result; documents count as words, and so do images that the
    model does not read."""

    type: Annotated[str, _one_of("text", "tool_reference", *UNREAD_TYPES)]
    """`text`, `image`, or `tool_reference` for a tool whose loading was deferred; words stand for
    documents, and for images that the model does not read."""
    text: str | None = None
    """A part of the tool's result."""
    source: Any = None
    """The image: `base64` with media_type and data, or `url` with url."""
    tool_name: str | None = None
    """The tool that the model is shown from here on."""


class ToolDefinition(StrictModel):
    """A tool that the client runs."""

    name: str
    """Names the tool in calls."""
    type: str | None = None
    """None or `custom`; Anthropic's own tools are refused by name."""
    description: str | None = None
    """Description of the tool, for the model."""
    input_schema: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None
    """Calls of the tool fit its schema."""
    defer_loading: bool | None = None
    """The model is not shown the tool until a tool_reference or tool_addition names it."""


class ToolChange(StrictModel):
    """The tool that a tool_addition or tool_removal is about: by name, or a definition."""

    type: Literal["tool_reference", "tool_definition"]
    """`tool_reference` or `tool_definition`."""
    name: str | None = None
    """The name of the tool."""
    definition: ToolDefinition | None = None
    """The tool, as one of `tools`."""


_Result = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[
        list[ResultBlock], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS), Tag("<blocks>")
    ],
    Discriminator(_kind_of_content),
]


class ContentBlock(StrictModel):
    """A block of a message; `type` says which of the other fields it has."""

    type: Annotated[
        str,
        _one_of(*_KNOWN_BLOCKS, also=(IMAGE,)),
    ]
    """`text`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`, `tool_addition`,
    `tool_removal`, or `image` if the model reads images; others are refused by name."""
    text: str | None = None
    """The text of a text block."""
    source: Any = None
    """The image: `base64` with media_type and data, or `url` with url."""
    thinking: str | None = None
    """Reasoning of the assistant's, for templates that show it again."""
    signature: str | None = None
    """The signature that came with the reasoning; another server's is accepted."""
    id: str | None = None
    """The id of a call."""
    name: str | None = None
    """The tool of a call."""
    input: dict[str, Any] | None = None
    """Arguments of a call."""
    tool_use_id: str | None = None
    """The call that a result belongs to."""
    content: _Result | None = None
    """Result of a tool: a text, or blocks."""
    is_error: bool | None = None
    """The tool failed: the model reads its text after `Error: `."""
    tool: ToolChange | None = None
    """The tool of a tool_addition or tool_removal."""


_Content = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[
        list[ContentBlock], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS), Tag("<blocks>")
    ],
    Discriminator(_kind_of_content),
]
_System = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[
        list[SystemBlock], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS), Tag("<blocks>")
    ],
    Discriminator(_kind_of_content),
]


class InputMessage(StrictModel):
    """Represent one turn."""

    role: Literal["user", "assistant", "system"]
    """`user`, `assistant`, or `system` for later text of the system."""
    content: _Content
    """A text, or blocks."""
    clear_at: Literal["next_user_message", "never"] | None = None
    """`next_user_message`: the system's text is left out once the user says something else."""


class MessagesToolChoice(StrictModel):
    """Chooses the tools that an answer may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    """`auto`, `any`, `tool` or `none`."""
    name: str | None = None
    """The one of type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """An answer holds one call at most."""


class MessagesThinking(StrictModel):
    """Configure whether and how long the model reasons."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    """`enabled`, `disabled`, or as the model likes: `adaptive`, `between_tools`."""
    budget_tokens: Annotated[Whole, Field(ge=1)] | None = None
    """The most tokens of reasoning; its end is then forced."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: reasoning comes sealed in its block's signature alone."""


class OutputFormat(StrictModel):
    """A JSON schema that the answer's text keeps to."""

    type: Literal["json_schema"]
    """`json_schema`."""
    schema_: dict[str, Any] = Field(alias="schema")
    """A JSON schema."""


class OutputConfig(StrictModel):
    """Configure an answer's effort and form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """How much to reason: for templates that know efforts, else a budget."""
    format: OutputFormat | None = None
    """A form that the answer's text keeps to."""


class CountTokensRequest(RequestBody):
    """A body of POST /v1/messages/count_tokens: a conversation."""

    endpoint: ClassVar = Endpoint.COUNT_TOKENS

    model: str
    """Name of the served model; the one that is served, unless it is sent."""
    messages: Annotated[
        list[InputMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
    ]
    """The conversation. An answer continues a last message of the assistant's."""
    system: _System | None = None
    """The system prompt, as text or text blocks. Claude Code's first line, which changes with each
    request (`x-anthropic-billing-header: …`), is left out."""
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = (
        None
    )
    """Tools that the client runs."""
    tool_choice: MessagesToolChoice | None = None
    """Choose the tools that an answer may or must call."""
    thinking: MessagesThinking | None = None
    """Whether the model reasons."""
    output_config: OutputConfig | None = None
    """Effort and form of the answer."""
    output_format: OutputFormat | None = None
    """The older name of output_config.format."""


class MessagesRequest(CountTokensRequest):
    """A body of POST /v1/messages."""

    endpoint: ClassVar = Endpoint.MESSAGES
    # What routes that generate ask of every body.
    own_id: ClassVar[str | None] = None
    timeout_seconds: ClassVar[float | None] = None
    timeout: ClassVar[float | None] = None
    deadline_ms: ClassVar[float | None] = None
    wants_usage_chunk: ClassVar[bool] = False

    max_tokens: Annotated[Whole, Field(ge=1)]
    """The most tokens of the answer, cut to the room of the context."""
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    """Texts that end the answer and are not part of it."""
    stream: bool | None = None
    """The answer comes as events."""
    temperature: float | None = None
    """How freely tokens are drawn: 0 takes the likeliest each time."""
    top_p: float | None = None
    """Draw from the likeliest tokens whose odds add up to this share."""
    top_k: Whole | None = None
    """Draw from this number of the likeliest tokens."""

    @property
    def compiles_grammar(self) -> bool:
        """Return whether the engine may still refuse the requested format."""
        choice = self.tool_choice
        forced = choice is not None and choice.type in ("any", "tool")
        config = self.output_config
        formed = self.output_format or (config and config.format)
        return forced or bool(formed)
