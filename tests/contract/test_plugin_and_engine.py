"""`kubectl atom chat` and `top` against the engine's own HTTP server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atom_operator.plugin.chat import Model, converse
from atom_operator.plugin.kubectl import KubectlError
from atom_operator.plugin.top_view import Sample, parse, top_lines
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import serve_app
from tests.support.waiting import eventually


async def test_a_conversation_streams_answers_and_keeps_its_history(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=256))
    questions = iter(["hello", "again"])
    written: list[str] = []
    async with serve_app(config) as rig:
        model = Model(f"http://127.0.0.1:{rig.port}")
        # The plug-in is synchronous: it runs beside the server's loop.
        await asyncio.to_thread(converse, model, lambda: next(questions, None), written.append, 8)
        prompts = [request.prompt_token_ids for request in rig.core.added]
    assert written.count("\n") == 2
    assert len([piece for piece in written if piece.strip()]) >= 2
    assert len(prompts[1]) > len(prompts[0]), "the second question follows the first answer"


async def test_what_a_model_thinks_is_shown_and_not_said_to_it_again(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, context_tokens=256)
    thoughts = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    said_so_far = "{% for m in messages %}" + thoughts + "{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(said_so_far)
    question = "<think>hm</think>yes"  # an engine without a model answers the prompt itself
    written: list[str] = []
    async with serve_app(build_test_config(folder)) as rig:
        tokens = len(await rig.engine.tokenize(question))
        questions = iter([question, "more"])
        model = Model(f"http://127.0.0.1:{rig.port}")
        await asyncio.to_thread(
            converse, model, lambda: next(questions, None), written.append, tokens
        )
        history = await rig.engine.detokenize(rig.core.added[1].prompt_token_ids)
    assert "".join(written).startswith("hm\n\nyes\n")
    assert history == question + "yes" + "more"


async def test_a_refusal_is_shown_in_the_servers_words(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=64))
    async with serve_app(config, api_key="secret") as rig:
        url = f"http://127.0.0.1:{rig.port}"
        with pytest.raises(KubectlError, match="401"):
            await asyncio.to_thread(Model(url).name)
        assert await asyncio.to_thread(Model(url, "secret").name)
    with pytest.raises(KubectlError, match="does not answer"):
        await asyncio.to_thread(Model(url).name)


async def test_top_reads_what_the_engine_says_of_itself(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=64))
    async with serve_app(config) as rig:
        before = parse((await rig.client.get("/metrics")).text)
        assert (await rig.chat("hello", max_tokens=5)).status_code == 200
        rig.core.report_stats(requests_running=3, kv_blocks_used=25, kv_blocks_total=100)
        await eventually(lambda: rig.engine.stats is not None, "statistics came")
        after = parse((await rig.client.get("/metrics")).text)
    header, row = top_lines([Sample("chat-1", before, after)], 1.0)
    values = dict(zip(header.split(), row.split(), strict=True))
    assert (values["READY"], values["RUNNING"], values["KV-USED"]) == ("yes", "3", "25%")
    assert values["TTFT-P95"].startswith("<=")
