"""What this server does with every request field of Anthropic's Messages API. What its
`protocol.py` declares is honoured, and nothing else: a test holds the two together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict

_BOTH = (Endpoint.MESSAGES, Endpoint.COUNT_TOKENS)
_ANSWERED = (Endpoint.MESSAGES,)
_BLOCK = "messages[].content[]"


def _fields(
    texts: Mapping[str, str],
    endpoints: Sequence[Endpoint] = _BOTH,
    *,
    under: str = "",
    opaque: bool = False,
) -> tuple[FieldRow, ...]:
    return tuple(
        FieldRow(under + path, tuple(endpoints), Verdict.HONOURED, text, opaque=opaque)
        for path, text in texts.items()
    )


def _harmless(
    names: str, why: str, *, under: str = "", endpoints: Sequence[Endpoint] = _BOTH
) -> tuple[FieldRow, ...]:
    return tuple(
        FieldRow(under + name, tuple(endpoints), Verdict.HARMLESS, why, opaque=True)
        for name in names.split()
    )


def _refused(names: str, remedy: str, *nothing: Any) -> tuple[FieldRow, ...]:
    return tuple(
        FieldRow(name, _BOTH, Verdict.REFUSED, remedy, nothing=nothing) for name in names.split()
    )


_ANSWER = {
    "max_tokens": "The most tokens of the answer, cut to the room of the context.",
    "stop_sequences": "Texts that end the answer and are not part of it.",
    "stream": "The answer comes as events.",
    "temperature": "How freely tokens are drawn: 0 takes the likeliest each time.",
    "top_p": "Draw from the likeliest tokens whose odds add up to this share.",
    "top_k": "Draw from so many of the likeliest tokens.",
}
_CONVERSATION = {
    "system": "The system prompt, as text or text blocks. A first line of Claude Code's, "
    "`x-anthropic-billing-header: …`, is left out: it changes with each request.",
    "system[].type": "`text`.",
    "system[].text": "A part of the system prompt.",
    "messages": "The conversation. An answer continues a last message of the assistant's.",
    "messages[].role": "`user`, `assistant`, or `system` for later text of the system.",
    "messages[].content": "A text, or blocks.",
    "messages[].clear_at": "`next_user_message`: the system's text is left out once the user "
    "says something else.",
}
_BLOCKS = {
    ".type": "`text`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`, `tool_addition` "
    "or `tool_removal`; others are refused by name.",
    ".text": "Of a text block.",
    ".thinking": "Reasoning of the assistant's, for templates that show it again.",
    ".signature": "As it came with the reasoning; another server's is taken, too.",
    ".id": "Of a call.",
    ".name": "The tool of a call.",
    ".tool_use_id": "The call that a result belongs to.",
    ".content": "Result of a tool: a text, or blocks.",
    ".content[].type": "`text`, or `tool_reference` for a tool whose loading was deferred; words "
    "stand for images and documents.",
    ".content[].text": "A part of the tool's result.",
    ".content[].tool_name": "The tool that the model is shown from here on.",
    ".is_error": "The tool failed: the model reads its text after `Error: `.",
    ".tool": "The tool of a tool_addition or tool_removal.",
    ".tool.type": "`tool_reference` or `tool_definition`.",
    ".tool.name": "Of the tool.",
    ".tool.definition": "The tool, as one of `tools`.",
}
_TOOL = {
    ".name": "Names the tool in calls.",
    ".type": "None or `custom`; Anthropic's own tools are refused by name.",
    ".description": "Description of the tool, for the model.",
    ".strict": "Calls of the tool fit its schema.",
    ".defer_loading": "The model is not shown the tool until a tool_reference or tool_addition "
    "names it.",
}
_ASKED = {
    "tools": "Tools that the client runs.",
    "tool_choice": "Which of them an answer may or must call.",
    "tool_choice.type": "`auto`, `any`, `tool` or `none`.",
    "tool_choice.name": "The one of type `tool`.",
    "tool_choice.disable_parallel_tool_use": "An answer holds one call at most.",
    "thinking": "Whether the model reasons.",
    "thinking.type": "`enabled`, `disabled`, or as the model likes: `adaptive`, `between_tools`.",
    "thinking.budget_tokens": "The most tokens of reasoning; its end is then forced.",
    "thinking.display": "`omitted`: reasoning comes sealed in its block's signature alone.",
    "output_config": "Effort and form of the answer.",
    "output_config.effort": "How much to reason: for templates that know efforts, else a budget.",
    "output_config.format": "A form that the answer's text keeps to.",
    "output_config.format.type": "`json_schema`.",
    "output_format": "The older name of output_config.format.",
    "output_format.type": "`json_schema`.",
}
_CACHED = "every prompt's blocks are cached by themselves"
_ACCOUNT = "Anthropic's own account keeping"
_NO_TOOLS_HERE = "this server runs no tools; send tools that the client runs"
_OF_REFUSED = "of blocks that are refused by their type"
_EAGER = (
    ".eager_input_streaming .allowed_callers .input_examples",
    "the client runs every tool, and receives its arguments as they are written",
)
_SCHEMA = {"": "A JSON schema."}

MESSAGES_FIELDS: tuple[FieldRow, ...] = (
    *_fields(_ANSWER, _ANSWERED),
    *_fields(_CONVERSATION),
    *_fields(_BLOCKS, under=_BLOCK),
    *_fields({".input": "Arguments of a call."}, under=_BLOCK, opaque=True),
    *_fields(_TOOL, under="tools[]"),
    *_fields(_TOOL, under=f"{_BLOCK}.tool.definition"),
    *_fields(_SCHEMA, under="tools[].input_schema", opaque=True),
    *_fields(_SCHEMA, under=f"{_BLOCK}.tool.definition.input_schema", opaque=True),
    *_fields(_ASKED),
    *_fields(_SCHEMA, under="output_config.format.schema", opaque=True),
    *_fields(_SCHEMA, under="output_format.schema", opaque=True),
    *_harmless("cache_control", _CACHED),
    *_harmless("system[].cache_control tools[].cache_control", _CACHED),
    *_harmless(
        ".cache_control .content[].cache_control .tool.definition.cache_control",
        _CACHED,
        under=_BLOCK,
    ),
    *_harmless("system[].citations", "texts are not cited from"),
    *_harmless(".citations .content[].citations", "texts are not cited from", under=_BLOCK),
    *_harmless(
        ".source .title .context .file_id .toolset_name .caller .content[].source "
        ".content[].title .content[].context .content[].content",
        _OF_REFUSED,
        under=_BLOCK,
    ),
    *_harmless(".data", "of redacted_thinking, which only its author can read", under=_BLOCK),
    *_harmless(
        "metadata service_tier inference_geo speed user_profile_id workspace_id billing_policy "
        "fallback_credit_token betas",
        _ACCOUNT,
    ),
    *_harmless("context_management compaction", "the whole conversation is read"),
    *_harmless("fallbacks", "one model is served"),
    *_harmless("diagnostics", "usage has the tokens of the prefix cache"),
    *_harmless("output_config.task_budget", "agents keep their own budgets"),
    *_harmless("thinking.block_binding", "any signature is taken"),
    *_harmless("messages[].output_config", "the request's own counts"),
    *_harmless(*_EAGER, under="tools[]"),
    *_harmless(*_EAGER, under=f"{_BLOCK}.tool.definition"),
    *_refused("container", _NO_TOOLS_HERE),
    *_refused("mcp_servers", _NO_TOOLS_HERE, []),
    *_refused("thread", "send the whole conversation: its beginning is cached"),
)
