# ruff: noqa: E501
"""Calls of marked families as models really write them, mistakes included."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing, Content, Reasoning
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from tests.engine.answer_parsing.pieces import calls_of, content_of, events_of
from tests.engine.answer_parsing.written import WRITERS

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: dict[str, Any] = {"weather": CITY, "time": None}
PARIS = [("weather", {"city": "Paris"})]
THREE = [("weather", {"city": "Paris", "days": 3})]
TIME = [("time", {})]


def parsing_of(name: str) -> AnswerParsing:
    family, _ = WRITERS[name]
    channels = name == "openai"
    return AnswerParsing(
        reasoning=ReasoningStart.POSSIBLE if channels else ReasoningStart.OVER,
        marks=None if channels else THINK,
        calls=family,
        tools=TOOLS,
    )


@pytest.mark.parametrize(
    ("name", "answer", "calls", "content"),
    [
        # The mark around a call, or what closes it, is missing.
        ("qwen3_coder", "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>", PARIS, ""),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>Paris</parameter></tool_call>", PARIS, ""),
        ("qwen3_coder", "<function=other>\n</function>", [], "<function=other>\n</function>"),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis", PARIS, ""),
        ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>", THREE, ""),
        ("glm45", "<tool_call>time</tool_call>", TIME, ""),
        ("glm45", "The mark <tool_call> begins it.", [], "The mark <tool_call> begins it."),
        ("kimi_k2", '<|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{"city": "Paris"}', PARIS, ""),
        ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>weather<|tool_call_argument_begin|>{"city": "Paris"}}<|tool_call_end|>', PARIS, ""),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>", [], "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        ("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n{"city": "Paris"}<｜tool▁call▁end｜>', PARIS, ""),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>", TIME, ""),
        ("deepseek_v31", '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"', PARIS, ""),
        ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n', PARIS, ""),
        ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}', PARIS, ""),
        ("mistral", '[TOOL_CALLS]{"name": "weather", "arguments": {"city": "Paris"}}', PARIS, ""),
        ("mistral_list", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "a1B2c3D4e"}]', PARIS, ""),
        ("mistral", "[TOOL_CALLS] is a mark", [], "[TOOL_CALLS] is a mark"),
        ("llama4_pythonic", "<|python_start|>[weather(city='Paris')]<|python_end|>", PARIS, ""),
        ("llama4_pythonic", "I look: [weather(city=\"Paris\")]\nThere.", PARIS, "I look:\nThere."),
        ("llama4_pythonic", "[weather(city=\"Paris\"", PARIS, ""),
        ("llama4_pythonic", "[weather(city=open('x'))]", [], "[weather(city=open('x'))]"),
        ("llama4_pythonic", "[1, 2] and [weather]", [], "[1, 2] and [weather]"),
        ("llama4_pythonic", "[weather(\"Paris\")]", PARIS, ""),
        ("llama4_pythonic", "[weather(3)]", [], "[weather(3)]"),
        ("minimax_m2", '<minimax:tool_call><invoke name="weather"><parameter name="city">Paris</parameter><parameter name="days">3</parameter></invoke></minimax:tool_call>', THREE, ""),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris', PARIS, ""),
        ("minimax_m2", "<minimax:tool_call> is a mark", [], "<minimax:tool_call> is a mark"),
        ("seed_oss", "<seed:tool_call><function=weather><parameter=city>Paris</parameter></function></seed:tool_call>", PARIS, ""),
        ("seed_oss", "<function=time></function>", TIME, ""),
        ("hunyuan_a13b", '<tool_calls>\n[\n{"name": "weather", "arguments": {"city": "Paris"}}\n]', PARIS, ""),
        ("hunyuan_a13b", "<tool_calls> are calls", [], "<tool_calls> are calls"),
        ("phi4_mini_json", 'functools[{"name": "weather", "arguments": {"city": "Paris"}}', PARIS, ""),
        ("granite", '<tool_call>[{"name": "weather", "arguments": {"city": "Paris"}}]', PARIS, ""),
        ("phi4_mini_json", "functools is a module", [], "functools is a module"),
        ("olmo3", "<function_calls>\nweather(city='Paris')\n</function_calls>", PARIS, ""),
        ("olmo3", "<function_calls>weather(city=open('x'))</function_calls>", [], "<function_calls>weather(city=open('x'))</function_calls>"),
        ("lfm2", "I look. <|tool_call_start|> [weather(city='Paris')] <|tool_call_end|>", PARIS, "I look."),
        ("lfm2", "<|tool_call_start|>[weather(city=\"Paris\"", PARIS, ""),
        ("lfm2", "[weather(city='Paris')]", [], "[weather(city='Paris')]"),
        ("openai", ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>', PARIS, ""),
        ("openai", '<|channel|>analysis to=functions.weather<|message|>{"city": "Paris"}', PARIS, ""),
        ("openai", "<|channel|>commentary to=functions.time<|message|>", TIME, ""),
        ("openai", "It is warm.", [], "It is warm."),
    ],
)  # fmt: skip
def test_what_is_meant_is_found(name: str, answer: str, calls: list[Any], content: str) -> None:
    for pieces in ([answer], list(answer)):
        events = events_of(parsing_of(name), pieces, ended=True)
        assert [(called, json.loads(text)) for called, text in calls_of(events)] == calls
        assert content_of(events) == content


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_that_is_cut_has_what_came_of_it(name: str) -> None:
    """At every character: arguments are the beginning of those of the whole call."""
    _, write = WRITERS[name]
    text = write(THREE)
    ((_, whole),) = calls_of(events_of(parsing_of(name), [text], ended=True))
    longest = ""
    for end in range(len(text)):
        events = events_of(parsing_of(name), [text[:end]])
        for called, arguments in calls_of(events):
            assert called == "weather"
            assert whole.startswith(arguments)
            assert len(arguments) >= len(longest)
            longest = arguments
    assert longest


def test_calls_to_tools_of_the_models_own_are_reasoning() -> None:
    answer = (
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>"
        "<|start|>assistant<|channel|>final<|message|>2"
    )
    assert events_of(parsing_of("openai"), [answer]) == [Reasoning("1 + 1"), Content("2")]
