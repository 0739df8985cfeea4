"""Probe conversations: render them with a chat template at start and check that it shows them
whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atom.message_shape.contents import Message

TEXT, SAID, VALUE, KEY, RESULT = "xqtextqx", "xqsaidqx", "xqvalueqx", "xqkeyqx", "xqresultqx"
LATE, MORE, THOUGHT, DESCRIBED = "xqlateqx", "xqmoreqx", "xqthoughtqx", "xqdescribedqx"
NAME, OTHER_NAME, OTHER_VALUE = "xqnameqx", "xqothernameqx", "xqothervalueqx"
OTHER_RESULT, HEAD = "xqotherresultqx", "xqheadqx"
NINE_ID, OTHER_ID = "xqcallqx1", "xqcallqx2"  # Mistral's ids have nine characters
FOREIGN_ID = "call_xq-foreign_0123456789"


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation. words: that the prompt has, in this order; loose: in whatever order. calls:
    names and values of its calls, each name before its value."""

    messages: Sequence[Message]
    words: Sequence[str] = ()
    loose: Sequence[str] = ()
    calls: Sequence[tuple[str, str]] = ()
    tools: Sequence[dict[str, Any]] | None = None

    def shown_by(self, text: str | None) -> bool:
        """Return whether a rendering has all of the probe's words and calls."""
        if text is None or not all(word in text for word in self.loose):
            return False
        at = 0
        for word in self.words:
            at = text.find(word, at)
            if at < 0:
                return False
        return all(_shows_call(text, name, value) for name, value in self.calls)


def _shows_call(text: str, name: str, value: str) -> bool:
    """Return whether the text has the call and not only its tool, whose description has the name
    and the key but not the value. Tools may be at the head or beside the user's text."""
    before, found, _ = text.partition(value)
    said = before.rpartition(TEXT)[2] if TEXT in before else before
    return bool(found) and name in said and KEY in said


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    """Make a message."""
    return {"role": role, "content": content, **more}


def tool(name: str = NAME, **left_out: None) -> dict[str, Any]:
    """Make a tool; left_out: fields that it lacks."""
    function: dict[str, Any] = {
        "name": name,
        "description": DESCRIBED,
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "A probe."}},
            "required": [KEY],
        },
    }
    return {
        "type": "function",
        "function": {key: value for key, value in function.items() if key not in left_out},
    }


def untyped_tool() -> dict[str, Any]:
    """Make a tool whose parameters have no type."""
    made = tool()
    del made["function"]["parameters"]["type"]
    return made


TOOLS = [tool(), tool(OTHER_NAME)]


def call(identity: str = NINE_ID, name: str = NAME, value: str = VALUE) -> dict[str, Any]:
    """Make a call with its arguments as a client sends them."""
    function = {"name": name, "arguments": json.dumps({KEY: value})}
    return {"id": identity, "type": "function", "function": function}


def called(
    content: str = "", *, identity: str = NINE_ID, several: bool = False, **more: Any
) -> dict[str, Any]:
    """Make a message of the assistant with a call, or two."""
    calls = [call(identity)]
    if several:
        calls.append(call(OTHER_ID, OTHER_NAME, OTHER_VALUE))
    return said("assistant", content, tool_calls=calls, **more)


def result(identity: str = NINE_ID, content: str = RESULT) -> dict[str, Any]:
    """Make the result of a call."""
    return said("tool", content, tool_call_id=identity)


