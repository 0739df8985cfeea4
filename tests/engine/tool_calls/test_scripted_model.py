"""The scripted model of agents' tests is one as far as a client can tell."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.answer_parsing.written import WRITERS, plain
from tests.engine.tool_calls.echo import TOOLS
from tests.support.server.scripted_model import in_turn, scripted

CALL = WRITERS["hermes"][1]([("weather", {"city": "Paris"})], plain)


async def test_a_script_is_answered_in_turn_with_calls_and_cached_prompts(tmp_path: Path) -> None:
    script = in_turn(
        f"<think>\nThe city?\n</think>\n\n{CALL}", "It is warm.", where=lambda text: "warm" in text
    )
    messages = [{"role": "user", "content": "Is it warm in Paris? " * 20}]
    async with scripted(tmp_path, script) as rig:
        aside = (await rig.chat("A title, please.")).json()["choices"][0]
        path = "/v1/chat/completions"
        first = (await rig.post(path, messages=messages, tools=TOOLS)).json()["choices"][0]
        call = first["message"]["tool_calls"][0]
        messages += [
            first["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "20 °C"},
        ]
        second = (await rig.post(path, messages=messages, tools=TOOLS)).json()
        cut = (await rig.chat("warm?", max_tokens=1)).json()["choices"][0]
    assert (aside["message"]["content"], aside["finish_reason"]) == ("OK.", "stop")
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert first["finish_reason"] == "tool_calls"
    assert second["choices"][0]["message"]["content"] == "It is warm."
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached / second["usage"]["prompt_tokens"] == rig.core.cached_shares[2] > 0.8
    assert "20 °C" in rig.core.prompts[2]
    assert cut["finish_reason"] == "length"
