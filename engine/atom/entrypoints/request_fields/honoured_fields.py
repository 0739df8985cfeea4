"""Request fields that have an effect, by endpoint, and the effect of each: the words of the OpenAPI
document and of the page of request fields. A test holds this table equal to the fields that
`protocol.py` declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atom.entrypoints.request_fields.field_row import (
    CONVERSATION,
    GENERATION,
    POOLING,
    Endpoint,
    FieldRow,
    Verdict,
)

_EVERYWHERE = tuple(Endpoint)
_CHAT = (Endpoint.CHAT,)
_COMPLETIONS = (Endpoint.COMPLETIONS,)
_TOKENIZE = (Endpoint.TOKENIZE,)
_DETOKENIZE = (Endpoint.DETOKENIZE,)


def _fields(
    endpoints: Sequence[Endpoint], texts: Mapping[str, str], *, opaque: bool = False
) -> tuple[FieldRow, ...]:
    """Build one row per path: the field's effect, in the words of a user who sends it."""
    return tuple(
        FieldRow(path, tuple(endpoints), Verdict.HONOURED, text, opaque=opaque)
        for path, text in texts.items()
    )


_SAMPLING = {
    "n": "How many answers to each prompt; 1 unless it is sent.",
    "temperature": (
        "How freely tokens are drawn: 0 takes the likeliest each time, 1 the model's own odds."
    ),
    "top_p": "Draw from the likeliest tokens whose odds add up to this share; 1 for all.",
    "top_k": "Draw from so many of the likeliest tokens; 0 or -1 for all.",
    "min_p": "Leave out tokens less likely than this share of the likeliest one's odds.",
    "seed": "Number that draws begin from: the same request with it has the same answer.",
    "repetition_penalty": "Above 1: tokens that the prompt or the answer has become less likely.",
    "presence_penalty": (
        "Above 0: tokens that the answer has become less likely, however often it has them."
    ),
    "frequency_penalty": (
        "Above 0: tokens become less likely with each time that the answer has them."
    ),
    "allowed_token_ids": "The only tokens that an answer may hold.",
    "bad_words": "Texts that an answer never holds.",
}
_LENGTH = {
    "max_tokens": (
        "The most tokens of an answer; in a chat as many as the context has room for, unless it "
        "is sent."
    ),
    "max_completion_tokens": "OpenAI's newer name of max_tokens.",
    "n_predict": "llama.cpp's name of max_tokens; -1: no bound.",
    "min_tokens": "An answer does not end before it has so many tokens.",
    "stop": "Text, or texts, at which an answer ends; the answer does not hold them.",
    "stop_token_ids": "Tokens at which an answer ends.",
    "ignore_eos": "Continue past the model's end token, to max_tokens.",
    "include_stop_str_in_output": "Let the answer hold the stop text that ended it.",
    "no_stop_trim": "SGLang's name of include_stop_str_in_output.",
}
_FORM = {
    "add_special_tokens": (
        "Let the tokenizer add its marks, such as one of the beginning, to the prompt."
    ),
    "truncate_prompt_tokens": "Cut the prompt to so many tokens; -1: to the size of the context.",
    "truncation_side": "The end of the prompt that is cut: left unless it is sent.",
    "skip_special_tokens": (
        "Leave the model's marks out of the answer's text; true unless it is sent."
    ),
    "return_token_ids": "Return the ids of the prompt's and the answer's tokens.",
    "return_tokens_as_token_ids": "Write tokens as token_id:N in log-probabilities.",
    "prompt_logprobs": (
        "Return, for each token of the prompt, its log-probability and those of so many likelier "
        "ones."
    ),
    "stream": "Send the answer as server-sent events while it is generated.",
    "stream_options": "Further content of a stream.",
    "stream_options.include_usage": "End the stream with an event that counts the tokens.",
    "stream_options.continuous_usage_stats": (
        "With include_usage: count the tokens so far in every event."
    ),
}
_SERVICE = {
    "priority": "From -100 to 100; lower is served sooner, by one second of waiting a step.",
    "cache_salt": (
        "Only requests of the same salt share cached prompts: one per tenant keeps them apart."
    ),
    "timeout_seconds": "Seconds after which the request ends with its tokens so far.",
    "timeout": "The same as timeout_seconds; the header X-Request-Timeout says it as well.",
    "request_id": "Your name of the request; the answer's id ends with it.",
    "rid": "SGLang's name of request_id.",
}
_STRUCTURE = {
    "response_format": (
        "The form that the answer keeps to: any JSON, a JSON schema, a grammar, a regex."
    ),
    "response_format.type": "Which kind of form; text asks for none.",
    "response_format.json_schema": "The schema of type json_schema.",
    "response_format.json_schema.name": "For people; not shown to the model.",
    "response_format.json_schema.description": "For people; not shown to the model.",
    "response_format.json_schema.strict": "The schema is kept to either way.",
    "response_format.grammar": "GBNF text of type grammar.",
    "response_format.pattern": "Regular expression of type regex, for the whole answer.",
    "response_format.triggers": "Of a structural_tag: texts after which its structures begin.",
    "response_format.at_least_one": (
        "Of a structural_tag: the answer has one of the structures, or more."
    ),
    "grammar": "llama.cpp's field: GBNF that the whole answer keeps to.",
    "ebnf": "SGLang's field: a grammar that the whole answer keeps to.",
    "regex": "Regular expression that the whole answer keeps to.",
    "structured_outputs.json_object": "The answer is a JSON object.",
    "structured_outputs.regex": "Regular expression that the whole answer keeps to.",
    "structured_outputs.grammar": "Grammar that the whole answer keeps to.",
    "structured_outputs.choice": "The answer is one of these texts.",
    "structured_outputs.disable_any_whitespace": "Keep JSON on one line.",
    "structured_outputs.disable_fallback": "Taken; there is one way to keep to a form here.",
    "guided_regex": "vLLM's older name of structured_outputs.regex.",
    "guided_grammar": "vLLM's older name of structured_outputs.grammar.",
    "guided_choice": "vLLM's older name of structured_outputs.choice.",
}
_SCHEMAS = {
    "logit_bias": (
        "Added to the logits of tokens, by their ids: -100 forbids one, 100 all but forces it."
    ),
    "response_format.schema": (
        "The schema, in the position of llama.cpp, Together and Fireworks; with json_object too."
    ),
    "response_format.format": "Of a structural_tag: xgrammar's description.",
    "response_format.structures": "Of a structural_tag: begin, schema and end of each.",
    "response_format.json_schema.schema": "JSON schema that the answer keeps to.",
    "json_schema": "JSON schema that the answer keeps to; llama.cpp's and SGLang's place for it.",
    "structural_tag": "Structures within free text, in xgrammar's description.",
    "structured_outputs.json": "JSON schema that the answer keeps to.",
    "structured_outputs.structural_tag": "Structures within free text, in xgrammar's description.",
    "guided_json": "vLLM's older name of structured_outputs.json.",
}
_REASONING = {
    "thinking_token_budget": (
        "The most tokens of reasoning, after which the answer is forced; -1: no bound."
    ),
    "reasoning_budget_tokens": "llama.cpp's name of thinking_token_budget.",
    "thinking_budget_tokens": "Another name of thinking_token_budget.",
    "thinking_budget": "DashScope's name of thinking_token_budget.",
    "include_reasoning": "False: reasoning is generated all the same, and left out of the answer.",
    "logprobs": "Return the log-probability of each token of the answer.",
    "top_logprobs": "With logprobs: those of so many of the likeliest tokens as well.",
}
_TEXT = {
    "prompt": "Text to continue, or several; or ids of tokens.",
    "echo": "Put the prompt before each answer; with max_tokens 0 return the prompt alone.",
    "logprobs": "Return each token's log-probability, and those of so many of the likeliest.",
}
_CONVERSATION = {
    "messages": "The conversation so far, oldest first; at least one message.",
    "messages[].role": "Who speaks; developer counts as system.",
    "messages[].content": "Content of the message: a text, or parts of type text.",
    "messages[].content[].type": (
        "Always text: this server takes no other type. In a tool's result, words replace "
        "pictures, recordings and files."
    ),
    "messages[].content[].text": "The text of the part.",
    "messages[].name": "Name of the speaker, for templates that write it.",
    "messages[].reasoning": "The assistant's reasoning before this answer.",
    "messages[].reasoning_content": "The same as reasoning.",
    "messages[].tool_calls": "Calls that the assistant made.",
    "messages[].tool_calls[].id": "By which the message with the result names the call.",
    "messages[].tool_calls[].type": "Always function.",
    "messages[].tool_calls[].function": "Which function is called, and with what.",
    "messages[].tool_calls[].function.name": "Name of one of the tools.",
    "messages[].tool_call_id": "Of role tool: whose result this is.",
    "messages[].prefix": (
        "Of the last message, of role assistant: it is the beginning of the answer."
    ),
    "tool_choice": "auto: the model decides; none: no call; required: a call; or the tool to call.",
    "tool_choice.type": "function, or allowed_tools.",
    "tool_choice.function": "The tool that is called.",
    "tool_choice.function.name": "Its name.",
    "tool_choice.allowed_tools": "Tools that may be called out of those that are sent.",
    "tool_choice.allowed_tools.mode": "auto: one may be called; required: one is.",
    "tool_choice.allowed_tools.tools": "These tools.",
    "tool_choice.allowed_tools.tools[].type": "Always function.",
    "tool_choice.allowed_tools.tools[].function": "Which of the tools.",
    "tool_choice.allowed_tools.tools[].function.name": "Its name.",
    "parallel_tool_calls": "False: at most one call in an answer.",
    "reasoning_effort": "For templates that know it; for others a budget of reasoning.",
    "thinking": "DeepSeek's, GLM's and Anthropic's switch of reasoning.",
    "thinking.type": "enabled, disabled, or adaptive: as the model likes.",
    "thinking.budget_tokens": "The most tokens of reasoning; -1: no bound.",
    "enable_thinking": "DashScope's switch of reasoning.",
    "add_generation_prompt": (
        "Begin the assistant's turn after the messages; true unless it is sent."
    ),
    "continue_final_message": "Continue the last message, which is not ended.",
}
_TEMPLATE = {
    "messages[].tool_calls[].function.arguments": (
        "JSON text with the arguments, as the model wrote it."
    ),
    "tools": "Functions that the answer may call; they go to the chat template as they are sent.",
    "chat_template_kwargs": "More arguments for the chat template, by name.",
    "documents": "Documents for the chat template; 400 if it does not read them.",
}
_TOKENS = {
    "prompt": "Text to count; or send messages.",
    "add_special_tokens": (
        "Add the tokenizer's marks; true for a prompt, false for messages, unless it is sent."
    ),
    "return_token_strs": "Return the tokens' texts too.",
}
_DETOKENS = {
    "tokens": "Ids of tokens.",
    "skip_special_tokens": "Leave the model's marks out; true unless it is sent.",
}

