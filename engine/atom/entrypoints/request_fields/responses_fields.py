"""Request fields of /v1/responses and of its count of input tokens.

The contents of items and tools are not listed here: each has a type, and `responses` parses it by
that.
"""

from __future__ import annotations

from collections.abc import Sequence

from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict

_ANSWER = (Endpoint.RESPONSES,)
_PROMPT = (Endpoint.RESPONSES, Endpoint.RESPONSES_INPUT_TOKENS)


def _rows(
    endpoints: Sequence[Endpoint],
    verdict: Verdict,
    names: str,
    note: str = "",
    *nothing: object,
    opaque: bool = False,
) -> tuple[FieldRow, ...]:
    return tuple(
        FieldRow(name, tuple(endpoints), verdict, note, nothing, opaque=opaque)
        for name in names.split()
    )


_HONOURED, _REFUSED, _HARMLESS = Verdict.HONOURED, Verdict.REFUSED, Verdict.HARMLESS

RESPONSES_FIELDS: tuple[FieldRow, ...] = (
    *_rows(
        _PROMPT,
        _HONOURED,
        "instructions",
        "What a system message would say, before everything else. Of this response alone.",
    ),
    *_rows(
        _PROMPT,
        _HONOURED,
        "parallel_tool_calls",
        "Whether several calls may come in one answer; they may unless it is false.",
    ),
    *_rows(_PROMPT, _HONOURED, "reasoning", "How the model reasons."),
    *_rows(_PROMPT, _HONOURED, "reasoning.effort", "As reasoning_effort of a chat."),
    *_rows(_PROMPT, _HONOURED, "text", "The form of the text."),
    *_rows(_PROMPT, _HONOURED, "text.format", "text, json_object, or json_schema with a schema."),
    *_rows(_PROMPT, _HONOURED, "text.format.type", "text, json_object or json_schema."),
    *_rows(_PROMPT, _HONOURED, "text.format.name", "For people; not shown to the model."),
    *_rows(_PROMPT, _HONOURED, "text.format.description", "For people; not shown to the model."),
    *_rows(_PROMPT, _HONOURED, "text.format.strict", "The schema is kept to either way."),
    *_rows(_PROMPT, _HONOURED, "previous_response_id", "of a response that is stored, else 404"),
    *_rows(_PROMPT, _HONOURED, "text.verbosity", "goes to the chat template"),
    *_rows(
        _PROMPT, _HONOURED, "text.format.schema", "JSON schema that the text keeps to.", opaque=True
    ),
    *_rows(_PROMPT, _HONOURED, "input", "items by their types; images and files: 400", opaque=True),
    *_rows(_PROMPT, _HONOURED, "tools", "types that cannot run here are passed over", opaque=True),
    *_rows(_PROMPT, _HONOURED, "tool_choice", "refused for a tool of such a type", opaque=True),
    *_rows(_PROMPT, _HONOURED, "reasoning.summary", "reasoning is shown itself, not summed up"),
    *_rows(
        _PROMPT,
        _REFUSED,
        "truncation",
        "nothing is dropped from a conversation unsaid; send a shorter input",
        "disabled",
    ),
    *_rows(
        _ANSWER, _HONOURED, "temperature", "0 takes the likeliest token; more makes answers vary."
    ),
    *_rows(
        _ANSWER,
        _HONOURED,
        "top_p",
        "Draws among the likeliest tokens that have this share together.",
    ),
    *_rows(_ANSWER, _HONOURED, "top_k", "Draws among so many of the likeliest tokens; -1: all."),
    *_rows(
        _ANSWER,
        _HONOURED,
        "min_p",
        "Draws among tokens with this share of the likeliest one's probability.",
    ),
    *_rows(_ANSWER, _HONOURED, "seed", "The same seed draws the same tokens."),
    *_rows(_ANSWER, _HONOURED, "stop", "A text, or several, at which the answer ends."),
    *_rows(_ANSWER, _HONOURED, "ignore_eos", "The answer goes on behind the model's own end."),
    *_rows(_ANSWER, _HONOURED, "presence_penalty", "Lowers tokens that the answer has already."),
    *_rows(
        _ANSWER, _HONOURED, "frequency_penalty", "Lowers tokens by how often the answer has them."
    ),
    *_rows(_ANSWER, _HONOURED, "repetition_penalty", "Lowers tokens of prompt and answer."),
    *_rows(
        _ANSWER,
        _HONOURED,
        "priority",
        "Lower is served sooner; a step is worth a second of waiting.",
    ),
    *_rows(_ANSWER, _HONOURED, "cache_salt", "Only requests of one salt share cached prompts."),
    *_rows(
        _ANSWER, _HONOURED, "max_output_tokens", "Most tokens of the answer, its reasoning with it."
    ),
    *_rows(
        _ANSWER, _HONOURED, "top_logprobs", "Likely tokens that are told at each place of the text."
    ),
    *_rows(
        _ANSWER,
        _HONOURED,
        "include",
        "reasoning.encrypted_content or message.output_text.logprobs.",
    ),
    *_rows(_ANSWER, _HONOURED, "stream", "Sends the answer as events."),
    *_rows(_ANSWER, _HONOURED, "request_id", "The answer's id ends with it."),
    *_rows(_ANSWER, _HONOURED, "timeout_seconds", "Time that the answer may take."),
    *_rows(_ANSWER, _HONOURED, "timeout", "The same."),
    *_rows(_ANSWER, _HONOURED, "user", "Is shown with the response."),
    *_rows(_ANSWER, _HONOURED, "safety_identifier", "Is shown with the response."),
    *_rows(
        _ANSWER,
        _HONOURED,
        "prompt_cache_key",
        "Is shown with the response; prompts are cached in any case.",
    ),
    *_rows(_ANSWER, _HONOURED, "service_tier", "Is shown with the response."),
    *_rows(_ANSWER, _HONOURED, "store", "400 where --responses-store-mib is 0"),
    *_rows(_ANSWER, _HONOURED, "metadata", "is shown with the response", opaque=True),
    *_rows(
        _ANSWER,
        _HONOURED,
        "logit_bias",
        "Numbers that are added to tokens' logits, by token id.",
        opaque=True,
    ),
    *_rows(
        _ANSWER, _HONOURED, "chat_template_kwargs", "Variables of the chat template.", opaque=True
    ),
    *_rows(_ANSWER, _REFUSED, "background", "an answer lasts as long as its connection", False),
    *_rows(_PROMPT, _REFUSED, "conversation", "send previous_response_id, or all items"),
    *_rows(_ANSWER, _REFUSED, "prompt", "send instructions and input; no prompts are kept here"),
    *_rows(_ANSWER, _REFUSED, "context_management", "send a shorter input", []),
    *_rows(_ANSWER, _REFUSED, "max_tokens max_completion_tokens", "send max_output_tokens"),
    *_rows(_ANSWER, _REFUSED, "messages", "send input"),
    *_rows(_ANSWER, _REFUSED, "response_format", "send text.format"),
    *_rows(_ANSWER, _REFUSED, "reasoning_effort", "send reasoning.effort"),
    *_rows(_ANSWER, _REFUSED, "n", "ask several times", 1),
    *_rows(_ANSWER, _REFUSED, "moderation image", "OpenAI has them"),
    *_rows(_PROMPT, _HARMLESS, "personality", "of OpenAI's models"),
    *_rows(_ANSWER, _HARMLESS, "max_tool_calls", "bounds tools that the server runs; none does"),
    *_rows(
        _ANSWER,
        _HARMLESS,
        "client_metadata access_programs stream_options",
        "OpenAI's own account keeping",
        opaque=True,
    ),
    *_rows(
        _ANSWER,
        _HARMLESS,
        "prompt_cache_options prompt_cache_retention",
        "prompts' beginnings are cached in any case; cache_salt keeps tenants apart",
        opaque=True,
    ),
    *_rows(
        _PROMPT,
        _HARMLESS,
        "reasoning.generate_summary reasoning.mode reasoning.context",
        "of how OpenAI shows reasoning",
    ),
)
