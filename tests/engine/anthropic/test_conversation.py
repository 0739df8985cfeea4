"""What a conversation of the Messages API becomes for the model, and what is refused of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted

PATH = "/v1/messages"
USER = {"role": "user", "content": "Go."}
TOOL: dict[str, Any] = {"name": "time", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
USE = {"type": "tool_use", "id": "toolu_1", "name": "time", "input": {"zone": "CET"}}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ScriptedRig]:
    async with scripted(tmp_path, in_turn(otherwise=f"Yes.\n{CALL}\n{CALL}")) as rig:
        yield rig


async def ask(rig: ScriptedRig, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "max_tokens": 200, "messages": [USER], **fields}
    response = await rig.post(PATH, **body)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def prompt(rig: ScriptedRig, **fields: Any) -> str:
    await ask(rig, **fields)
    return rig.core.prompts[-1]


async def refusal(rig: ScriptedRig, **fields: Any) -> str:
    body = {"model": "tiny", "max_tokens": 200, "messages": [USER], **fields}
    response = await rig.post(PATH, **body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    return str(error["error"]["message"])


async def test_the_system_prompt_loses_the_line_that_changes(rig: ScriptedRig) -> None:
    """Claude Code's first line: the rest of every prompt begins as the one before."""
    line = "x-anthropic-billing-header: cc_version=2.1.331.f3c; cch={};"
    plain = await prompt(rig, system="Be short.")
    assert plain.startswith("<|im_start|>system\nBe short.<|im_end|>\n")
    assert await prompt(rig, system=f"{line.format(1)}\nBe short.") == plain
    blocks = [{"type": "text", "text": line.format(2)}, {"type": "text", "text": "Be short."}]
    assert await prompt(rig, system=blocks) == plain
    assert "system" not in await prompt(rig, system=[blocks[0]])


async def test_turns_keep_their_places(rig: ScriptedRig) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "another's"}
    hidden = {"type": "redacted_thinking", "data": "c2VjcmV0"}
    result = {
        "type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
        "content": [{"type": "text", "text": "No"}, {"type": "text", "text": "clock."}],
    }  # fmt: skip
    told = await prompt(
        rig,
        tools=[TOOL],
        messages=[
            USER,
            {"role": "system", "content": [{"type": "text", "text": "It is late."}]},
            {"role": "assistant", "content": [thought, hidden, {"type": "text", "text": "I look."},
                                              USE]},
            {"role": "user", "content": [{"type": "text", "text": "Well?"}, result]},
        ],
    )  # fmt: skip
    turns = told[told.index("<|im_start|>user") :]
    assert turns == (
        "<|im_start|>user\nGo.<|im_end|>\n"
        "<|im_start|>system\nIt is late.<|im_end|>\n"
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "time", "arguments": '
        '{"zone": "CET"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nError: No\nclock.\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nWell?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_reasoning_that_was_not_shown_is_read_again(rig: ScriptedRig) -> None:
    """`display: omitted`: it comes back in the signature, so that the prompt begins as before."""
    rig.core.script = in_turn(f"<think>\nThe hour?\n</think>\n\n{CALL}", otherwise="Nine.")
    asked = {"tools": [TOOL], "thinking": {"type": "adaptive", "display": "omitted"}}
    first = await ask(rig, **asked)
    assert first["content"][0]["thinking"] == ""
    result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "9"}
    following = [
        {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}
    ]  # fmt: skip
    told = await prompt(rig, messages=[USER, *following], **asked)
    assert told.startswith(f"{rig.core.prompts[0]}<think>\nThe hour?\n</think>\n\n{CALL}")


async def test_a_deferred_tool_is_shown_where_it_is_asked_for(rig: ScriptedRig) -> None:
    search = {**TOOL, "name": "search"}
    tools = [search, {**TOOL, "defer_loading": True, "description": "Says the time."}]
    before = await prompt(rig, tools=tools)
    assert "Says the time." not in before
    found = {"type": "tool_reference", "tool_name": "time"}
    messages = [
        USER,
        {"role": "assistant", "content": [{**USE, "name": "search"}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [found]}
        ]},
    ]  # fmt: skip
    after = await prompt(rig, tools=tools, messages=messages)
    assert after.startswith(before.removesuffix("<|im_start|>assistant\n"))
    assert after.count("Says the time.") == 1
    answer = await ask(rig, tools=tools, messages=messages)
    assert answer["content"][-1]["name"] == "time"  # and may be called
    unknown = [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "x"}}]
    assert "no tool 'x'" in await refusal(
        rig, tools=tools, messages=[USER, {"role": "system", "content": unknown}]
    )