_GENERATE = {
    "token_ids": "The prompt's tokens.",
    **{
        name: _FORM[name]
        for name in (
            "stream",
            "stream_options",
            "stream_options.include_usage",
            "stream_options.continuous_usage_stats",
        )
    },
    **{
        name: _SERVICE[name]
        for name in ("request_id", "priority", "cache_salt", "timeout_seconds", "timeout")
    },
}
_PARAMS = {
    "sampling_params": "Fields of /v1/completions by which tokens are drawn, such as max_tokens."
}
_POOLING = {
    "truncate_prompt_tokens": "Keep so many tokens of each input; -1: as the context holds.",
    "request_id": "Your name of the request; the answer's id ends with it.",
    **{name: _SERVICE[name] for name in ("priority", "cache_salt")},
    "timeout_seconds": "Seconds after which the request is given up.",
    "timeout": "The same as timeout_seconds; the header X-Request-Timeout says it as well.",
}
_EMBEDDINGS = {
    "input": "Text, texts, token ids, or lists of token ids; each gets a vector.",
    "dimensions": "Keep so many of each vector's first numbers, and make it of length 1 again.",
    "encoding_format": "float: numbers; base64: their bytes as little-endian float32.",
    "add_special_tokens": "Let the tokenizer add its marks, such as one of the end, to each input.",
}
_SCORE = {
    "text_1": "Text that each of text_2 is compared with, or as many texts as there.",
    "text_2": "Text or texts that are scored.",
}
_RERANK = {
    "query": "The text that the documents are compared with.",
    "documents": "Texts that are ranked, each plain or as an object with text.",
    "documents[].text": "The document's text.",
    "top_n": "Number of the most relevant documents to return; all unless it is sent.",
    "max_tokens_per_doc": "Read so many tokens of each document; all unless it is sent.",
    "max_tokens_per_query": "Read so many tokens of the query; all unless it is sent.",
    "return_documents": "Return the documents' texts; true unless it is sent.",
}
_INSTRUCTION = {"instruction": "Instruction of a reranker; the model's own if none."}

