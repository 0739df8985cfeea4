"""Request fields of /v1/responses and of its count of input tokens that the models do not declare.

The contents of items and tools are not listed here: each has a type, and `responses` parses it by
that.
"""

from __future__ import annotations

from atom.entrypoints.request_fields.field_row import Endpoint, harmless, refused

_ANSWER = (Endpoint.RESPONSES,)
_PROMPT = (Endpoint.RESPONSES, Endpoint.RESPONSES_INPUT_TOKENS)

RESPONSES_FIELDS = (
    *refused(
        _PROMPT,
        "truncation",
        "nothing is dropped from a conversation unsaid; send a shorter input",
        "disabled",
    ),
    *refused(_ANSWER, "background", "an answer lasts as long as its connection", False),
    *refused(_PROMPT, "conversation", "send previous_response_id, or all items"),
    *refused(_ANSWER, "prompt", "send instructions and input; no prompts are kept here"),
    *refused(_ANSWER, "context_management", "send a shorter input", []),
    *refused(_ANSWER, "max_tokens max_completion_tokens", "send max_output_tokens"),
    *refused(_ANSWER, "messages", "send input"),
    *refused(_ANSWER, "response_format", "send text.format"),
    *refused(_ANSWER, "reasoning_effort", "send reasoning.effort"),
    *refused(_ANSWER, "n", "ask several times", 1),
    *refused(_ANSWER, "moderation image", "OpenAI has them"),
    *harmless(_PROMPT, "personality", "of OpenAI's models"),
    *harmless(_ANSWER, "max_tool_calls", "bounds tools that the server runs; none does"),
    *harmless(
        _ANSWER, "client_metadata access_programs stream_options", "OpenAI's own account keeping"
    ),
    *harmless(
        _ANSWER,
        "prompt_cache_options prompt_cache_retention",
        "prompts' beginnings are cached in any case; cache_salt keeps tenants apart",
    ),
    *harmless(
        _PROMPT,
        "reasoning.generate_summary reasoning.mode reasoning.context",
        "of how OpenAI shows reasoning",
    ),
)
