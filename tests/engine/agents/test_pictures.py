"""Coding agents that look at a picture go on working: Claude Code, Codex and opencode read a file
or are given one, and the model's encoder gets it with every later turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.agents.session import DONE, call, workplace
from tests.engine.agents.test_claude_code import TASK as CLAUDE_TASK
from tests.engine.agents.test_claude_code import blocks, run_claude
from tests.engine.agents.test_codex import configured
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted
from tests.support.server.seeing_model import IMAGE, picture
from tools.agents import CLAUDE_CODE, CODEX, OPENCODE

pytestmark = pytest.mark.slow

RED = picture(5, 3)  # of fifteen tokens
SAW = "It is red."
LOOK = "Look at picture.png, then write its colour into colour.txt."
WRITE = "printf red > colour.txt"


def images_of(rig: ScriptedRig) -> list[list[int]]:
    """Return the tokens of the images of every request that has any."""
    told = [[image.num_tokens for image in request.images] for request in rig.core.requests]
    return [sizes for sizes in told if sizes]


def check(rig: ScriptedRig, turns: int) -> None:
    """Check that every turn asked with the picture has all of its tokens."""
    assert images_of(rig) == [[15]] * turns
    for request, prompt in zip(rig.core.requests, rig.core.prompts, strict=True):
        assert prompt.count(IMAGE) == sum(image.num_tokens for image in request.images)


async def test_claude_code_reads_a_picture_and_goes_on(tmp_path: Path) -> None:
    assert CLAUDE_CODE.path.exists(), "it is not installed: run make agents"
    work = tmp_path / "work"
    work.mkdir()
    (work / "picture.png").write_bytes(RED)
    script = in_turn(
        call("Read", file_path=str(work / "picture.png")),
        call("Bash", command=WRITE, description="Write"),
        SAW,
        where=lambda prompt: CLAUDE_TASK in prompt,
    )
    async with scripted(tmp_path / "model", script, reads_images=True) as rig:
        told = await run_claude(rig, work)
        check(rig, 2)
    assert (work / "colour.txt").read_text() == "red"
    assert not any(block.get("is_error") for block in blocks(told, "tool_result"))
    assert told[-1]["result"] == SAW


async def test_codex_is_given_a_picture_and_looks_at_it_again(tmp_path: Path) -> None:
    place = workplace(tmp_path)
    file = place.folder / "picture.png"
    file.write_bytes(RED)
    script = in_turn(call("view_image", path=str(file)), call("exec_command", cmd=WRITE), DONE)
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script, reads_images=True) as rig:
        words = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        words += ["--json", "--image", str(file), "--", LOOK]
        ended = await place.run(CODEX.path, words, configured(place, rig))
        assert images_of(rig) == [[15], [15, 15], [15, 15]]
    assert ended.code == 0, ended.output
    assert (place.folder / "colour.txt").read_text() == "red"
    events = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert events[-1]["type"] == "turn.completed", ended.output


async def test_opencode_is_given_a_picture(tmp_path: Path) -> None:
    place = workplace(tmp_path)
    file = place.folder / "picture.png"
    file.write_bytes(RED)
    script = in_turn(
        call("bash", command=WRITE, description="Writes the colour"),
        DONE,
        where=lambda prompt: '"name": "bash"' in prompt,
        otherwise="A picture",
    )
    (tmp_path / "model").mkdir()
    async with scripted(tmp_path / "model", script, reads_images=True) as rig:
        model = {
            "name": "tiny",
            "attachment": True,
            "modalities": {"input": ["text", "image"], "output": ["text"]},
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "ATOM",
            "options": {"baseURL": f"{rig.url}/v1", "apiKey": "none"},
            "models": {"tiny": model},
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
        words = ["run", "-m", "atom/tiny", "--file", str(file), "--", LOOK]
        ended = await place.run(OPENCODE.path, words, env)
        told = images_of(rig)
    assert ended.code == 0, ended.output
    assert DONE in ended.output
    assert (place.folder / "colour.txt").read_text() == "red"
    assert told.count([15]) == len(told) >= 2
