"""Claude Code, as npm has it, works against the server: it reads a file, edits it, looks for a
tool, runs a command and ends, and what it sends is taken whole."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.answer_parsing.written import WRITERS, plain
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted
from tests.support.waiting import within
from tools.agents import CLAUDE_CODE

TASK = "MEND-THE-NOTES"  # in the user's words; other prompts are the agent's own
OURS = {"system", "assistant", "user", "result"}


def call(name: str, **values: Any) -> str:
    return WRITERS["hermes"][1]([(name, values)], plain)


async def run_claude(rig: ScriptedRig, work: Path, *flags: str) -> list[dict[str, Any]]:
    """One task in a home of its own; what it tells of it, line by line."""
    home = work.parent / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "IS_SANDBOX": "1",  # it may run as root
        "ANTHROPIC_BASE_URL": rig.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    claude = await asyncio.create_subprocess_exec(
        CLAUDE_CODE.path, "-p", f"{TASK} in notes.txt", "--model", "tiny",
        "--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json", *flags,
        cwd=work, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await within(claude.communicate(), "the agent's task")
    assert claude.returncode == 0, (out, errors)
    return [json.loads(line) for line in out.decode().splitlines()]


def blocks(told: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Every block of this type in the conversation."""
    contents = [event["message"]["content"] for event in told if "message" in event]
    return [
        block
        for content in contents
        if isinstance(content, list)
        for block in content
        if block["type"] == kind
    ]


@pytest.mark.slow
async def test_claude_code_mends_a_file(tmp_path: Path) -> None:
    assert CLAUDE_CODE.path.exists(), "it is not installed: run make agents"
    work = tmp_path / "work"
    work.mkdir()
    notes = work / "notes.txt"
    notes.write_text("The answer is 41.\n")
    script = in_turn(
        f"<think>\nI read it first.\n</think>\n\nI read.\n{call('Read', file_path=str(notes))}",
        call("Edit", file_path=str(notes), old_string="41", new_string="42"),
        call("ToolSearch", query="select:WebFetch", max_results=5),
        call("Bash", command="wc -c < notes.txt > size.txt", description="Measure"),
        "The notes are right now.",
        where=lambda prompt: TASK in prompt,
    )
    async with scripted(tmp_path / "model", script) as rig:
        told = await run_claude(rig, work)
    assert notes.read_text() == "The answer is 42.\n"
    assert (work / "size.txt").read_text().strip() == "18"

    assert [block["name"] for block in blocks(told, "tool_use")] == [
        "Read", "Edit", "ToolSearch", "Bash",
    ]  # fmt: skip
    assert not any(block.get("is_error") for block in blocks(told, "tool_result"))
    assert blocks(told, "thinking")
    result = told[-1]
    assert (result["type"], result["subtype"], result["is_error"]) == ("result", "success", False)
    assert result["result"] == "The notes are right now."
    assert result["usage"]["cache_read_input_tokens"] > 100_000

    mine = [index for index, prompt in enumerate(rig.core.prompts) if TASK in prompt]
    assert len(mine) == 5
    prompts = [rig.core.prompts[index] for index in mine]
    assert not any("x-anthropic-billing-header" in prompt for prompt in prompts)
    shares = [rig.core.cached_shares[index] for index in mine[1:]]
    assert min(shares) > 0.97, shares  # the search brings a whole tool into its prompt
    assert '"name": "WebFetch"' not in prompts[2]
    assert '"name": "WebFetch"' in prompts[3]
