"""Request fields that have their effect, by endpoint. What `protocol.py` declares and nothing else:
a test holds the two together."""

from __future__ import annotations

from collections.abc import Sequence

from atom.entrypoints.request_fields.field_row import (
    CONVERSATION,
    GENERATION,
    Endpoint,
    FieldRow,
    Verdict,
)

_EVERYWHERE = tuple(Endpoint)
_CHAT = (Endpoint.CHAT,)
_COMPLETIONS = (Endpoint.COMPLETIONS,)
_TOKENIZE = (Endpoint.TOKENIZE,)


def _plain(endpoints: Sequence[Endpoint], names: str) -> tuple[FieldRow, ...]:
    return tuple(FieldRow(name, tuple(endpoints), Verdict.HONOURED) for name in names.split())


def _noted(
    endpoints: Sequence[Endpoint], path: str, note: str = "", *, opaque: bool = False
) -> FieldRow:
    return FieldRow(path, tuple(endpoints), Verdict.HONOURED, note, opaque=opaque)


HONOURED: tuple[FieldRow, ...] = (
    *_plain(_EVERYWHERE, "model"),
    *_plain(
        GENERATION,
        "n temperature top_p top_k min_p seed max_tokens max_completion_tokens n_predict "
        "min_tokens add_special_tokens truncate_prompt_tokens truncation_side return_token_ids "
        "return_tokens_as_token_ids skip_special_tokens include_stop_str_in_output no_stop_trim "
        "repetition_penalty "
        "presence_penalty frequency_penalty allowed_token_ids bad_words stop stop_token_ids "
        "ignore_eos priority cache_salt timeout_seconds timeout stream stream_options "
        "stream_options.include_usage stream_options.continuous_usage_stats "
        "logprobs prompt_logprobs",
    ),
    _noted(GENERATION, "logit_bias", opaque=True),
    *_plain(
        GENERATION,
        "response_format response_format.type response_format.json_schema response_format.grammar "
        "response_format.pattern response_format.triggers response_format.at_least_one",
    ),
    _noted(GENERATION, "response_format.schema", "beside json_object too", opaque=True),
    _noted(GENERATION, "response_format.format", "of a structural_tag", opaque=True),
    _noted(GENERATION, "response_format.structures", "of a structural_tag", opaque=True),
    *_plain(GENERATION, "grammar ebnf regex"),
    _noted(GENERATION, "json_schema", opaque=True),
    _noted(GENERATION, "structural_tag", opaque=True),
    _noted(GENERATION, "response_format.json_schema.name", "for people; not shown to the model"),
    _noted(GENERATION, "response_format.json_schema.description", "likewise"),
    _noted(GENERATION, "response_format.json_schema.schema", opaque=True),
    _noted(GENERATION, "response_format.json_schema.strict", "the schema is kept to either way"),
    *_plain(
        GENERATION,
        "structured_outputs.json_object structured_outputs.regex "
        "structured_outputs.grammar structured_outputs.choice "
        "structured_outputs.disable_any_whitespace structured_outputs.disable_fallback "
        "guided_regex guided_grammar guided_choice",
    ),
    FieldRow("structured_outputs", GENERATION, Verdict.HONOURED, closed=True),
    _noted(GENERATION, "structured_outputs.json", opaque=True),
    _noted(GENERATION, "structured_outputs.structural_tag", opaque=True),
    _noted(GENERATION, "guided_json", opaque=True),
    _noted(_CHAT, "thinking_token_budget", "tokens of reasoning; -1: no bound"),
    _noted(_CHAT, "reasoning_budget_tokens", "the same"),
    _noted(_CHAT, "thinking_budget_tokens", "the same"),
    _noted(_CHAT, "thinking_budget", "the same"),
    *_plain(CONVERSATION, "thinking thinking.type thinking.budget_tokens enable_thinking"),
    *_plain(_CHAT, "top_logprobs include_reasoning"),
    *_plain(_COMPLETIONS, "prompt echo"),
    *_plain(
        CONVERSATION,
        "messages messages[].role messages[].content messages[].content[].type "
        "messages[].content[].text messages[].name messages[].reasoning "
        "messages[].reasoning_content messages[].tool_calls messages[].tool_calls[].id "
        "messages[].tool_calls[].type messages[].tool_calls[].function "
        "messages[].tool_calls[].function.name messages[].tool_call_id "
        "tool_choice tool_choice.type tool_choice.function tool_choice.function.name "
        "tool_choice.allowed_tools tool_choice.allowed_tools.mode tool_choice.allowed_tools.tools "
        "tool_choice.allowed_tools.tools[].type tool_choice.allowed_tools.tools[].function "
        "tool_choice.allowed_tools.tools[].function.name "
        "parallel_tool_calls reasoning_effort",
    ),
    _noted(CONVERSATION, "messages[].tool_calls[].function.arguments", opaque=True),
    _noted(CONVERSATION, "tools", "go to the chat template as they are sent", opaque=True),
    _noted(CONVERSATION, "chat_template_kwargs", opaque=True),
    *_plain(CONVERSATION, "messages[].prefix add_generation_prompt continue_final_message"),
    _noted(CONVERSATION, "documents", "where the chat template reads them, else 400", opaque=True),
    _noted(GENERATION, "request_id", "the answer's id ends with it"),
    _noted(GENERATION, "rid", "SGLang's name of request_id"),
    *_plain(_TOKENIZE, "prompt add_special_tokens return_token_strs"),
    *_plain((Endpoint.DETOKENIZE,), "tokens skip_special_tokens"),
)
