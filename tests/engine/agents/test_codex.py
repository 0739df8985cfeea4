"""The Codex CLI over /v1/responses, in both of the ways in which it sends its tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.engine.agents.session import (
    AFTER,
    COUNT,
    DONE,
    TASK,
    Workplace,
    call,
    check_installed,
    workplace,
)
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted
from tests.support.waiting import HANG_SECONDS
from tools.agents import CODEX

pytestmark = pytest.mark.slow

THOUGHT = "<think>\nWhat does it say now?\n</think>\n\nLet me look.\n"
PATCH = "*** Begin Patch\n*** Update File: greeting.txt\n@@\n-hello\n+goodbye\n*** End Patch"
HEREDOC = f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"


def configured(place: Workplace, rig: ScriptedRig, *lines: str) -> dict[str, str]:
    home = place.home / "codex"
    home.mkdir()
    (home / "config.toml").write_text(
        "\n".join(
            [
                'model = "tiny"',
                'model_provider = "atom"',
                *lines,
                "[model_providers.atom]",
                'name = "ATOM"',
                f'base_url = "{rig.url}/v1"',
                'wire_api = "responses"',
                "request_max_retries = 0",
                "stream_max_retries = 0",
            ]
        )
    )
    return {"CODEX_HOME": str(home)}


async def edited(place: Workplace, rig: ScriptedRig, *lines: str) -> list[str]:
    """A session to its end; the types of what Codex says it did."""
    words = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    ended = await place.run(CODEX.path, [*words, "--json", TASK], configured(place, rig, *lines))
    assert ended.code == 0, ended.output
    events = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert events[-1]["type"] == "turn.completed", ended.output
    assert "incompatible" not in ended.output
    assert (place.greeting, place.count) == (AFTER, str(len(AFTER)))
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    assert done[-1]["text"] == DONE
    # Each turn's prompt begins with the one before and its answer, reasoning too.
    assert len(rig.core.prompts) == 4
    assert THOUGHT in rig.core.prompts[-1]
    assert min(rig.core.cached_shares[1:]) > 0.97, rig.core.cached_shares
    return [item["type"] for item in done]


async def test_codex_reads_edits_and_runs(tmp_path: Path) -> None:
    place = workplace(tmp_path)
    script = in_turn(
        THOUGHT + call("exec_command", cmd="cat greeting.txt"),
        call("exec_command", cmd=HEREDOC),
        call("exec_command", cmd=COUNT),
        DONE,
    )
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        done = await edited(place, rig)
    assert done.count("command_execution") == 2
    assert "file_change" in done


async def test_codex_edits_by_its_custom_tool_with_tools_in_namespaces(tmp_path: Path) -> None:
    """As it speaks to the models that it knows: tools come as an item of the input."""
    place = workplace(tmp_path)
    script = in_turn(
        THOUGHT + call("exec_command", cmd="cat greeting.txt"),
        call("apply_patch", input=PATCH),
        call("exec_command", cmd=COUNT),
        DONE,
    )
    catalogue = place.home / "models.json"
    catalogue.write_text(json.dumps({"models": [known_model(place.home)]}))
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        done = await edited(place, rig, f'model_catalog_json = "{catalogue}"')
    assert "file_change" in done


def known_model(home: Path) -> dict[str, object]:
    """Codex's own description of a model, under our model's name."""
    check_installed(CODEX.path)
    told = subprocess.run(
        [CODEX.path, "debug", "models"],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    models = json.loads(told.stdout)["models"]
    found = next(model for model in models if model["slug"] == "codex-auto-review")
    return {**found, "slug": "tiny", "tool_mode": None}
