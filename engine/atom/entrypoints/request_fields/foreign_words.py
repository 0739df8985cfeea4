"""Fields of other APIs, and words of clients' own calls, in the body of a request.

Such a field carries a wish that would be lost without a word: an SDK's extra_body that was written
as JSON, Anthropic's or Ollama's fields in a chat, a chat's fields in a response. The remedy names
the place where the wish belongs. Rows are data.
"""

from __future__ import annotations

from atom.entrypoints.request_fields.field_row import (
    GENERATION,
    POOLING,
    Endpoint,
    FieldRow,
    harmless,
    refused,
)

_ALL = tuple(Endpoint)
_CHAT = (Endpoint.CHAT,)
_COMPLETIONS = (Endpoint.COMPLETIONS,)
_RESPONSES = (Endpoint.RESPONSES,)
_MESSAGES = (Endpoint.MESSAGES,)
_OPENAI = (*GENERATION, Endpoint.RESPONSES)
_TEXTS = (*_OPENAI, Endpoint.MESSAGES)

FOREIGN_WORDS: tuple[FieldRow, ...] = (
    # Of the calls of SDKs, which merge them into the body, the headers and the address.
    *refused(
        _ALL,
        "extra_body",
        "its fields belong beside the others, as SDKs send them; move them up one level",
        {},
    ),
    *refused(_ALL, "extra_headers", "send them as headers of the HTTP request", {}),
    *refused(_ALL, "extra_query", "append them to the address of the request", {}),
    *refused(_ALL, "api_key", "send it as the header Authorization: Bearer KEY", ""),
    *refused(_ALL, "api_base base_url", "it is a setting of the client, the address of /v1"),
    *refused(_ALL, "num_retries max_retries", "it is a setting of the client", 0),
    # Of Anthropic's Messages, elsewhere.
    *refused(_CHAT, "system", "send a first message with the role system, or ask /v1/messages", ""),
    *refused(_COMPLETIONS, "system", "write it into the prompt, or ask /v1/chat/completions", ""),
    *refused(_RESPONSES, "system", "send instructions", ""),
    *refused(GENERATION, "stop_sequences", "send stop", []),
    *refused(GENERATION, "max_tokens_to_sample", "send max_tokens"),
    *refused(_CHAT, "output_config", "send response_format and reasoning_effort", {}),
    *refused(_CHAT, "mcp_servers", "call the servers yourself, and send tools", []),
    # Of Ollama.
    *refused(_CHAT, "format", 'send response_format, such as {"type": "json_object"}', ""),
    *refused(_COMPLETIONS, "format", "send structured_outputs or response_format", ""),
    *refused(_RESPONSES, "format", "send text.format", ""),
    *refused(_MESSAGES, "format", "send output_config.format", ""),
    *refused(
        _TEXTS,
        "options",
        "its fields belong beside the others; num_predict is max_tokens, and num_ctx is the "
        "server's --max-model-len",
        {},
    ),
    *refused(_CHAT, "think", 'send chat_template_kwargs, such as {"enable_thinking": false}'),
    *refused(GENERATION, "num_predict", "send max_tokens"),
    *refused(_RESPONSES, "num_predict", "send max_output_tokens"),
    *refused(_MESSAGES, "num_predict", "send max_tokens"),
    *refused(_TEXTS, "num_ctx", "start the server with --max-model-len N"),
    *harmless(_TEXTS, "keep_alive", "a model stays loaded"),
    # Of Google's Gemini.
    *refused(_CHAT, "contents", "send messages, each with a role and content"),
    *refused(_COMPLETIONS, "contents", "send prompt"),
    *refused(_RESPONSES, "contents", "send input"),
    *refused(_MESSAGES, "contents", "send messages, each with a role and content"),
    *refused(
        _CHAT, "systemInstruction system_instruction", "send a first message with the role system"
    ),
    *refused(_RESPONSES, "systemInstruction system_instruction", "send instructions"),
    *refused(_MESSAGES, "systemInstruction system_instruction", "send system"),
    *refused(
        _TEXTS,
        "generationConfig generation_config",
        "its fields belong beside the others, as temperature, top_p and max_tokens",
        {},
    ),
    # Of text-generation-inference.
    *refused(_CHAT, "inputs", "send messages, or ask /v1/completions with prompt"),
    *refused(_COMPLETIONS, "inputs", "send prompt"),
    *refused(_TEXTS, "parameters", "its fields belong beside the others", {}),
    *refused(GENERATION, "do_sample", "send temperature: 0 takes the likeliest token", True),
    # Of OpenAI's other endpoints.
    *refused(_CHAT, "prompt", "send messages, or ask /v1/completions", "", []),
    *refused(_CHAT, "input", "send messages, or ask /v1/responses", "", []),
    *refused(
        _CHAT, "instructions", "send a first message with the role system, or ask /v1/responses", ""
    ),
    *refused(_CHAT, "previous_response_id", "send the whole conversation, or ask /v1/responses"),
    *refused(_COMPLETIONS, "messages", "ask /v1/chat/completions", []),
    *refused(_COMPLETIONS, "input", "send prompt", "", []),
    *refused(_MESSAGES, "stop", "send stop_sequences", "", []),
    *refused(_MESSAGES, "max_completion_tokens max_output_tokens", "send max_tokens"),
    *refused(_MESSAGES, "response_format", "send output_config.format", {"type": "text"}),
    *refused(_MESSAGES, "input prompt", "send messages", "", []),
    *refused(_MESSAGES, "instructions", "send system", ""),
    *refused(
        _MESSAGES,
        "presence_penalty frequency_penalty",
        "ask /v1/chat/completions, which has penalties",
        0,
        0.0,
    ),
    *refused(_MESSAGES, "n", "ask once for each answer", 1),
    *refused((Endpoint.EMBEDDINGS,), "prompt texts inputs inputText content", "send input"),
    *refused((Endpoint.SCORE,), "text_pair", "send text_1 and text_2"),
    *refused((Endpoint.RERANK,), "texts passages", "send documents", []),
    *refused(POOLING, "model_name modelId", "send model"),
)
