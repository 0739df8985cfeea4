"""Templates with traits of published ones, in every pair: whatever a template insists on, it is
given every kind of conversation in a form that it shows whole."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from atom.answer_parsing import AddedTokens
from atom.chat_template import ChatTemplate
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.errors import RequestError
from atom.message_shape.call_ids import CallIds, fitted
from atom.message_shape.call_results import paired
from atom.message_shape.turns import alternating
from atom.model_engine.front.answer_notation import resolve_notation
from tests.support.published.conversations import CONVERSATIONS, TOOL_SETS, call, calling, result
from tests.support.published.models import PublishedModel

RAISE = "{{ raise_exception('unfit') }}"
# By trait: where its lines go, and what they are.
TRAITS: dict[str, dict[str, str]] = {
    "turns alternate": {
        "head": (
            "{%- set ns = namespace(turn=0) %}{%- for m in messages %}"
            "{%- if m.role in ('user', 'assistant') and not m.tool_calls %}"
            "{%- if (m.role == 'user') != (ns.turn % 2 == 0) %}" + RAISE + "{%- endif %}"
            "{%- set ns.turn = ns.turn + 1 %}{%- endif %}{%- endfor %}"
        )
    },
    "a user speaks": {
        "head": (
            "{%- if not messages | selectattr('role', 'equalto', 'user') | list %}"
            + RAISE
            + "{%- endif %}"
        )
    },
    "system at the head": {"system": "{%- if not loop.first %}" + RAISE + "{%- endif %}"},
    "no system": {"system": RAISE},
    "late systems are dropped": {"system": "{%- if not loop.first %}{%- continue %}{%- endif %}"},
    "one call": {"call": "{%- if m.tool_calls | length > 1 %}" + RAISE + "{%- endif %}"},
    "second calls are dropped": {"calls": "{%- if not loop.first %}{%- continue %}{%- endif %}"},
    "ids of nine": {
        "calls": "{%- if c.id | length != 9 %}" + RAISE + "{%- endif %}",
        "tool": "{%- if m.tool_call_id | length != 9 %}" + RAISE + "{%- endif %}",
    },
    "names of results": {"tool": "{{ '' + m.name }}"},
    "results follow their calls": {
        "tool": (
            "{%- if messages[loop.index0 - 1].role != 'tool' and not "
            "messages[loop.index0 - 1].tool_calls %}" + RAISE + "{%- endif %}"
        )
    },
    "results are dropped": {"tool": "{%- continue %}"},
    "text beside calls is dropped": {"call": "{%- set content = '' %}"},
    "text and reasoning are refused": {
        "call": "{%- if content and m.thinking %}" + RAISE + "{%- endif %}"
    },
    "empty turns are refused": {"answer": "{%- if not content %}" + RAISE + "{%- endif %}"},
    "calls are dropped": {"call": "[{{ content }}]{%- continue %}"},
    "descriptions": {"each": "{{ '// ' + t.description }}"},
    "parameters": {"each": "{%- for k in t.parameters.properties.items() %}{%- endfor %}"},
    "types of parameters": {
        "each": (
            "{%- for k, v in (t.parameters.properties or {}).items() %}{{ k + ':' + v.type }}"
            "{%- endfor %}"
        )
    },
    "tools of the system's message": {
        "tools": "{%- set tools = messages[0].tools if messages[0].role == 'system' else none %}"
    },
    "tools as a text of the system's message": {
        "tools": (
            "{%- set tools = none %}{%- if messages[0].role == 'system' and messages[0].tools %}"
            "{{ '<|tool|>' + messages[0].tools + '<|/tool|>' }}{%- endif %}"
        )
    },
    "tools of another name": {"tools": "{%- set tools = xml_tools %}"},
    "no tools": {"tools": "{%- set tools = none %}"},
    "tools without a look": {"tools": "{%- for tool in tools %}{%- endfor %}"},
}


def source_of(*traits: str) -> str:
    def part(place: str) -> str:
        return "".join(TRAITS[trait].get(place, "") for trait in traits)

    return (
        f"{part('head')}{part('tools')}"
        "{%- for tool in tools or () %}{%- set t = tool.function or tool %}"
        f"{part('each')}[tool {{{{ t | tojson }}}}]{{%- endfor %}}\n"
        "{%- for m in messages %}{%- set content = m.content or '' %}"
        "{%- if m.role == 'system' %}" + part("system") + "[system {{ content }}]"
        "{%- elif m.role == 'user' %}[user {{ content }}]"
        "{%- elif m.role == 'tool' %}" + part("tool") + "[result {{ content }}]"
        "{%- elif m.tool_calls %}" + part("call") + "[thought {{ m.thinking }}][said {{ content }}]"
        "{%- for c in m.tool_calls %}" + part("calls") + "<tool_call>\n"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
        "</tool_call>{%- endfor %}"
        "{%- else %}" + part("answer") + "[assistant {{ content }}]{%- endif %}\n"
        "{%- endfor %}"
    )


def model_of(*traits: str) -> PublishedModel:
    source = source_of(*traits)
    if "calls are dropped" in traits:  # and it does not say that it has any
        source = source.replace(".tool_calls", "['tool_' + 'calls']")
    notation = resolve_notation(ChatTemplate(source, {}), "auto", "auto", AddedTokens())
    return PublishedModel(" and ".join(traits), source, notation)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", TRAITS)
def test_every_pair_of_traits_is_given_what_it_shows(first: str) -> None:
    kinds = list(CONVERSATIONS)
    for second in list(TRAITS)[list(TRAITS).index(first) :]:
        if first != second and "tools" in TRAITS[first] and "tools" in TRAITS[second]:
            continue  # one source of tools to a template
        model = model_of(*dict.fromkeys((first, second)))
        for number, kind in enumerate(kinds):
            tools = list(TOOL_SETS)[number % len(TOOL_SETS)]
            found = prompt_of(model, kind, tools)
            conversation, offered = CONVERSATIONS[kind], TOOL_SETS[tools]
            words = (*conversation.words, *conversation.ordered, *offered.words)
            missing = [
                word for word in words if word not in found and json.dumps(word)[1:-1] not in found
            ]
            assert missing == [], (model.name, kind, tools, found)


def prompt_of(model: PublishedModel, kind: str, tools: str) -> str:
    conversation = CONVERSATIONS[kind]
    fields: dict[str, Any] = {"model": "m", "messages": list(conversation.messages)}
    if TOOL_SETS[tools].tools:
        fields["tools"] = list(TOOL_SETS[tools].tools)
    if conversation.continues:
        fields["continue_final_message"] = True
    try:
        return model.prompt(ChatCompletionRequest.model_validate_json(json.dumps(fields)))
    except RequestError as error:
        return f"refused: {error}"


def test_results_stand_behind_their_calls_in_their_order() -> None:
    later = {"role": "user", "content": "later"}
    asked = calling("a", "b")
    results = [result("of b", 1), result("of a")]
    for places in itertools.permutations([later, *results]):
        told = paired([asked, *places], single=False)
        assert told == [asked, result("of a"), result("of b", 1), later]


def test_several_calls_become_messages_of_one_each_with_its_result() -> None:
    asked = calling("a", "b", content="said", reasoning="thought")
    first, of_a, second, of_b = paired([asked, result("of b", 1), result("of a")], single=True)
    assert (first["content"], first["reasoning"]) == ("said", "thought")
    assert [each["tool_calls"][0]["id"] for each in (first, second)] == ["callid000", "callid001"]
    assert (second["content"], "reasoning" in second) == ("", False)
    assert (of_a["content"], of_b["content"]) == ("of a", "of b")


def test_an_id_that_was_used_before_is_the_last_calls() -> None:
    turns = [calling("a"), result("of a"), calling("b"), result("of b")]
    assert paired(turns, single=False) == turns


@pytest.mark.parametrize(
    "identity", ["", "x", "toolu_01A09q90", "functions.f:0", "ü" * 40, "0" * 9]
)
def test_ids_are_fitted_the_same_way_each_time(identity: str) -> None:
    message = {"role": "assistant", "tool_calls": [call("a", identity=identity or " ")]}
    turns = [message, result("of a", identity=identity or " ")]
    once, again = (fitted(turns, CallIds.NINE) for _ in range(2))
    assert once == again
    made = once[0]["tool_calls"][0]["id"]
    assert made == once[1]["tool_call_id"]
    assert len(made) == 9
    assert made.isascii()
    assert made.isalnum()
    assert fitted(once, CallIds.NINE) == once


@pytest.mark.parametrize("turns", itertools.product(["user", "assistant"], repeat=5))
def test_turns_alternate_and_lose_no_word(turns: tuple[str, ...]) -> None:
    messages = [{"role": role, "content": f"w{place}"} for place, role in enumerate(turns)]
    told = alternating(messages, "")
    roles = [message["role"] for message in told]
    assert roles == (["user", "assistant"] * 5)[: len(roles)]
    words = "\n\n".join(message["content"] for message in told if message["content"])
    assert words == "w0\n\nw1\n\nw2\n\nw3\n\nw4"
