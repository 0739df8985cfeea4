"""Conversations as clients send them, of every kind that chat templates are known to trip over, and
shapes of tools. Each names the words of which none may be missing in the prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """messages: of a chat. words: that the prompt has, in whatever order; ordered: in this order;
    thoughts: reasoning, as far as the template shows any. continues: the last message is to go
    on."""

    messages: Sequence[Message]
    words: Sequence[str] = ()
    ordered: Sequence[str] = ()
    thoughts: Sequence[str] = ()
    continues: bool = False


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def system(text: str, role: str = "system") -> Message:
    return {"role": role, "content": text}


def calling(*values: str, content: str | None = None, **more: Any) -> Message:
    """A message with calls, the n-th with the id of n."""
    calls = [call(value, number) for number, value in enumerate(values)]
    return assistant(content, tool_calls=calls, **more)


def call(value: str, number: int = 0, identity: str | None = None, arguments: Any = None) -> Any:
    written = json.dumps({"city": value}, ensure_ascii=False) if arguments is None else arguments
    name = NAMES[number]
    function = {"name": name, "arguments": written}
    return {"id": identity or f"callid00{number}", "type": "function", "function": function}


def result(text: Any, number: int = 0, identity: str | None = None) -> Message:
    return {"role": "tool", "tool_call_id": identity or f"callid00{number}", "content": text}


NAMES = ("weather", "forecast")
ASK = user("zqaskqz")
_ONE = [ASK, calling("zqparisqz"), result("zqsunqz")]
_FOREIGN = (
    "toolu_01A09q90qw90lq917835lq9", "call_abc123def456", "functions.weather:7", "chatcmpl-tool-ü",
    "0", "d3b07384-d9a0-4c2b-9f3e-1a2b3c4d5e6f",
)  # fmt: skip
CONVERSATIONS: dict[str, Conversation] = {
    "plain": Conversation([ASK], ordered=["zqaskqz"]),
    "system": Conversation([system("zqsysqz"), ASK], ["zqsysqz"], ["zqaskqz"]),
    "developer": Conversation([system("zqdevqz", "developer"), ASK], ["zqdevqz"], ["zqaskqz"]),
    "late system": Conversation(
        [ASK, assistant("zqyesqz"), user("zqmoreqz"), system("zqlateqz")],
        ordered=["zqaskqz", "zqyesqz", "zqmoreqz", "zqlateqz"],
    ),
    "several systems": Conversation(
        [system("zqoneqz"), system("zqtwoqz"), ASK], ["zqoneqz", "zqtwoqz"], ["zqaskqz"]
    ),
    "system between turns": Conversation(
        [system("zqoneqz"), ASK, system("zqtwoqz"), assistant("zqyesqz"), user("zqmoreqz")],
        ["zqoneqz"],
        ["zqaskqz", "zqtwoqz", "zqyesqz", "zqmoreqz"],
    ),
    "system alone": Conversation([system("zqsysqz")], ["zqsysqz"]),
    "system before a result": Conversation([system("zqsysqz"), *_ONE], ["zqsysqz", "zqsunqz"]),
    "two users": Conversation([ASK, user("zqmoreqz")], ordered=["zqaskqz", "zqmoreqz"]),
    "instructions, environment, question": Conversation(
        [system("zqdevqz", "developer"), user("zqenvqz"), ASK], ["zqdevqz"], ["zqenvqz", "zqaskqz"]
    ),
    "assistant first": Conversation(
        [assistant("zqhelloqz"), ASK], ordered=["zqhelloqz", "zqaskqz"]
    ),
    "two assistants": Conversation(
        [ASK, assistant("zqyesqz"), assistant("zqnoqz"), user("zqmoreqz")],
        ordered=["zqaskqz", "zqyesqz", "zqnoqz", "zqmoreqz"],
    ),
    "empty turn": Conversation([ASK, assistant(""), user("zqmoreqz")], ["zqaskqz", "zqmoreqz"]),
    "continued": Conversation([ASK, assistant("zqbegunqz")], ["zqbegunqz"], continues=True),
    "one call": Conversation(_ONE, ordered=["zqaskqz", "zqparisqz", "zqsunqz"]),
    "two calls": Conversation(
        [ASK, calling("zqparisqz", "zqromeqz"), result("zqsunqz"), result("zqrainqz", 1)],
        ["zqparisqz", "zqromeqz", "weather", "forecast"],
        ["zqaskqz", "zqparisqz", "zqsunqz", "zqrainqz"],
    ),
    "results out of order": Conversation(
        [ASK, calling("zqparisqz", "zqromeqz"), result("zqrainqz", 1), result("zqsunqz")],
        ["zqromeqz"],
        ["zqaskqz", "zqparisqz", "zqsunqz", "zqrainqz"],
    ),
    "result apart": Conversation(
        [ASK, calling("zqparisqz"), user("zqmoreqz"), result("zqsunqz")],
        ordered=["zqaskqz", "zqparisqz", "zqsunqz", "zqmoreqz"],
    ),
    "orphan": Conversation([ASK, result("zqsunqz"), user("zqmoreqz")], ["zqsunqz", "zqmoreqz"]),
    "user behind a result": Conversation(
        [*_ONE, user("zqmoreqz")], ordered=["zqparisqz", "zqsunqz", "zqmoreqz"]
    ),
    "several rounds": Conversation(
        [*_ONE, assistant("zqyesqz"), user("zqmoreqz"), calling("zqromeqz"), result("zqrainqz")],
        ordered=["zqparisqz", "zqsunqz", "zqyesqz", "zqmoreqz", "zqromeqz", "zqrainqz"],
    ),
    "text beside calls": Conversation(
        [ASK, calling("zqparisqz", content="zqsaidqz"), result("zqsunqz")],
        ["zqsaidqz", "zqparisqz", "zqsunqz"],
    ),
    "reasoning beside calls": Conversation(
        [ASK, calling("zqparisqz", reasoning="zqthinkqz"), result("zqsunqz")],
        ["zqparisqz", "zqsunqz"],
        thoughts=["zqthinkqz"],
    ),
    "all beside calls": Conversation(
        [
            ASK,
            calling("zqparisqz", "zqromeqz", content="zqsaidqz", reasoning="zqthinkqz"),
            result("zqsunqz"),
            result("zqrainqz", 1),
        ],
        ["zqsaidqz", "zqparisqz", "zqromeqz", "zqsunqz", "zqrainqz"],
        thoughts=["zqthinkqz"],
    ),
    "no arguments": Conversation(
        [ASK, assistant("", tool_calls=[call("", arguments="{}")]), result("zqsunqz")],
        ["weather", "zqsunqz"],
    ),
    "blank arguments": Conversation(
        [ASK, assistant(None, tool_calls=[call("", arguments="")]), result("zqsunqz")],
        ["weather", "zqsunqz"],
    ),
    "arguments cut": Conversation(
        [ASK, assistant(None, tool_calls=[call("", arguments='{"city": "zqpar')]), result("zqsun")],
        ["zqpar", "zqsun"],
    ),
    "result in parts": Conversation(
        [
            ASK,
            calling("zqparisqz"),
            result([{"type": "text", "text": "zqsunqz"}, {"type": "text", "text": "zqwindqz"}]),
        ],
        ["zqsunqz", "zqwindqz"],
    ),
    "answer in channels": Conversation(
        [
            ASK,
            assistant(
                "<|channel|>analysis<|message|>zqthinkqz<|end|><|start|>assistant"
                "<|channel|>final<|message|>zqyesqz"
            ),
            user("zqmoreqz"),
        ],
        ordered=["zqaskqz", "zqyesqz", "zqmoreqz"],
    ),
    "empty result": Conversation([ASK, calling("zqparisqz"), result("")], ["zqparisqz"]),
    "unicode": Conversation(
        [user("zq語🌞qz"), calling("zqZürichqz"), result("zqвесна́qz")],
        ["zq語🌞qz", "zqZürichqz", "zqвесна́qz"],
    ),
} | {
    f"foreign id {identity}": Conversation(
        [
            ASK,
            assistant(None, tool_calls=[call("zqparisqz", identity=identity)]),
            result("zqsunqz", identity=identity),
        ],
        ["weather"],
        ["zqaskqz", "zqparisqz", "zqsunqz"],
    )
    for identity in _FOREIGN
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Tools, and the words of theirs that the prompt has."""

    tools: Sequence[Any] = ()
    words: Sequence[str] = field(default=())