HONOURED: tuple[FieldRow, ...] = (
    *_fields(
        _EVERYWHERE,
        {"model": "Name of the served model; the one that is served, unless it is sent."},
    ),
    *_fields(GENERATION, _SAMPLING),
    *_fields(GENERATION, _LENGTH),
    *_fields(GENERATION, _FORM),
    *_fields(GENERATION, _SERVICE),
    *_fields(GENERATION, _STRUCTURE),
    *_fields(GENERATION, _SCHEMAS, opaque=True),
    *_fields(_CHAT, _REASONING),
    *_fields(_COMPLETIONS, _TEXT),
    *_fields(CONVERSATION, _CONVERSATION),
    *_fields(CONVERSATION, _TEMPLATE, opaque=True),
    *_fields(_TOKENIZE, _TOKENS),
    *_fields(_DETOKENIZE, _DETOKENS),
    *_fields((Endpoint.GENERATE,), _GENERATE),
    *_fields((Endpoint.GENERATE,), _PARAMS, opaque=True),
    *_fields(POOLING, _POOLING),
    *_fields((Endpoint.EMBEDDINGS,), _EMBEDDINGS),
    *_fields((Endpoint.SCORE,), _SCORE),
    *_fields((Endpoint.RERANK,), _RERANK),
    *_fields((Endpoint.SCORE, Endpoint.RERANK), _INSTRUCTION),
    FieldRow(
        "structured_outputs",
        GENERATION,
        Verdict.HONOURED,
        "vLLM's way to ask for a form: exactly one of its first six fields.",
        closed=True,
    ),
)