async def test_tools_are_added_and_removed_within_the_conversation(rig: ScriptedRig) -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "time"}}
    messages = [USER, {"role": "system", "content": [added]}]
    assert (await ask(rig, messages=messages))["stop_reason"] == "tool_use"
    assert "# Tools" not in rig.core.prompts[-1]
    assert '"name": "time"' in rig.core.prompts[-1]
    messages.append({"role": "system", "content": [gone]})
    assert "The tool time can no longer be called." in await prompt(rig, messages=messages)


async def test_what_the_system_says_for_one_turn_is_gone_in_the_next(rig: ScriptedRig) -> None:
    hint = {"role": "system", "content": "Only now.", "clear_at": "next_user_message"}
    assert "Only now." in await prompt(rig, messages=[USER, hint])
    assert "Only now." not in await prompt(rig, messages=[USER, hint, USER])


async def test_an_answer_goes_on_with_the_assistants_last_words(rig: ScriptedRig) -> None:
    said = {"role": "assistant", "content": "The time is"}
    assert (await prompt(rig, messages=[USER, said])).endswith("</think>\n\nThe time is")


async def test_which_tools_may_be_called(rig: ScriptedRig) -> None:
    async def called(choice: dict[str, Any]) -> list[str]:
        answer = await ask(rig, tools=[TOOL], tool_choice=choice)
        return [block["type"] for block in answer["content"]]

    assert await called({"type": "auto"}) == ["text", "tool_use", "tool_use"]
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert await called(one) == ["text", "tool_use"]
    assert await called({"type": "none"}) == ["text"]
    (request,) = rig.core.requests[-1:]
    assert request.params.structured_outputs is None
    for forced in ({"type": "any"}, {"type": "tool", "name": "time"}):
        answer = await ask(rig, tools=[TOOL], tool_choice=forced)
        assert answer["stop_reason"] == "tool_use"
        assert rig.core.requests[-1].params.structured_outputs is not None
    assert "tool_choice: there is no tool 'x'" in await refusal(
        rig, tools=[TOOL], tool_choice={"type": "tool", "name": "x"}
    )
    assert "asks for a call, but there are no tools" in await refusal(
        rig, tool_choice={"type": "any"}
    )


async def test_why_an_answer_ended(rig: ScriptedRig) -> None:
    assert (await ask(rig))["stop_reason"] == "end_turn"
    assert (await ask(rig, max_tokens=2))["stop_reason"] == "max_tokens"
    stopped = await ask(rig, stop_sequences=["es"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "es")
    assert stopped["content"] == [{"type": "text", "text": "Y"}]
    assert (await ask(rig, stop_sequences=["Y"]))["content"] == []


async def test_an_answer_that_the_context_ends_says_so(tmp_path: Path) -> None:
    async with scripted(tmp_path, in_turn(otherwise="a" * 500), max_model_len=256) as rig:
        assert (await ask(rig, max_tokens=400))["stop_reason"] == "model_context_window_exceeded"


async def test_how_long_it_reasons_is_bounded(rig: ScriptedRig) -> None:
    await ask(rig, thinking={"type": "enabled", "budget_tokens": 20})
    thinking = rig.core.requests[-1].params.thinking
    assert thinking is not None
    assert thinking.tokens == 20
    assert (await prompt(rig, thinking={"type": "disabled"})).endswith("<think>\n\n</think>\n\n")
    await ask(rig, output_config={"effort": "low"})
    low = rig.core.requests[-1].params.thinking
    assert low is not None
    assert low.tokens == 1024


async def test_a_schema_holds_for_the_answer(rig: ScriptedRig) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        await ask(rig, **fields)
        assert rig.core.requests[-1].params.structured_outputs is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].type: 'image' blocks are not taken here"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
         "'document' blocks"),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
         "this server runs no tools"),
        ({"messages": [{"role": "user", "content": [USE]}]},
         "messages[0].content[0]: a tool_use block has no place in a message of role user"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text: is required"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
         "tools[0]: tools of type 'web_search_20250305' are Anthropic's own"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema: is required"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name: there is another tool 'time'"),
        ({"tools": [{**TOOL, "name": ""}]}, "tools[0].name: must be a text of 1 to"),
        ({"messages": []}, "messages: list should have at least 1 item"),
        ({"max_tokens": 0}, "max_tokens: input should be greater than or equal to 1"),
        ({"max_tokens": None}, "max_tokens: "),
        ({"stop_sequences": [""]}, "a stop string must have 1 to"),
        ({"mcp_servers": [{"url": "https://example.com"}]}, "mcp_servers is not supported"),
        ({"max_token": 3}, "did you mean max_tokens?"),
    ],
)  # fmt: skip
async def test_what_cannot_be_kept_is_refused_by_name(
    rig: ScriptedRig, fields: dict[str, Any], said: str
) -> None:
    assert said in await refusal(rig, **fields)