def _tool(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def _with(properties: Any, **more: Any) -> ToolSet:
    parameters = {"type": "object", "properties": properties, **more}
    return ToolSet(
        [_tool(description="zqtoolqz", parameters=parameters)], ["weather", "zqtoolqz", *properties]
    )


_CITY = {"zqcityqz": {"type": "string", "description": "Where."}}
TOOL_SETS: dict[str, ToolSet] = {
    "none": ToolSet(),
    "whole": _with(_CITY, required=["zqcityqz"]),
    "no description": ToolSet(
        [_tool(parameters={"type": "object", "properties": _CITY})], ["weather", "zqcityqz"]
    ),
    "no parameters": ToolSet([_tool(description="zqtoolqz")], ["weather", "zqtoolqz"]),
    "name alone": ToolSet([_tool()], ["weather"]),
    "nulls": ToolSet([_tool(description=None, parameters=None)], ["weather"]),
    "empty parameters": ToolSet([_tool(description="zqtoolqz", parameters={})], ["zqtoolqz"]),
    "no properties": ToolSet(
        [_tool(description="zqtoolqz", parameters={"type": "object", "properties": {}})],
        ["weather", "zqtoolqz"],
    ),
    "no type": ToolSet(
        [_tool(description="zqtoolqz", parameters={"properties": {"zqcityqz": {}}})],
        ["weather", "zqcityqz"],
    ),
    "nested": _with(
        {"zqplaceqz": {"type": "object", "properties": {"zqstreetqz": {"type": "string"}}}}
    ),
    "enum": _with({"zqunitqz": {"type": "string", "enum": ["C", "F"]}}),
    "enum of mixed values": _with({"zqunitqz": {"enum": ["C", 1, None, True]}}),
    "array": _with({"zqdaysqz": {"type": "array", "items": {"type": "integer"}}}),
    "array without items": _with({"zqdaysqz": {"type": "array"}}),
    "anyOf": _with({"zqdayqz": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}),
    "types": _with({"zqdayqz": {"type": ["integer", "null"], "default": None}}),
    "reference": _with(
        {"zqdayqz": {"$ref": "#/$defs/day"}}, **{"$defs": {"day": {"type": "null"}}}
    ),
    "unicode": _with({"zqstädteqz": {"type": "string", "description": "Où? 語"}}),
    "several": ToolSet(
        [
            _tool(description="zqtoolqz", parameters={"type": "object", "properties": _CITY}),
            _tool("forecast", parameters={"type": "object", "properties": {"zqdayqz": {}}}),
            _tool("zqplainqz"),
        ],
        ["weather", "zqtoolqz", "zqcityqz", "forecast", "zqdayqz", "zqplainqz"],
    ),
}  # fmt: skip
