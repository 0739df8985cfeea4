"""The request schema of Anthropic's Messages API, with every bound on sizes.

Fields are declared when they have an effect; the table of `request_fields` states the fate of all
others. Blocks of a kind that this server cannot take are refused here, by name. Parsing only:
conversation.py converts the conversation.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from atom.entrypoints.openai.protocol import (
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    RequestBody,
    Whole,
)
from atom.entrypoints.openai.unread_parts import UNREAD_TYPES
from atom.entrypoints.request_fields.field_row import Endpoint

MAX_TOOLS = 1024  # agents declare hundreds, of which most are deferred
_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
_TEXT_ONLY = "this server takes text only; send text"
_NO_SERVER_TOOLS = "this server runs no tools; leave the block out, or send its text"
_REMEDIES = {"image": _TEXT_ONLY, "document": _TEXT_ONLY, "container_upload": _TEXT_ONLY}


def _one_of(*known: str) -> AfterValidator:
    """Build the check of a block's type."""

    def check(kind: str) -> str:
        if kind not in known:
            raise PydanticCustomError(
                "block_type",
                "{kind} blocks are not taken here ({known} are): {remedy}",
                {
                    "kind": repr(kind[:64]),
                    "known": ", ".join(known),
                    "remedy": _REMEDIES.get(kind, _NO_SERVER_TOOLS),
                },
            )
        return kind

    return AfterValidator(check)


def _kind_of_content(value: Any) -> str:
    return "<blocks>" if isinstance(value, list) else "<text>"


class SystemBlock(BaseModel):
    """Text of the system prompt."""

    model_config = _STRICT
    type: Annotated[str, _one_of("text")]
    text: str


class ResultBlock(BaseModel):
    """Represent a part of a tool's result; pictures and documents count as words. tool_name: of a
    tool_reference, which shows the model a tool whose loading was deferred."""

    model_config = _STRICT
    type: Annotated[str, _one_of("text", "tool_reference", *UNREAD_TYPES)]
    text: str | None = None
    tool_name: str | None = None


class ToolDefinition(BaseModel):
    """A tool that the client runs. defer_loading: the model is not shown it until a tool_reference
    or tool_addition names it."""

    model_config = _STRICT
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChange(BaseModel):
    """The tool that a tool_addition or tool_removal is about: by name, or a definition."""

    model_config = _STRICT
    type: Literal["tool_reference", "tool_definition"]
    name: str | None = None
    definition: ToolDefinition | None = None


_Result = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[
        list[ResultBlock], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS), Tag("<blocks>")
    ],
    Discriminator(_kind_of_content),
]


class ContentBlock(BaseModel):
    """A block of a message; `type` says which of the other fields it has."""

    model_config = _STRICT
    type: Annotated[
        str,
        _one_of(
            "text", "thinking", "redacted_thinking", "tool_use", "tool_result",
            "tool_addition", "tool_removal",
        ),
    ]  # fmt: skip
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: _Result | None = None
    is_error: bool | None = None
    tool: ToolChange | None = None


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


class InputMessage(BaseModel):
    """Represent one turn. clear_at: for system messages, whether the message is left out once the
    user has sent another one."""

    model_config = _STRICT
    role: Literal["user", "assistant", "system"]
    content: _Content
    clear_at: Literal["next_user_message", "never"] | None = None


class MessagesToolChoice(BaseModel):
    """Chooses the tools that an answer may or must call. name: of the one of type tool."""

    model_config = _STRICT
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesThinking(BaseModel):
    """Configure whether and how long the model reasons. display: whether its reasoning is shown, or
    only sealed in the block's signature."""

    model_config = _STRICT
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Whole, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(BaseModel):
    """A JSON schema that the answer's text keeps to."""

    model_config = _STRICT
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """Configure an answer's effort and form."""

    model_config = _STRICT
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(RequestBody):
    """A body of POST /v1/messages/count_tokens: a conversation."""

    endpoint: ClassVar = Endpoint.COUNT_TOKENS

    model: str
    messages: Annotated[
        list[InputMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
    ]
    system: _System | None = None
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = (
        None
    )
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of output_config.format


class MessagesRequest(CountTokensRequest):
    """A body of POST /v1/messages."""

    endpoint: ClassVar = Endpoint.MESSAGES
    # What routes that generate ask of every body.
    own_id: ClassVar[str | None] = None
    timeout_seconds: ClassVar[float | None] = None
    timeout: ClassVar[float | None] = None
    wants_usage_chunk: ClassVar[bool] = False

    max_tokens: Annotated[Whole, Field(ge=1)]
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None

    @property
    def compiles_grammar(self) -> bool:
        """Return whether the engine may still refuse the requested format."""
        choice = self.tool_choice
        forced = choice is not None and choice.type in ("any", "tool")
        config = self.output_config
        formed = self.output_format or (config and config.format)
        return forced or bool(formed)
