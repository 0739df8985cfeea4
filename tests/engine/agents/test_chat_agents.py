"""Agents that speak /v1/chat/completions: opencode, mini-swe-agent, aider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.agents.session import (
    AFTER,
    COUNT,
    DONE,
    TASK,
    call,
    workplace,
)
from tests.support.server.scripted_model import in_turn, scripted
from tools.agents import OPENCODE
from tools.pinned_environments import AGENTS, python_bin

pytestmark = pytest.mark.slow

THOUGHT = "<think>\nWhat does it say now?\n</think>\n\nLet me look.\n"


async def test_opencode_reads_edits_and_runs(tmp_path: Path) -> None:
    place = workplace(tmp_path)
    file = str(place.folder / "greeting.txt")
    script = in_turn(
        THOUGHT + call("read", filePath=file),
        call("edit", filePath=file, oldString="hello", newString="goodbye"),
        call("bash", command=COUNT, description="Counts characters"),
        DONE,
        where=lambda prompt: '"name": "edit"' in prompt,  # others are for titles
        otherwise="A greeting",
    )
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "ATOM",
            "options": {"baseURL": f"{rig.url}/v1", "apiKey": "none"},
            "models": {"tiny": {"name": "tiny"}},
        }
        config = {
            "provider": {"atom": provider},
            "permission": {"*": "allow"},
            "share": "disabled",
            "autoupdate": False,
        }
        (place.folder / "opencode.json").write_text(json.dumps(config))
        switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
        env = {f"OPENCODE_DISABLE_{name}": "1" for name in switches}
        ended = await place.run(OPENCODE.path, ["run", "-m", "atom/tiny", TASK], env)
    assert ended.code == 0, ended.output
    assert DONE in ended.output
    assert (place.greeting, place.count) == (AFTER, str(len(AFTER)))


async def test_mini_swe_agent_reads_edits_and_runs(tmp_path: Path) -> None:
    place = workplace(tmp_path)
    script = in_turn(
        THOUGHT + call("bash", command="cat greeting.txt"),
        call("bash", command="sed -i s/hello/goodbye/ greeting.txt"),
        call("bash", command=COUNT),
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    )
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        words = ["-m", "openai/tiny", "-t", TASK, "-y", "--exit-immediately"]
        words += ["-c", "mini.yaml", "-c", f"model.model_kwargs.api_base={rig.url}/v1"]
        words += ["-l", "0", "-o", str(tmp_path / "trajectory.json")]
        env = {
            "OPENAI_API_KEY": "none",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": str(place.home),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        ended = await place.run(python_bin(AGENTS) / "mini", words, env)
        turns = len(rig.core.prompts)
    assert ended.code == 0, ended.output
    assert turns == 4
    assert (place.greeting, place.count) == (AFTER, str(len(AFTER)))
    trajectory = json.loads((tmp_path / "trajectory.json").read_text())
    assert trajectory["info"]["exit_status"] == "Submitted"


async def test_aider_edits_and_runs(tmp_path: Path) -> None:
    """It shows the file to the model itself, and runs the command as a test of the edit."""
    place = workplace(tmp_path)
    edit = "<<<<<<< SEARCH\nhello\n=======\ngoodbye\n>>>>>>> REPLACE"
    script = in_turn(f"{DONE}\n\ngreeting.txt\n```\n{edit}\n```\n")
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script) as rig:
        words = ["--model", "openai/tiny", "--openai-api-base", f"{rig.url}/v1"]
        words += ["--openai-api-key", "none", "--edit-format", "diff", "--no-git", "--yes-always"]
        words += ["--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
        words += ["--no-show-release-notes", "--no-pretty", "--map-tokens", "0"]
        words += ["--auto-test", "--test-cmd", COUNT, "--message", TASK, "greeting.txt"]
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        ended = await place.run(python_bin(AGENTS) / "aider", words, env)
        first = rig.core.prompts[0]
    assert ended.code == 0, ended.output
    assert TASK in first
    assert "hello" in first.partition("greeting.txt")[2]
    assert "Applied edit to greeting.txt" in ended.output
    assert (place.greeting, place.count) == (AFTER, str(len(AFTER)))
