# ruff: noqa: E501
"""One policy for calls that are written wrong, whatever the family: mended, or text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from tests.engine.answer_parsing.pieces import calls_of, content_of, events_of
from tests.engine.answer_parsing.written import WITH_JSON, WRITERS

_S, _I, _B = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def _tool(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TOOLS: dict[str, Any] = {
    "f": _tool(a=_S, b=_S, n=_I, s=_S),
    "g": _tool(x={"type": "array"}, q=_S),
    "set_flag": _tool(enabled=_B),
    "tool_12": None,
    "grep_tool": _tool(pattern=_S, path=_S),
    "bash": _tool(cmd=_S, timeout=_I),
    "write": _tool(text=_S, path=_S),
    "mail": _tool(**{"from": _S, "to": _S, "class": _S}),
    "weather": _tool(city=_S, days=_I),
    "time": None,
}
A = [("f", {"a": "x"})]
TWO = [("f", {"a": "x"}), ("time", {})]
D = "｜DSML｜"


def parsing_of(name: str) -> AnswerParsing:
    channels = name == "openai"
    return AnswerParsing(
        reasoning=ReasoningStart.POSSIBLE if channels else ReasoningStart.OVER,
        marks=None if channels else THINK,
        calls=WRITERS[name][0],
        tools=TOOLS,
    )


def found(name: str, answer: str, *, ended: bool = True) -> tuple[list[Any], str]:
    """Calls and content, which are the same for the whole and for single characters."""
    whole = events_of(parsing_of(name), [answer], ended=ended)
    assert events_of(parsing_of(name), answer, ended=ended) == whole
    return [(called, json.loads(text)) for called, text in calls_of(whole)], content_of(whole)


def _dsml(body: str, section: str = "function_calls", name: str = 'name="f"') -> str:
    return f"<{D}{section}>\n<{D}invoke {name}>\n{body}\n</{D}invoke>\n</{D}{section}>"


def _qwen(body: str, head: str = "<function=bash>") -> str:
    return f"<tool_call>\n{head}\n{body}\n</function>\n</tool_call>"


def _lfm2(calls: str) -> str:
    return f"<|tool_call_start|>{calls}<|tool_call_end|>"


def _hermes(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "answer", "calls"),
    [
        # Marks without the family's sign, attributes in any order, other quotes, JSON bodies.
        ("deepseek_v32", _dsml(f'<parameter name="enabled">true</{D}parameter>', name='name="set_flag"'), [("set_flag", {"enabled": True})]),
        ("deepseek_v32", _dsml('{"enabled": true}', name='name="set_flag"'), [("set_flag", {"enabled": True})]),
        ("deepseek_v32", _dsml(f"<{D}parameter name='a' string='true'>x</{D}parameter>", name="name='f'"), A),
        ("deepseek_v32", _dsml(f'<{D}parameter string="true" name="a">x</{D}parameter>'), A),
        ("deepseek_v32", _dsml(f'<{D}parameter name="a" string="true">x</parameter>'), A),
        ("deepseek_v32", _dsml(f'<{D}parameter name="a" string="true">x</{D}parameter>', "tool_calls"), A),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="f">\n{"a": "x"}\n</invoke>\n</minimax:tool_call>', A),
        ("qwen3_coder", _qwen('{"cmd": "ls"}'), [("bash", {"cmd": "ls"})]),
        ("qwen3_coder", _hermes('{"name": "f", "arguments": {"a": "x"}}'), A),
        ("glm45", _hermes('f\n{"a": "x"}'), A),
        ("glm45", _hermes('{"name": "f", "arguments": {"a": "x"}}'), A),
        ("lfm2", _lfm2('[{"name": "f", "arguments": {"a": "x"}}]'), A),
        # Marks end names and values.
        ("glm45", "<tool_call>tool_12</arg_value></tool_call>", [("tool_12", {})]),
        ("glm45", "<tool_call>grep_toolpattern</arg_key><arg_value>x</arg_value></tool_call>", [("grep_tool", {"pattern": "x"})]),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x\n<arg_key>b</arg_key>\n<arg_value>y</arg_value>\n</tool_call>", [("f", {"a": "x", "b": "y"})]),
        ("qwen3_coder", _qwen("<parameter=\ntimeout 7\n</parameter>\n<parameter=cmd>\nls\n</parameter>"), [("bash", {"timeout": 7, "cmd": "ls"})]),
        ("qwen3_coder", _qwen("<parameter=a>\nx\n<parameter=b>\ny\n</parameter>", "<function=f>"), [("f", {"a": "x", "b": "y"})]),
        ("qwen3_coder", _qwen("<parameter=cmd>\nls\n</parameter>", "<function=bash >"), [("bash", {"cmd": "ls"})]),
        ("qwen3_coder", _qwen("<parameter=cmd>\nls"), [("bash", {"cmd": "ls"})]),
        ("qwen3_coder", _qwen("<parameter=cmd>\nls\n</parameter>") + "\n</tool_call>", [("bash", {"cmd": "ls"})]),
        ("seed_oss", "<seed:tool_call><function=f><parameter=a>x\n<parameter=b>y</parameter></function></seed:tool_call>", [("f", {"a": "x", "b": "y"})]),
        ("gemma4", "<|tool_call>:f{n:5}<tool_call|>", [("f", {"n": 5})]),
        ("gemma4", "<|tool_call>call:f(n=5)<tool_call|>", [("f", {"n": 5})]),
        ("gemma4", "<|tool_call>call:set_flag{enabled:True}<tool_call|>", [("set_flag", {"enabled": True})]),
        ("gemma4", "<|tool_call>call:f{n:+5}<tool_call|>", [("f", {"n": 5})]),
        ("gemma4", '<|tool_call>call:f{a:x<|"|>}<tool_call|>', A),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x}<tool_call|>', A),
        # Python, and more than Python.
        ("lfm2", _lfm2('[write(text="a\nb")]'), [("write", {"text": "a\nb"})]),
        ("llama4_pythonic", '[write(text="a\nb")]', [("write", {"text": "a\nb"})]),
        ("olmo3", '<function_calls>write(text="a\nb")\nmail(from="x")</function_calls>', [("write", {"text": "a\nb"}), ("mail", {"from": "x"})]),
        ("lfm2", _lfm2('[mail(from="x", class="y")]'), [("mail", {"from": "x", "class": "y"})]),
        ("lfm2", _lfm2('[g(x={1, 2}, q=f"abc")]'), [("g", {"x": [1, 2], "q": "abc"})]),
        ("lfm2", _lfm2('[weather("Paris", 3)]'), [("weather", {"city": "Paris", "days": 3})]),
        ("lfm2", _lfm2('[weather(city="Paris", city="Rome")]'), [("weather", {"city": "Rome"})]),
        ("lfm2", _lfm2('f(a="x")'), A),
        ("lfm2", _lfm2('[f(a="x)]'), A),
        ("lfm2", '<|tool_call_start|>[f(a="x" # why', A),
        ("lfm2", _lfm2('[f(a="x" # why )\n)]'), A),
        ("lfm2", _lfm2("[f(a='it's')]"), [("f", {"a": "it's"})]),
        ("llama4_pythonic", '[write(text="""a\n"b" c""")]', [("write", {"text": 'a\n"b" c'})]),
        # Marks around what was found.
        ("kimi_k2", '<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "x"}<|tool_call_end|><|tool_call_section_end|>', A),
        ("llama3_json", '{"type": "function", "function": {"name": "f", "parameters": {"a": "x"}}}', A),
        ("llama3_json", '[{"name": "f", "parameters": {"a": "x"}}, {"name": "time", "parameters": {}}]', TWO),
        ("llama3_json", '```json\n{"name": "f", "parameters": {"a": "x"}}\n```', A),
        ("llama3_json", '{"name": "f", "parameters": {"a": "x"}}}}', A),
        ("hermes", _hermes('[{"name": "f", "arguments": {"a": "x"}}, {"name": "time", "arguments": {}}]'), TWO),
        ("hermes", _hermes('{"name": "f", "arguments": {"a": "x"}}\n{"name": "time", "arguments": {}}'), TWO),
        ("hermes", _hermes('{"name": "f", "arguments": {"a": "x"}{"a": "x"}}'), A),
        ("hermes", _hermes('{"name": "f", "arguments": {"a": "x"}}{"a": "x"}}'), A),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}]]', A),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "x"}{"a": "x"}}', A),
        # One notation written for its neighbour.
        ("deepseek_v31", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', A),
        ("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "x"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', A),
    ],
)  # fmt: skip
def test_what_is_meant_is_called_and_leaves_no_mark(
    name: str, answer: str, calls: list[Any]
) -> None:
    assert found(name, answer) == (calls, "")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("deepseek_v32", _dsml("just words")),
        ("deepseek_v32", _dsml("<a>x</a>")),
        ("qwen3_coder", _qwen("ls -l")),
        ("qwen3_coder", _qwen("<parameter=\n???\n</parameter>")),
        ("glm45", "<tool_call>f\nwords\n</tool_call>"),
        ("gemma4", "<|tool_call>call:f{junk}<tool_call|>"),
        ("gemma4", "<|tool_call>call:f prose<tool_call|>"),
        ("hermes", _hermes('{"name": "f", "arguments": "words"}')),
        ("hermes", _hermes('{"name": "f", "arguments": [1]}')),
        ("hermes", _hermes('{"name": "f", "arguments": {words}}')),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>words<|tool_call_end|><|tool_calls_section_end|>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]words"),
        ("lfm2", _lfm2('[weather("Paris", city="Rome")]')),
        ("lfm2", _lfm2("[weather(3)]")),
        ("lfm2", _lfm2('[write(text=f"{x}")]')),
        ("lfm2", _lfm2('[write(text=open("x"))]')),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_stays_text(name: str, answer: str) -> None:
    assert found(name, answer) == ([], answer)


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "openai"])
def test_a_name_that_no_tool_has_stays_text(name: str) -> None:
    answer = WRITERS[name][1]([("nobody", {"a": "x"})])
    assert found(name, answer) == ([], answer)


@pytest.mark.parametrize("name", WITH_JSON)
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('{"a": "x",\n\n "n": 007 // why\n}', {"a": "x", "n": 7}),
        ("{a: \"x\", n: NaN}", {"a": "x", "n": None}),
        ("{'a': 'it\\'s', 'b': [1, 2,],}", {"a": "it's", "b": [1, 2]}),
        ("{'a': (1, 'x')}", {"a": [1, "x"]}),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": "he said "no" to me", "b": "\\d"}', {"a": 'he said "no" to me', "b": "\\d"}),
        ('{"a": "x" "b": /* why */ 2}', {"a": "x", "b": 2}),
        ('{"a": [1, 2}', {"a": [1, 2]}),
        ('{"a": , "b": .5, "c": -}', {"a": None, "b": 0.5, "c": "-"}),
    ],
)  # fmt: skip
def test_arguments_are_mended_alike_in_every_family(
    name: str, written: str, arguments: dict[str, Any]
) -> None:
    answer = WRITERS[name][1]([("f", {})], lambda _: written)
    assert found(name, answer) == ([("f", arguments)], "")
