"""`atom chat` as a person uses it: lines are typed, answers come, commands do what /help says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.answer_parsing.written import WRITERS, plain
from tests.support.server.http_app import serve_app
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted
from tests.support.server.seeing_model import picture
from tests.support.server.server_process import command_environment
from tests.support.waiting import within

EYES = Path(__file__).parents[4] / "examples" / "models" / "atom-tiny-eyes"
CALL = WRITERS["hermes"][1]([("weather", {"city": "Paris"})], plain)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ScriptedRig]:
    script = in_turn("<think>\nHm.\n</think>\n\nHello there.", f"I look.\n{CALL}", "It is warm.")
    async with scripted(tmp_path / "model", script) as made:
        yield made


async def typed(target: str, *lines: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Type lines into the command; returns its exit code, answers and notes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "atom.entrypoints.cli", "chat", target, *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=command_environment(),
    )
    text = "".join(f"{line}\n" for line in lines).encode()
    out, notes = await within(process.communicate(text), "the conversation")
    assert process.returncode is not None
    return process.returncode, out.decode(), notes.decode()


async def test_answers_calls_and_results_make_a_conversation(
    rig: ScriptedRig, tmp_path: Path
) -> None:
    tools, saved = tmp_path / "tools.json", tmp_path / "saved.json"
    tools.write_text(json.dumps(TOOLS))
    code, out, notes = await typed(
        f"{rig.url}/v1/",
        "hi",
        "/reasoning",
        f"/tools {tools}",
        "Is it warm in Paris?",
        "21 degrees",
        f"/save {saved}",
        "/exit",
        flags=("--system", "Be brief.", "--temperature", "0"),
    )
    assert code == 0, notes
    assert "Hello there.\n" in out
    assert "Hm." not in out
    assert "Hm." in notes
    assert 'the model calls weather({"city": "Paris"})' in notes
    assert out.rstrip().endswith("It is warm.")
    assert "tokens" in notes
    messages = json.loads(saved.read_text())
    roles = ["system", "user", "assistant", "user", "assistant", "tool", "assistant"]
    assert [each["role"] for each in messages] == roles
    assert messages[5]["tool_call_id"] == messages[4]["tool_calls"][0]["id"]
    assert "21 degrees" in rig.core.prompts[-1]
    assert "Be brief." in rig.core.prompts[0]
    assert rig.core.requests[0].params.temperature == 0

    code, out, _ = await typed(rig.url, f"/load {saved}", "/again", flags=("--model", "tiny"))
    assert code == 0
    assert "Is it warm in Paris?" in rig.core.prompts[-1]
    assert "21 degrees" not in rig.core.prompts[-1]


async def test_mistakes_are_told_and_the_conversation_goes_on(
    rig: ScriptedRig, tmp_path: Path
) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text("{}")
    code, out, notes = await typed(
        rig.url,
        "/nothing",
        "/save",
        f"/load {odd}",
        f"/tools {odd}",
        "/again",
        "/image a.txt",
        "hi",
    )
    assert code == 0
    for said in (
        "there is no command /nothing; /help lists them",
        "name a file: /save FILE",
        "holds no messages",
        "must hold a JSON list of tools",
        "there is no message yet",
        "a.txt: is no picture by its name",
    ):
        assert said in notes
    assert "Hello there." in out


async def test_a_refusal_is_the_servers_own_words(tmp_path: Path) -> None:
    async with scripted(tmp_path / "model", in_turn("Fine."), api_key="sk-1") as rig:
        code, _, notes = await typed(rig.url, "hi")
        assert code == 1
        assert "key" in notes
        assert "Traceback" not in notes
        file = tmp_path / "key"
        file.write_text("sk-1")
        code, out, notes = await typed(rig.url, "hi", flags=("--api-key-file", str(file)))
        assert (code, out) == (0, "Fine.\n"), notes
        flags = ("--api-key-file", str(file), "--max-tokens=-5")
        code, out, notes = await typed(rig.url, "hi", "/clear", flags=flags)
        assert code == 0
        assert "error: max_tokens" in notes


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("http://127.0.0.1:1", "is the server there?"),
        ("http://", "is no address of a server"),
    ],
)
async def test_no_server_ends_in_a_sentence(target: str, said: str) -> None:
    code, _, notes = await typed(target, "hi")
    assert code == 1
    assert said in notes
    assert "Traceback" not in notes


async def test_a_model_that_is_not_served_is_told_with_those_that_are(rig: ScriptedRig) -> None:
    code, _, notes = await typed(rig.url, "hi", flags=("--model", "large"))
    assert code == 1
    assert "has no model 'large'; it has tiny" in notes


async def test_a_model_without_chats_says_why(tmp_path: Path) -> None:
    from tests.support.engine_core.front_half import build_test_config, write_model_folder

    folder = write_model_folder(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    async with serve_app(build_test_config(folder)) as rig:
        code, _, notes = await typed(rig.url, "hi")
    assert code == 1
    assert "has no chats, since it has no chat template" in notes


async def test_a_model_is_served_meanwhile_and_looks_at_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(picture(3, 3))
    flags = ("--image", str(file), "--max-tokens", "60", "--serve-arg=--max-model-len=512")
    code, out, notes = await typed(str(EYES), "What do you see?", flags=flags)
    assert code == 0, notes
    assert out.strip().endswith(".")
    assert "fits at 512 tokens" in notes  # of the server's own table
    code, _, notes = await typed(str(tmp_path / "none"), "hi")
    assert code == 1
    assert "the server ended with exit code 1; its words are above" in notes