@dataclass(frozen=True, slots=True)
class Turns:
    """Probes without calls, by the trait that they test."""

    late_system: Sequence[Probe] = field(
        default_factory=lambda: (
            Probe([said("system", HEAD), said("user", TEXT)], [HEAD, TEXT]),
            Probe(
                [
                    said("user", TEXT),
                    said("assistant", SAID),
                    said("user", VALUE),
                    said("system", LATE),
                ],
                [TEXT, VALUE, LATE],
                [SAID],
            ),
            Probe(
                [said("system", HEAD), said("system", MORE), said("user", TEXT)],
                [HEAD, MORE, TEXT],
            ),
            Probe(
                [
                    said("system", HEAD),
                    said("user", TEXT),
                    said("system", LATE),
                    said("assistant", SAID),
                    said("user", VALUE),
                ],
                [HEAD, TEXT, LATE, VALUE],
                [SAID],
            ),
        )
    )
    neighbours: Sequence[Probe] = field(
        default_factory=lambda: (
            Probe([said("user", TEXT), said("user", MORE)], [TEXT, MORE]),
            Probe([said("assistant", SAID), said("user", TEXT)], [SAID, TEXT]),
            Probe(
                [
                    said("user", TEXT),
                    said("assistant", SAID),
                    said("assistant", MORE),
                    said("user", VALUE),
                ],
                [TEXT, SAID, MORE, VALUE],
            ),
        )
    )
    first_assistant: Sequence[Probe] = field(
        default_factory=lambda: (
            Probe([said("assistant", SAID), said("user", TEXT)], [SAID, TEXT]),
        )
    )
    no_user: Sequence[Probe] = field(
        default_factory=lambda: (
            Probe([said("system", HEAD)], [HEAD]),
            Probe([said("assistant", SAID)], [SAID]),
        )
    )
    empty: Sequence[Probe] = field(
        default_factory=lambda: (
            Probe([said("user", TEXT), said("assistant", ""), said("user", MORE)], [TEXT, MORE]),
        )
    )


TURNS = Turns()
ASKED = said("user", TEXT)
TWO_CALLS = [(NAME, VALUE), (OTHER_NAME, OTHER_VALUE)]
ONE_CALL = [(NAME, VALUE)]


def whole_call(content: str = "", *, identity: str = NINE_ID, **more: Any) -> Probe:
    """Make a probe of a call and its result."""
    loose = [content] if content else []
    message = called(content, identity=identity, **more)
    messages = [ASKED, message, result(identity)]
    return Probe(messages, [TEXT, VALUE, RESULT], loose, ONE_CALL, TOOLS)


def ended_turn() -> Probe:
    """Make a probe of a call with text, in a turn that ended with an answer."""
    messages = [ASKED, called(SAID), result(), said("assistant", LATE), said("user", MORE)]
    return Probe(messages, [TEXT, VALUE, RESULT, LATE, MORE], [SAID], ONE_CALL, TOOLS)


def results_of_two() -> Probe:
    """Make a probe of two calls of one message, and their results."""
    results = [result(), result(OTHER_ID, OTHER_RESULT)]
    words = [TEXT, VALUE, RESULT, OTHER_RESULT]
    messages = [ASKED, called(several=True), *results]
    return Probe(messages, words, [OTHER_VALUE], TWO_CALLS, TOOLS)


def after_results() -> Probe:
    """Make a probe in which the user speaks after a result."""
    messages = [ASKED, called(), result(), said("user", MORE)]
    return Probe(messages, [TEXT, VALUE, RESULT, MORE], calls=ONE_CALL, tools=TOOLS)


def orphan() -> Probe:
    """Make a probe of a result whose call was cut off."""
    return Probe([ASKED, result(), said("user", MORE)], [TEXT, RESULT, MORE], tools=TOOLS)


def head_before_call() -> Probe:
    """Let the system speak in a conversation that ends with a result."""
    messages = [said("system", HEAD), ASKED, called(), result()]
    return Probe(messages, [VALUE, RESULT], [HEAD, TEXT], ONE_CALL, TOOLS)


def thought_beside_call(content: str = "") -> Probe:
    """Make a probe with reasoning and optional content in the message of a call."""
    words = [THOUGHT, *([content] if content else [])]
    thought: dict[str, Any] = {
        "reasoning_content": THOUGHT,
        "thinking": THOUGHT,
        "reasoning": THOUGHT,
    }
    message = called(content, **thought)
    return Probe([ASKED, message, result()], [VALUE, RESULT], words, ONE_CALL, TOOLS)


def thought_answer() -> Probe:
    """Make a probe of an answer with its reasoning."""
    thought: dict[str, Any] = {
        "reasoning_content": THOUGHT,
        "thinking": THOUGHT,
        "reasoning": THOUGHT,
    }
    return Probe([ASKED, said("assistant", SAID, **thought)], [TEXT, SAID], [THOUGHT])


def tools_shown(*tools: dict[str, Any], described: bool = True, key: bool = True) -> Probe:
    """Make a probe with tools, and optionally their descriptions and parameters."""
    names = [each["function"]["name"] for each in tools]
    words = [*names, *([DESCRIBED] if described else []), *([KEY] if key else [])]
    return Probe([said("system", HEAD), ASKED], [], [*words, TEXT, HEAD], tools=tools)
