"""Whatever shape a template wants, it shows what the user says and every call, or says what not."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.chat_template import ChatTemplate
from atom.errors import ModelError, RequestError
from atom.message_shape import read_arguments

USER = {"role": "user", "content": "asked"}
# What a family's branch for calls may look at, and how it may write arguments.
ARGUMENTS = {
    "object": "{{ f.arguments | tojson }}",
    "text by +": "{{ '' + f.arguments }}",
    "either": (
        "{% if f.arguments is string %}{{ f.arguments }}"
        "{% else %}{{ f.arguments | tojson }}{% endif %}"
    ),
    "items": "{% for k, v in f.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}",
    "items filter": "{% for k, v in f.arguments | items %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}",
}
CONDITIONS = {
    "calls": "m.tool_calls",
    "content none": "m.tool_calls and m.content is none",
    "content empty": "m.tool_calls and m.content == ''",
    "key": "'tool_calls' in m",
}
CONTENTS = {
    "text": "{{ m.content }}",
    "none is text": "{% if m.content is none %}{% else %}{{ m.content }}{% endif %}",
    "parts": "{% for part in m.content %}{{ part.text }}{% endfor %}",
    "either": (
        "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    ),
}


def source_of(arguments: str, condition: str, content: str) -> str:
    shown = CONTENTS[content]
    beside = "" if "content" in condition else f"{{% if m.content %}}{shown}{{% endif %}}"
    return (
        "{% for m in messages %}<{{ m.role }}>"
        f"{{% if {CONDITIONS[condition]} %}}{beside}"
        "{% for c in m.tool_calls %}{% set f = c.function %}[{{ f.name }} "
        f"{ARGUMENTS[arguments]}]{{% endfor %}}"
        f"{{% else %}}{shown}{{% endif %}}{{% endfor %}}"
    )


def call(arguments: Any, content: Any = "") -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    ("arguments", "condition", "content"), itertools.product(ARGUMENTS, CONDITIONS, CONTENTS)
)
def test_text_and_calls_are_shown_by_every_kind_of_template(
    arguments: str, condition: str, content: str
) -> None:
    template = ChatTemplate(source_of(arguments, condition, content), {})
    for said in ("", None, "I look."):
        text = template.render([USER, call('{"city": "Paris"}', said), USER])
        assert text.count("asked") == 2
        assert "[weather " in text
        shown = "<city>Paris</city>" if "items" in arguments else '{"city": "Paris"}'
        assert shown in text
        assert "None" not in text
        assert ("I look." in text) is (said == "I look.")


SENT: dict[str, tuple[Any, Any]] = {
    "text": ('{"a": 1}', {"a": 1}),
    "object": ({"a": 1}, {"a": 1}),
    "empty": ("", {}),
    "blank": ("  ", {}),
    "none": (None, {}),
    "null": ("null", {}),
    "twice encoded": ('"{\\"a\\": 1}"', {"a": 1}),
    "raw line break": ('{"a": "x\ny"}', {"a": "x\ny"}),
    "cut": ('{"value": ', '{"value": '),
    "no JSON": ("weather in Paris", "weather in Paris"),
    "list": ("[1]", "[1]"),
    "list as value": ([1], "[1]"),
    "text in quotes": ('"x"', '"x"'),
    "number": (5, "5"),
    "deep": ("[" * 100_000, "[" * 100_000),
}


@pytest.mark.parametrize("kind", SENT)
def test_arguments_in_history_are_taken_in_any_form(kind: str) -> None:
    sent, expected = SENT[kind]
    assert read_arguments(sent) == expected


@pytest.mark.parametrize("kind", [kind for kind in SENT if kind != "deep"])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_and_reach_every_kind_of_template(kind: str, arguments: str) -> None:
    template = ChatTemplate(source_of(arguments, "calls", "text"), {})
    sent, expected = SENT[kind]
    text = template.render([USER, call(sent)])
    assert "[weather " in text
    if isinstance(expected, str):
        escaped = json.dumps(expected)[1:-1]
        assert expected in text or escaped in text
    for value in expected.values() if isinstance(expected, dict) else ():
        assert str(value) in text or json.dumps(value)[1:-1] in text


@given(st.text(max_size=30), st.sampled_from(sorted(ARGUMENTS)))
def test_no_text_is_refused_as_arguments(text: str, arguments: str) -> None:
    assert "[weather " in _TEMPLATES[arguments].render([USER, call(text)])


_TEMPLATES = {kind: ChatTemplate(source_of(kind, "calls", "text"), {}) for kind in ARGUMENTS}


def test_valid_arguments_go_to_templates_of_text_as_they_were_written() -> None:
    template = ChatTemplate(source_of("text by +", "calls", "text"), {})
    assert '[weather {"a":1,  "b":"ü"}]' in template.render([USER, call('{"a":1,  "b":"ü"}')])
    assert '[weather {"a": "ü"}]' in template.render([USER, call({"a": "ü"})])


@pytest.mark.parametrize(
    "source",
    [
        "fixed",
        "{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}",
    ],
)
def test_a_template_that_leaves_out_the_user_is_an_error_at_start_with_its_name(
    source: str,
) -> None:
    with pytest.raises(
        ModelError, match=r"x\.jinja leaves out what the user says.*--chat-template"
    ):
        ChatTemplate(source, {}, place="x.jinja")


def test_so_is_one_that_leaves_out_calls_it_has_a_branch_for() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls and m.x %}{% endif %}{% endfor %}"
    )
    with pytest.raises(ModelError, match=r"x\.jinja mentions tool_calls, and leaves calls out"):
        ChatTemplate(source, {}, place="x.jinja")


def test_one_without_a_branch_refuses_the_conversation_instead() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert template.render([USER]) == "asked"
    with pytest.raises(RequestError, match=r"messages\[1\]\.tool_calls: .* no place for calls"):
        template.render([USER, call("{}")])


def test_a_template_that_wants_a_system_message_first_is_served() -> None:
    source = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert template.render([{"role": "system", "content": "be "}, USER]) == "be asked"
    with pytest.raises(RequestError, match="no system"):
        template.render([USER])


TURNS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
HEAD_ALONE = (
    "{% if messages[0].role == 'system' %}[system] {{ messages[0].content }}\n"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role != ('assistant' if loop.index0 % 2 else 'user') %}"
    "{{ raise_exception('turns') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)
SILENT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "[{{ m.role }}] {{ m.content }}\n{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (TURNS, "[system] a\n[user] b\n[system] c\n[assistant] d\n[system] e\n[user] f\n"),
        (HEAD_ALONE, "[system] a\n[user] b\n\nc\n[assistant] d\n[user] e\n\nf\n"),
        (SILENT, "[system] a\n[user] b\n\nc\n[assistant] d\n[user] e\n\nf\n"),
    ],
)
def test_what_the_system_says_later_is_shown_by_every_template(source: str, shown: str) -> None:
    """Where it stands, or by the user where the template has no place for it."""
    roles = ("system", "user", "system", "assistant", "system", "user")
    messages = [{"role": role, "content": said} for role, said in zip(roles, "abcdef", strict=True)]
    assert ChatTemplate(source, {}).render(messages) == shown


def test_several_heads_are_one_where_only_one_has_a_place() -> None:
    messages = [{"role": "system", "content": text} for text in "ab"]
    prompt = ChatTemplate(HEAD_ALONE, {}).render([*messages, {"role": "user", "content": "c"}])
    assert prompt == "[system] a\n\nb\n[user] c\n"
