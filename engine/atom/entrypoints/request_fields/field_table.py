"""Every request field of OpenAI, vLLM, SGLang and llama.cpp that the request models do not declare.

Rows are data; a field within a refused one has its verdict. The tests hold the lists of each
server's fields and compare them with this table and the models; the reference page is generated
from all three.
"""

from __future__ import annotations

from atom.entrypoints.request_fields.field_row import (
    CONVERSATION,
    GENERATION,
    POOLING,
    Endpoint,
    FieldRow,
    harmless,
    refused,
)
from atom.entrypoints.request_fields.foreign_words import FOREIGN_WORDS
from atom.entrypoints.request_fields.messages_fields import MESSAGES_FIELDS
from atom.entrypoints.request_fields.ollama_fields import OLLAMA_FIELDS
from atom.entrypoints.request_fields.responses_fields import RESPONSES_FIELDS

_CHAT = (Endpoint.CHAT,)
_COMPLETIONS = (Endpoint.COMPLETIONS,)
_TOKENIZE = (Endpoint.TOKENIZE,)
_EMBEDDINGS = (Endpoint.EMBEDDINGS,)


_TEXT_ONLY = "this server takes text only; send text"
_AS_TRAINED = "vectors and scores are as the model was trained"
_NO_LORA = "name an adapter by model; GET /v1/models lists them"
_ONE_CORE = "encoders and prompts run in one engine here"
_NO_TAPS = "only tokens, texts and log-probabilities are told"
_OWN_CODE = "code of a request is never run"
_SAMPLERS = "the samplers are temperature, top_k, top_p, min_p and the penalties"
_PENALTY = "send repetition_penalty, frequency_penalty or presence_penalty"
_TOOLS = "send tools and tool_choice"
_PARSERS = "the server's --tool-call-parser and --reasoning-parser say how answers are read"
_TEMPLATE = "start the server with --chat-template FILE; a request cannot bring a template"
_FOR_OPENAI = "OpenAI's own account keeping"

