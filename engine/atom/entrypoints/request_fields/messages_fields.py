"""Every request field of Anthropic's Messages API that its `protocol.py` does not declare."""

from __future__ import annotations

from atom.entrypoints.request_fields.field_row import Endpoint, harmless, refused

_BOTH = (Endpoint.MESSAGES, Endpoint.COUNT_TOKENS)
_BLOCK = "messages[].content[]"
_CACHED = "every prompt's blocks are cached by themselves"
_ACCOUNT = "Anthropic's own account keeping"
_NO_TOOLS_HERE = "this server runs no tools; send tools that the client runs"
_OF_REFUSED = "of blocks that are refused by their type"
_EAGER = (
    ".eager_input_streaming .allowed_callers .input_examples",
    "the client runs every tool, and receives its arguments as they are written",
)

MESSAGES_FIELDS = (
    *harmless(_BOTH, "cache_control", _CACHED),
    *harmless(_BOTH, "system[].cache_control tools[].cache_control", _CACHED),
    *harmless(
        _BOTH,
        ".cache_control .content[].cache_control .tool.definition.cache_control",
        _CACHED,
        under=_BLOCK,
    ),
    *harmless(_BOTH, "system[].citations", "texts are not cited from"),
    *harmless(_BOTH, ".citations .content[].citations", "texts are not cited from", under=_BLOCK),
    *harmless(
        _BOTH,
        ".title .context .file_id .toolset_name .caller "
        ".content[].title .content[].context .content[].content",
        _OF_REFUSED,
        under=_BLOCK,
    ),
    *harmless(_BOTH, ".data", "of redacted_thinking, which only its author can read", under=_BLOCK),
    *harmless(
        _BOTH,
        "metadata service_tier inference_geo speed user_profile_id workspace_id billing_policy "
        "fallback_credit_token betas",
        _ACCOUNT,
    ),
    *harmless(_BOTH, "context_management compaction", "the whole conversation is read"),
    *harmless(_BOTH, "fallbacks", "one model is served"),
    *harmless(_BOTH, "diagnostics", "usage has the tokens of the prefix cache"),
    *harmless(_BOTH, "output_config.task_budget", "agents keep their own budgets"),
    *harmless(_BOTH, "thinking.block_binding", "any signature is taken"),
    *harmless(_BOTH, "messages[].output_config", "the request's own counts"),
    *harmless(_BOTH, *_EAGER, under="tools[]"),
    *harmless(_BOTH, *_EAGER, under=f"{_BLOCK}.tool.definition"),
    *refused(_BOTH, "container", _NO_TOOLS_HERE),
    *refused(_BOTH, "mcp_servers", _NO_TOOLS_HERE, []),
    *refused(_BOTH, "thread", "send the whole conversation: its beginning is cached"),
)
