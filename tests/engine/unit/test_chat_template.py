from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from atom.chat_template import ChatTemplate, load_chat_template
from atom.errors import ConfigError, ModelError, RequestError
from atom.tokenizer import Tokenizer
from tests.support.models.byte_tokenizer import END_OF_TEXT, write_byte_tokenizer

TEMPLATES = Path(__file__).parent / "chat_templates"
SAYS = "{% for message in messages %}{{ message.content }}{% endfor %}"
WITH_TOOLS = "with tools{% for tool in tools or () %} {{ tool.function.name }}{% endfor %}" + SAYS

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How <warm> it is & why, in °C",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "Hello, <world> & all!"}],
    "system first": [
        {"role": "system", "content": " Be short.\n"},
        {"role": "user", "content": "Wie heißt du?"},
    ],
    "several turns": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"},
        {"role": "user", "content": "and 2+2?"},
    ],
    "tool use": [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "20 °C"},
    ],
}


def oracle(folder: Path, source: str) -> transformers.PreTrainedTokenizerFast:
    write_byte_tokenizer(folder, bos_token=END_OF_TEXT)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = source
    return tokenizer


@pytest.mark.sampled(10)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
@pytest.mark.parametrize("template", ["qwen3_like", "llama3_like"])
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_prompts_equal_those_of_transformers(
    tmp_path: Path,
    template: str,
    conversation: str,
    tools: list[dict[str, Any]] | None,
    generation_prompt: bool,
) -> None:
    source = (TEMPLATES / f"{template}.jinja").read_text()
    expected = oracle(tmp_path, source).apply_chat_template(
        CONVERSATIONS[conversation],
        tools=tools,
        tokenize=False,
        add_generation_prompt=generation_prompt,
    )
    (tmp_path / "chat_template.jinja").write_text(source)
    ours = load_chat_template(tmp_path, Tokenizer(tmp_path))
    assert ours is not None
    rendered = ours.render(
        CONVERSATIONS[conversation], tools=tools, add_generation_prompt=generation_prompt
    )
    assert rendered == expected


def test_extra_variables_reach_the_template(tmp_path: Path) -> None:
    source = (TEMPLATES / "qwen3_like.jinja").read_text()
    messages = CONVERSATIONS["one question"]
    expected = oracle(tmp_path, source).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    ours = ChatTemplate(source, {}).render(messages, extra={"enable_thinking": False})
    assert ours == expected
    assert ours.endswith("<think>\n\n</think>\n\n")


def test_extra_variables_may_not_replace_the_messages() -> None:
    with pytest.raises(RequestError, match="may not set 'messages'"):
        ChatTemplate("{{ messages }}", {}).render([], extra={"messages": "forged"})


def test_generation_marks_and_loop_controls_are_understood() -> None:
    source = (
        "{% for m in messages %}{% if m.skip %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    messages = [{"content": "a"}, {"content": "b", "skip": True}, {"content": "c"}]
    assert ChatTemplate(source, {}).render(messages) == "ac"


def test_a_template_that_refuses_the_conversation_is_the_clients_error() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        template.render([{"role": "user", "content": "x"}])
    assert caught.value.status == 400
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_syntax_error_names_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"syntax error.*--chat-template"):
        ChatTemplate("{% for %}", {})


def test_the_override_wins_over_the_file_and_the_file_over_the_settings(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)

    def rendered(override: Path | None = None) -> str:
        template = load_chat_template(tmp_path, tokenizer, override)
        assert template is not None
        return template.render([{"role": "user", "content": "x"}])

    assert rendered() == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    (tmp_path / "chat_template.jinja").write_text("from the file: " + SAYS)
    assert rendered() == "from the file: x"
    (tmp_path / "mine.jinja").write_text("mine: " + SAYS)
    assert rendered(tmp_path / "mine.jinja") == "mine: x"
    with pytest.raises(ConfigError, match=r"gone\.jinja: cannot be read"):
        rendered(tmp_path / "gone.jinja")


def test_multimodal_models_keep_it_beside_their_processor(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.json").write_text(
        json.dumps({"chat_template": "the processor's" + SAYS})
    )
    template = load_chat_template(tmp_path, Tokenizer(tmp_path))
    assert template is not None
    assert template.render([]) == "the processor's"
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(ModelError, match=r"chat_template\.json: cannot be read as JSON"):
        load_chat_template(tmp_path, Tokenizer(tmp_path))


def test_a_file_of_its_own_for_conversations_with_tools(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("plain" + SAYS)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(WITH_TOOLS)
    template = load_chat_template(tmp_path, Tokenizer(tmp_path))
    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], tools=[TOOL]) == "with tools weather"


def test_named_templates_use_the_default_and_the_one_for_tools(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    named = [
        {"name": "default", "template": "plain" + SAYS},
        {"name": "tool_use", "template": WITH_TOOLS},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_chat_template(tmp_path, Tokenizer(tmp_path))
    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], tools=[TOOL]) == "with tools weather"


def test_a_base_model_has_no_template(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_chat_template(tmp_path, Tokenizer(tmp_path)) is None


@pytest.mark.parametrize(
    "value",
    [["x"], [{"template": "x"}], [{"name": "default", "template": 5}], {"name": 1}, 5, [[]], True],
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_a_template_of_another_type_is_named_with_its_file(
    tmp_path: Path, file: str, value: Any
) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / file).write_text(json.dumps({"chat_template": value}))
    with pytest.raises(ModelError, match=rf"{file}: chat_template must be a text.*--chat-template"):
        load_chat_template(tmp_path, Tokenizer(tmp_path))


def test_a_template_that_is_no_utf8_is_named_with_its_file(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: cannot be read as UTF-8"):
        load_chat_template(tmp_path, Tokenizer(tmp_path))