_REFUSED: tuple[FieldRow, ...] = (
    *refused(GENERATION, "best_of", "send n, and choose among the answers", 1),
    *refused(GENERATION, "suffix", "write the fill-in marks of the model into the prompt", ""),
    *refused(GENERATION, "length_penalty", "there is no beam search", 1, 1.0),
    *refused(GENERATION, "use_beam_search", "send n, and choose among the answers", False),
    *refused(GENERATION, "max_new_tokens max_length max_output_tokens", "send max_tokens"),
    *refused(GENERATION, "n_cmpl", "send n", 1),
    *refused(GENERATION, "n_probs", "send logprobs, in chats with top_logprobs", 0),
    *refused(_COMPLETIONS, "top_logprobs", "send logprobs with their number", 0),
    *refused(_CHAT, "echo", "send the prompt to /v1/completions", False),
    *refused(GENERATION, "post_sampling_probs", "log-probabilities are of the raw logits", False),
    *refused(GENERATION, "logprob_token_ids", "send logprobs, in chats with top_logprobs", []),
    *refused(GENERATION, "prompt_embeds", "send the prompt as text or token ids"),
    *refused(GENERATION, "input_ids", "send token ids as the prompt of /v1/completions"),
    *refused(GENERATION, "t_max_predict_ms t_max_prompt_ms", "send timeout, in seconds", -1, 0),
    *refused(GENERATION, "stop_regex", "send stop, or a regex that the whole answer has"),
    *refused(
        GENERATION,
        "return_tokens return_output_ids_in_sglext",
        "send return_token_ids",
        False,
    ),
    *refused(
        GENERATION, "return_prompt_token_ids return_input_ids_in_sglext", "ask /tokenize", False
    ),
    *refused(GENERATION, "return_prompt_text return_token_offsets", "ask /tokenize", False),
    *refused(
        _COMPLETIONS,
        "thinking_token_budget reasoning_budget_tokens thinking_budget_tokens thinking_budget "
        "thinking enable_thinking",
        "send a chat: a text has no reasoning that would be known from its answer",
        -1,
    ),
    *refused(
        GENERATION,
        "structured_outputs.whitespace_pattern guided_whitespace_pattern",
        "send structured_outputs.disable_any_whitespace",
    ),
    *refused(
        GENERATION,
        "structured_outputs.disable_additional_properties",
        "properties that a schema does not name are allowed by additionalProperties alone",
        False,
    ),
    *refused(GENERATION, "grammar_lazy", "a grammar holds for the whole answer", False),
    *refused(GENERATION, "grammar_type grammar_triggers preserved_tokens", _TOOLS, []),
    *refused(GENERATION, "functions", _TOOLS, []),
    *refused(GENERATION, "function_call", _TOOLS, "none", "auto"),
    *refused(GENERATION, "modalities", _TEXT_ONLY, ["text"]),
    *refused(GENERATION, "audio web_search_options moderation", "OpenAI has them"),
    *refused(GENERATION, "chat_template", _TEMPLATE),
    *refused(_TOKENIZE, "chat_template", _TEMPLATE),
    *refused(
        GENERATION,
        "media_io_kwargs mm_processor_kwargs images_config video_config max_dynamic_patch "
        "min_dynamic_patch",
        _TEXT_ONLY,
        {},
    ),
    *refused(GENERATION, "use_audio_in_video return_mm_kwargs", _TEXT_ONLY, False),
    *refused(_TOKENIZE, "media_io_kwargs mm_processor_kwargs", _TEXT_ONLY, {}),
    *refused(GENERATION, "lora lora_path", _NO_LORA, []),
    *refused(GENERATION, "ec_transfer_params", _ONE_CORE, {}),
    *refused(
        GENERATION,
        "bootstrap_host bootstrap_port bootstrap_room disagg_prefill_dp_rank routed_dp_rank "
        "data_parallel_rank",
        "the server chooses the rank",
    ),
    *refused(
        GENERATION,
        "return_weight_versions return_hidden_states return_routed_experts return_sampling_mask "
        "return_meta_info return_spec_tokens_details return_flat_raw_output_top_logprobs verbose "
        "timings_per_token return_progress",
        _NO_TAPS,
        False,
    ),
    *refused(GENERATION, "routed_experts_prompt_start routed_experts_start_len", _NO_TAPS, 0),
    *refused(GENERATION, "sampling_logprobs_mode response_fields", _NO_TAPS, []),
    *refused(GENERATION, "vllm_xargs custom_params custom_logit_processor", _OWN_CODE, {}),
    *refused(GENERATION, "session_params", "send the whole prompt: its beginning is cached", {}),
    *refused(GENERATION, "extra_key", "send cache_salt"),
    *refused(GENERATION, "watermarking watermark", "answers are not marked", False),
    *refused(GENERATION, "repetition_detection", _PENALTY),
    *refused(GENERATION, "repeat_penalty", _PENALTY, 1, 1.0),
    *refused(
        GENERATION, "dry_multiplier xtc_probability dynatemp_range mirostat", _SAMPLERS, 0, 0.0
    ),
    *refused(GENERATION, "top_n_sigma adaptive_target", _SAMPLERS, -1, -1.0),
    *refused(GENERATION, "typical_p", _SAMPLERS, 1, 1.0),
    *refused(GENERATION, "top_a min_keep", _SAMPLERS, 0, 0.0),
    *refused(GENERATION, "samplers", _SAMPLERS),
    *refused(GENERATION, "n_indent", "send a regex or a grammar", 0),
    *refused(GENERATION, "chat_format chat_parser", _PARSERS),
    *refused(GENERATION, "generation_prompt", _TEMPLATE, ""),
    *refused(GENERATION, "reasoning_format", _PARSERS, "auto", "deepseek"),
    *refused(GENERATION, "parse_tool_calls separate_reasoning stream_reasoning", _PARSERS, True),
    *refused(GENERATION, "reasoning_control", "send max_tokens", False),
    *refused(
        GENERATION,
        "reasoning_budget_start_tag reasoning_budget_end_tag reasoning_budget_end_tags "
        "reasoning_budget_message",
        _PARSERS,
        "",
    ),
    *refused(GENERATION, "task", "write the task into a message"),
    *refused(
        CONVERSATION,
        "messages[].content[].image_pil messages[].content[].image_embeds "
        "messages[].content[].audio_embeds messages[].content[].video_embeds "
        "messages[].content[].data messages[].content[].modalities",
        _TEXT_ONLY,
    ),
    *refused(
        CONVERSATION,
        "messages[].content[].thinking messages[].content[].closed",
        "send messages[].reasoning",
    ),
    *refused(CONVERSATION, "messages[].content[].refusal", "send it as content"),
    *refused(CONVERSATION, "messages[].content[].name", _TOOLS),
    *refused(CONVERSATION, "messages[].audio", _TEXT_ONLY),
    *refused(CONVERSATION, "messages[].images", _TEXT_ONLY, []),
    *refused(CONVERSATION, "messages[].function_call", "send messages[].tool_calls"),
    *refused(CONVERSATION, "messages[].tool_calls[].custom", "tools are functions here"),
    *refused(CONVERSATION, "messages[].tools", "send tools beside messages", []),
    *refused(CONVERSATION, "messages[].task", "write the task into the message"),
    *refused(CONVERSATION, "messages[].refusal", "send it as content", ""),
    *refused(CONVERSATION, "tool_choice.custom", "tools are functions here"),
    *refused(_EMBEDDINGS, "messages", "send input; a conversation is rendered by /tokenize"),
    *refused(POOLING, "normalize use_activation softmax activation", _AS_TRAINED, True),
    *refused(POOLING, "embed_dtype", "numbers are float32", "float32"),
    *refused(POOLING, "endianness", "bytes are little-endian", "native", "little"),
    *refused(POOLING, "mm_processor_kwargs", _TEXT_ONLY, {}),
    *refused(_TOKENIZE, "with_pieces", "send return_token_strs", False),
    *refused(_TOKENIZE, "content", "send prompt"),
    *refused(_TOKENIZE, "add_special", "send add_special_tokens", False),
)

