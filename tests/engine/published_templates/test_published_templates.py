"""Chat templates as models publish them: every kind of conversation is shown whole, with every
shape of a tool, families are found, and the server says at start what it cannot show.

The templates come from a pinned source distribution, into the cache folder; without it the tests
fail, and say so. transformers' renderer is the oracle where it shows a conversation itself.
"""

from __future__ import annotations

import datetime
import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from atom.chat_template import ChatTemplate
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.errors import RequestError
from tests.support.published.conversations import (
    CONVERSATIONS,
    TOOL_SETS,
    Conversation,
    ToolSet,
)
from tests.support.published.models import SPECIAL_TOKENS, PublishedModel, model, names

# Reads `functions` and `datetime`, which its own server sets; transformers cannot render it.
_FIREFUNCTION = "fireworks-ai-llama-3-firefunction-v2"
_THINKING = {"thinking": True, "enable_thinking": True}
_UNSHOWN_REASONING = "reasoning that is sent back"
_UNSHOWN_TEXT = "what the assistant said beside calls of earlier turns"  # harmony's analysis
# By its template: the parsers of calls and of reasoning.
FAMILIES: dict[str, tuple[str | None, str | None]] = {
    "Apertus-8B-Instruct": (None, None),
    "Apriel-1.6-15b-Thinker-fixed": ("hunyuan_a13b", "apriel"),
    "Bielik-11B-v3.0-Instruct": ("hermes", "qwen3"),
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "Cohere2MoE": (None, None),
    "CohereForAI-c4ai-command-r-plus-tool_use": (None, None),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (None, None),
    "GLM-4.6": ("glm45", "qwen3"),
    "GLM-4.7-Flash": ("glm45", "qwen3"),
    "GigaChat3-10B-A1.8B": (None, None),
    "GigaChat3.1-10B-A1.8B": (None, None),
    "HuggingFaceTB-SmolLM3-3B": ("llama3_json", "qwen3"),  # told so: its template shows no tools
    "Kimi-K2-Instruct": ("kimi_k2", None),
    "Kimi-K2-Thinking": ("kimi_k2", "qwen3"),
    "Kimi-K3": (None, None),
    "LFM2-8B-A1B": ("lfm2", None),
    "LFM2.5-8B-A1B": ("lfm2", "qwen3"),
    "LFM2.5-Instruct": ("lfm2", None),
    "MiMo-VL": ("hermes", None),
    "MiniMax-M1": ("hunyuan_a13b", None),
    "MiniMax-M2": ("minimax_m2", "qwen3"),
    "MiniMax-M3": (None, None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "qwen3"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron_json", "qwen3"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-QwQ-32B": ("hermes", "qwen3"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "qwen3"),
    "Reka-Edge": ("hermes", "qwen3"),
    "Spark2.5": ("glm45", "qwen3"),
    "StepFun3.5-Flash": ("qwen3_coder", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "qwen3"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "qwen3"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "qwen3"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("deepseek_v32", "qwen3"),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v32", "qwen3"),
    _FIREFUNCTION: ("phi4_mini_json", None),
    "google-gemma-2-2b-it": ("llama3_json", None),  # told so
    "google-gemma-4-31B-it-interleaved": ("gemma4", "gemma4"),
    "google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "ernie45"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "ibm-granite-granite-4.1": ("hermes", None),
    "inclusionai-ling-3.0-flash": ("glm45", "qwen3"),
    "llama-cpp-deepseek-r1": ("deepseek_v3", "qwen3"),
    "llama-cpp-rwkv-world": ("llama3_json", "qwen3"),  # told so
    "meetkai-functionary-medium-v3.1": ("qwen3_coder", None),
    "meetkai-functionary-medium-v3.2": (None, None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", None),
    "microsoft-Phi-3.5-mini-instruct": ("llama3_json", None),  # told so
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "moonshotai-Kimi-K2": ("kimi_k2", None),
    "muse-glimmer": (None, None),
    "openai-gpt-oss-120b": ("openai", "openai_gptoss"),
    "openbmb-MiniCPM5-1B": (None, "qwen3"),
    "poolside-Laguna-S-2.1": ("glm45", "qwen3"),
    "poolside-Laguna-XS-2.1": ("glm45", "qwen3"),
    "poolside-Laguna-XS.2": ("glm45", "qwen3"),
    "tencent-Hy3": (None, None),
    "unsloth-Apriel-1.5": ("hunyuan_a13b", "apriel"),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
    "upstage-Solar-Open-100B": (None, None),
}


def body(conversation: Conversation, tools: ToolSet, **fields: Any) -> ChatCompletionRequest:
    found: dict[str, Any] = {"model": "m", "messages": list(conversation.messages), **fields}
    if tools.tools:
        found["tools"] = list(tools.tools)
    if conversation.continues:
        found["continue_final_message"] = True
    return ChatCompletionRequest.model_validate_json(json.dumps(found))


def lacking(model: PublishedModel, conversation: Conversation, tools: ToolSet) -> list[str]:
    """The words that the prompt lacks, or why there is no prompt."""
    switched = body(conversation, tools, chat_template_kwargs=_THINKING)
    try:
        prompt, plain = model.prompt(switched), model.prompt(body(conversation, tools))
    except RequestError as error:
        return [str(error)]
    found = [
        word
        for text in (prompt, plain)
        for word in (*conversation.words, *conversation.ordered, *tools.words)
        if word not in text and json.dumps(word)[1:-1] not in text
    ]
    if _UNSHOWN_REASONING not in model.template.left_out:
        found += [word for word in conversation.thoughts if word not in prompt]
    at = 0
    for word in conversation.ordered:
        at = max(at, prompt.find(word, at))
        if not prompt.startswith(word, at):
            found.append(f"{word} in its place")
    return found


def served() -> Iterator[PublishedModel]:
    found = [model(name) for name in names()]
    assert len(found) > 60
    yield from found


def test_the_family_of_every_model_is_found() -> None:
    found = {}
    for name in names():
        calls, reasoning = model(name).formats.calls, model(name).formats.reasoning
        found[name] = (calls and calls.name, reasoning and reasoning.name)
    assert found == FAMILIES


@pytest.mark.sampled(15)
@pytest.mark.singles
@pytest.mark.parametrize("tools", ["whole", "none"])
@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_every_conversation_is_shown_whole(kind: str, tools: str) -> None:
    conversation, offered = CONVERSATIONS[kind], TOOL_SETS[tools]
    found = {each.name: lacking(each, conversation, offered) for each in served()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.sampled(8)
@pytest.mark.singles
@pytest.mark.parametrize("kind", ["system", "one call", "user behind a result"])
@pytest.mark.parametrize("tools", TOOL_SETS)
def test_every_tool_is_shown_whole(tools: str, kind: str) -> None:
    conversation, offered = CONVERSATIONS[kind], TOOL_SETS[tools]
    found = {each.name: lacking(each, conversation, offered) for each in served()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.slow
@pytest.mark.parametrize("tools", TOOL_SETS)
def test_every_tool_is_shown_in_every_conversation(tools: str) -> None:
    for kind, conversation in CONVERSATIONS.items():
        found = {each.name: lacking(each, conversation, TOOL_SETS[tools]) for each in served()}
        assert {name: words for name, words in found.items() if words} == {}, kind


@pytest.mark.slow
def test_kinds_of_conversations_come_one_after_the_other() -> None:
    """Each pair of kinds in one conversation, which the user's next question parts."""
    pairs = itertools.permutations(
        [kind for kind, each in CONVERSATIONS.items() if not each.continues], 2
    )
    for number, (first, second) in enumerate(pairs):
        one, other = CONVERSATIONS[first], CONVERSATIONS[second]
        both = Conversation(
            [*one.messages, {"role": "user", "content": "zqnextqz"}, *other.messages],
            [*one.words, "zqnextqz", *other.words, *other.ordered],
        )
        tools = TOOL_SETS["whole" if number % 2 else "none"]
        models = list(served())
        for each in models[number % 7 :: 7]:
            unsaid = {"zqsaidqz"} if _UNSHOWN_TEXT in each.template.left_out else set()
            found = set(lacking(each, both, tools)) - unsaid
            assert found == set(), (each.name, first, second)


class _Day(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Day:
        return cls(2026, 2, 3, 4, 5)


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize("tools", ["whole", "none", "several"])
@pytest.mark.parametrize("kind", ["plain", "system", "one call", "several rounds", "unicode"])
def test_prompts_equal_those_of_transformers_where_these_are_whole(
    kind: str, tools: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom.template_sandbox.datetime.datetime", _Day)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", _Day)
    conversation, offered = CONVERSATIONS[kind], TOOL_SETS[tools]
    compared = 0
    for each in served():
        expected = _of_transformers(each, conversation, offered)
        words = (*conversation.words, *conversation.ordered, *offered.words)
        if expected is not None and all(word in expected for word in words):
            assert each.prompt(body(conversation, offered)) == expected, each.name
            compared += 1
    assert compared > (15 if "call" in kind or "rounds" in kind else 25)


def _of_transformers(
    model: PublishedModel, conversation: Conversation, tools: ToolSet
) -> str | None:
    """The prompt of transformers' renderer, which takes arguments as objects; None where the
    template refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = json.loads(json.dumps(conversation.messages))
    kimis = model.formats.calls is not None and model.formats.calls.name == "kimi_k2"
    counted = 0
    for message in messages:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            if kimis:  # its ids are the model's own
                call["id"] = f"functions.{call['function']['name']}:{counted}"
                counted += 1
        if kimis and message["role"] == "tool":
            message["tool_call_id"] = f"functions.weather:{counted - 1}"
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=list(tools.tools) or None,
            chat_template=model.source,
            add_generation_prompt=True,
            **SPECIAL_TOKENS,
        )
    except Exception:  # a template's own, of any kind
        return None
    return str(rendered[0])


def test_a_template_gets_what_its_own_server_would_give_it() -> None:
    found, conversation = model(_FIREFUNCTION), CONVERSATIONS["plain"]
    shown = found.prompt(body(conversation, TOOL_SETS["whole"]))
    functions = [tool["function"] for tool in TOOL_SETS["whole"].tools]
    listed = shown.partition("Available functions as JSON spec:\n")[2]
    assert json.JSONDecoder().raw_decode(listed)[0] == functions
    today = datetime.date.today().isoformat()
    for prompt in (shown, found.prompt(body(conversation, TOOL_SETS["none"]))):
        assert f"Today is {today}." in prompt or datetime.date.today().isoformat() != today
    own = body(conversation, TOOL_SETS["none"], chat_template_kwargs={"datetime": "a Tuesday"})
    assert "Today is a Tuesday." in found.prompt(own)


def test_a_template_that_cannot_be_served_is_named_at_start_and_in_every_request() -> None:
    template = ChatTemplate("{{ weather + messages[0].content }}", {})
    assert any("cannot render a plain question" in part for part in template.left_out)
    with pytest.raises(RequestError, match="cannot render these messages: 'weather' is undef"):
        template.render([{"role": "user", "content": "hi"}])


def test_the_server_says_at_start_what_no_answer_will_have() -> None:
    """Calls in a notation that no parser reads, and reasoning that its own template leaves out."""
    for each in served():
        warned = [note for level, note in each.notation.notes if level == logging.WARNING]
        unread = [note for note in warned if "of no known family" in note]
        assert len(unread) == (each.formats.calls is None), each.name
        unsaid = [note for note in warned if _UNSHOWN_TEXT in note]
        assert len(unsaid) == (each.name == "openai-gpt-oss-120b"), each.name
        lost = [note for note in warned if _UNSHOWN_REASONING in note]
        leaves_out = _UNSHOWN_REASONING in each.template.left_out
        assert len(lost) == (leaves_out and each.formats.reasoning is not None), each.name