_HARMLESS: tuple[FieldRow, ...] = (
    *harmless(
        CONVERSATION,
        "messages[].content[].input_audio "
        "messages[].content[].audio_url messages[].content[].video_url messages[].content[].file",
        "of a tool's result, which tells it in words; elsewhere the part is refused by its type",
    ),
    *harmless(GENERATION, "user safety_identifier metadata", "names a person; nobody here asks"),
    *harmless((Endpoint.GENERATE,), "text", "the prompt is its token_ids"),
    *refused((Endpoint.GENERATE,), "features", _TEXT_ONLY),
    *harmless((Endpoint.RERANK,), "max_chunks_per_doc", "a document is scored as a whole"),
    *harmless(POOLING, "user", "names a person; nobody here asks"),
    *harmless(GENERATION, "store service_tier", _FOR_OPENAI),
    *harmless(_CHAT, "prediction", "makes OpenAI's answers sooner, and changes none"),
    *harmless(GENERATION, "mode", "text-generation-webui's; chats go by the template"),
    *harmless(
        GENERATION,
        "prompt_cache_key prompt_cache_options prompt_cache_retention cache_prompt n_cache_reuse",
        "prompts' beginnings are cached in any case; cache_salt keeps tenants apart",
    ),
    *harmless(
        CONVERSATION,
        "messages[].content[].prompt_cache_breakpoint messages[].content[].cache_control",
        "prompts' beginnings are cached in any case",
    ),
    *harmless(GENERATION, "verbosity", "no open model knows it; say it in a message"),
    *harmless(GENERATION, "stream_options.include_obfuscation", "events are never padded"),
    *harmless(GENERATION, "stream_interval sse_ping_interval", "of how events are sent"),
    *harmless(GENERATION, "return_cached_tokens_details", "usage has them in any case"),
    *harmless(GENERATION, "spaces_between_special_tokens", "nothing is put between tokens"),
    *harmless(
        GENERATION,
        "mm_payload return_flat_raw_top_logprobs_b64",
        "the form of what is not asked for",
    ),
    *harmless(GENERATION, "session_id custom_labels id_slot", "for routers and figures of theirs"),
    *harmless(
        GENERATION,
        "n_keep n_discard",
        "a prompt is never shifted: one that is too long is refused",
    ),
    *harmless(
        GENERATION,
        "repeat_last_n xtc_threshold dynatemp_exponent dry_base dry_allowed_length "
        "dry_penalty_last_n dry_sequence_breakers mirostat_tau mirostat_eta adaptive_decay",
        "belongs to a sampler that is refused where it is on",
    ),
    *harmless(GENERATION, "backend_sampling", "where tokens are drawn does not change them"),
    *harmless(GENERATION, "guided_decoding_backend", "there is one"),
    *harmless(GENERATION, "models route transforms provider", "of OpenRouter's routing"),
    *harmless(
        _COMPLETIONS,
        "continue_final_message add_generation_prompt",
        "an answer always goes on with its prompt",
    ),
    *harmless(_COMPLETIONS, "tools tool_choice parallel_tool_calls", "a text has no tools"),
    *harmless(
        CONVERSATION,
        "messages[].phase messages[].annotations messages[].content[].annotations messages[].id "
        "messages[].reasoning_details",
        "templates know no place for it",
    ),
    *harmless(CONVERSATION, "messages[].tool_calls[].index", "calls come in their order"),
    *harmless(_TOKENIZE, "parse_special", "marks of special tokens are always read as them"),
)

OTHER_FIELDS = (
    *_REFUSED,
    *_HARMLESS,
    *FOREIGN_WORDS,
    *RESPONSES_FIELDS,
    *MESSAGES_FIELDS,
    *OLLAMA_FIELDS,
)
