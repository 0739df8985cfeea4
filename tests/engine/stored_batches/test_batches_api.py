"""Stored batches as OpenAI's own client uses them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import AsyncOpenAI

from atom.client_label import batch_label
from atom.entrypoints.http.access import AccessKeys
from atom.entrypoints.http.api_key import FollowedKeys, KeyFile, NamedKey
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.service import BatchService
from atom.model_engine.request import MAX_PRIORITY
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import NO_KEYS, Access, AppRig, serve_app
from tests.support.waiting import eventually

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    TEXT: {"prompt": "abc", "max_tokens": 3},
    RESPONSES: {"input": "hi", "max_output_tokens": 2},
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def lines(endpoint: str = TEXT, count: int = 3, **fields: Any) -> bytes:
    """Requests r0, r1, ... of a file."""
    body = BODIES[endpoint] | fields
    found = [
        {"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": body}
        for number in range(count)
    ]
    return "\n".join(map(json.dumps, found)).encode()


@contextlib.asynccontextmanager
async def serve(
    folder: Path, access: Access = NO_KEYS, clock: Clock | None = None, **options: Any
) -> AsyncIterator[AppRig]:
    """A server that keeps batches and answers them. options: of `BatchOptions`, or `held`."""
    held = options.pop("held", False)
    service = BatchService(BatchOptions(folder=folder / "batches", **options), clock or Clock())
    config = build_test_config(model_folder(folder))
    try:
        async with serve_app(config, access=access, batches=service, held=held) as rig:
            async with service.running():
                yield rig
    finally:
        service.close()


def model_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return write_model_folder(folder)


async def start(client: AsyncOpenAI, content: bytes, endpoint: str = TEXT, **more: Any) -> Any:
    file = await client.files.create(file=("my requests.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,
        completion_window="24h",
        **more,  # type: ignore[arg-type]
    )


async def check_well(rig: AppRig) -> None:
    assert (await rig.chat(max_tokens=2)).status_code == 200
    assert rig.engine.open_requests == 0


async def ended(client: AsyncOpenAI, batch_id: str) -> Any:
    """The batch, once it has ended."""
    found: Any = None

    async def is_over() -> bool:
        nonlocal found
        found = await client.batches.retrieve(batch_id)
        return found.status in ("completed", "failed", "expired", "cancelled")

    await eventually(is_over, "the batch ends")
    return found


async def content_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (await client.files.content(file_id)).text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("endpoint", BODIES)
async def test_openais_client_has_a_file_answered(tmp_path: Path, endpoint: str) -> None:
    async with serve(tmp_path) as rig, rig.openai_client() as client:
        wrong = json.dumps(
            {"custom_id": "bad", "method": "POST", "url": endpoint, "body": {"temperature": -1}}
        )
        content = lines(endpoint, 5) + b"\n\n" + wrong.encode() + b"\n"
        batch = await start(client, content, endpoint, metadata={"of": "a test"})
        assert batch.status == "validating"
        done = await ended(client, batch.id)
        assert (done.status, done.metadata) == ("completed", {"of": "a test"})
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (6, 5, 1)
        assert done.completed_at >= done.finalizing_at >= done.in_progress_at >= done.created_at
        answers = await content_of(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in answers) == [f"r{n}" for n in range(5)]
        assert all(each["response"]["status_code"] == 200 for each in answers)
        (error,) = await content_of(client, done.error_file_id)
        assert (error["custom_id"], error["response"]["status_code"]) == ("bad", 400)
        listed = [each.id async for each in await client.batches.list(limit=1)]
        assert listed == [batch.id]
        names = {each.filename: each.purpose async for each in await client.files.list()}
        assert names == {
            "my requests.jsonl": "batch",
            f"{batch.id}_output.jsonl": "batch_output",
            f"{batch.id}_error.jsonl": "batch_output",
        }
        file = await client.files.retrieve(batch.input_file_id)
        assert (file.bytes, file.status) == (len(content), "processed")
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError, match="deleted"):
            await client.files.content(file.id)
        await check_well(rig)


async def test_requests_of_batches_are_below_all_others_and_of_their_owner(tmp_path: Path) -> None:
    async with serve(tmp_path) as rig, rig.openai_client() as client:
        await ended(client, (await start(client, lines(count=2, priority=-100))).id)
        assert {(each.client_id, each.priority) for each in rig.core.added} == {
            (batch_label(""), MAX_PRIORITY)
        }
        text = (await rig.client.get("/metrics")).text
        assert 'atom:batches{state="completed"} 1.0' in text
        assert 'atom:batch_requests_total{outcome="completed"} 2.0' in text
        assert "atom:batch_storage_limit_bytes 4.294967296e+09" in text


async def test_a_key_sees_its_own_files_and_batches_alone(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys", (NamedKey("ann", "sk-ann"), NamedKey("bob", "sk-bob")))
    (tmp_path / "keys").write_text("ann: sk-ann\nbob: sk-bob\n")
    keys = AccessKeys(FollowedKeys((), file))
    async with serve(tmp_path / "server", Access(keys)) as rig:
        async with rig.openai_client("sk-ann") as ann, rig.openai_client("sk-bob") as bob:
            batch = await ended(ann, (await start(ann, lines())).id)
            mine = [batch.input_file_id, batch.output_file_id]
            assert {each.id async for each in await ann.files.list()} == set(mine)
            assert [each.id async for each in await bob.files.list()] == []
            assert [each.id async for each in await bob.batches.list()] == []
            for file_id in mine:
                for use in (bob.files.retrieve, bob.files.content, bob.files.delete):
                    with pytest.raises(openai.NotFoundError):
                        await use(file_id)
            for ask in (bob.batches.retrieve, bob.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    await ask(batch.id)
            with pytest.raises(openai.NotFoundError):
                await bob.batches.create(
                    input_file_id=mine[0], endpoint=TEXT, completion_window="24h"
                )
            assert {each.client_id for each in rig.core.added} == {batch_label("key-ann")}
            assert (await httpx.AsyncClient().get(f"{rig.url}/v1/files")).status_code == 401


async def test_a_cancelled_batch_keeps_its_answers_and_aborts_the_rest(tmp_path: Path) -> None:
    async with serve(tmp_path, at_once=2, held=True) as rig, rig.openai_client() as client:
        batch = await start(client, lines(count=6))
        await eventually(lambda: len(rig.core.added) == 2, "two requests are open")
        with pytest.raises(openai.ConflictError, match="cancel it first"):
            await client.files.delete(batch.input_file_id)
        rig.core.step()
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(client, batch.id)
        assert (done.status, done.output_file_id) == ("cancelled", None)
        await eventually(lambda: len(rig.core.aborted) == 2, "both are aborted")
        assert len(rig.core.added) == 2
        with pytest.raises(openai.ConflictError, match="cancelled"):
            await client.batches.cancel(batch.id)
        again = await start(client, lines(count=6))
        await eventually(lambda: len(rig.core.added) == 4, "the next one begins")
        rig.core.release()
        assert (await ended(client, again.id)).request_counts.completed == 6


async def test_requests_without_an_answer_expire_and_files_too(tmp_path: Path) -> None:
    clock = Clock()
    few = {"clock": clock, "at_once": 2, "held": True}
    async with serve(tmp_path, **few) as rig, rig.openai_client() as client:
        after = {"anchor": "created_at", "seconds": 3600}
        batch = await start(client, lines(count=5), output_expires_after=after)
        await eventually(lambda: len(rig.core.added) == 2, "two requests are open")
    clock.now += 24 * 3600 + 1
    async with serve(tmp_path, clock=clock) as rig, rig.openai_client() as client:
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.failed) == ("expired", 5)
        errors = await content_of(client, done.error_file_id)
        assert {each["error"]["code"] for each in errors} == {"batch_expired"}
        assert len({each["custom_id"] for each in errors}) == 5
        clock.now += 3601
        with pytest.raises(openai.NotFoundError, match="expired"):
            await client.files.retrieve(done.error_file_id)
    async with serve(tmp_path, clock=clock):
        names = {path.stem for path in (tmp_path / "batches/files").iterdir()}
        await eventually(
            lambda: not list((tmp_path / "batches/files").glob("*-error*")),
            f"the file is deleted, of {names}",
        )


async def test_a_restarted_server_goes_on(tmp_path: Path) -> None:
    async with serve(tmp_path, at_once=2, held=True) as rig, rig.openai_client() as client:
        batch = await start(client, lines(count=7))
        await eventually(lambda: len(rig.core.added) == 2, "two requests are open")
        while len(rig.core.added) < 4:
            rig.core.step()
            await client.batches.retrieve(batch.id)  # lets the server's loop turn
        found = await client.batches.retrieve(batch.id)
        assert (found.status, found.request_counts.total) == ("in_progress", 7)
    async with serve(tmp_path) as rig, rig.openai_client() as client:
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 7)
        assert len(rig.core.added) == 5
        answers = await content_of(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in answers) == [f"r{n}" for n in range(7)]


async def test_each_route_answers_as_the_document_says(tmp_path: Path) -> None:
    async with serve(tmp_path, held=True) as rig, rig.openai_client() as client:
        document = (await rig.client.get("/openapi.json")).json()
        batch = await start(client, lines())
        ids = {"file_id": batch.input_file_id, "batch_id": batch.id}
        seen = 0
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if "batches" not in operation["tags"] or method == "delete":
                    continue
                sent: dict[str, Any] = {}
                content = operation.get("requestBody", {}).get("content", {})
                if "multipart/form-data" in content:
                    example = content["multipart/form-data"]["example"]
                    sent = {"data": {"purpose": "batch"}, "files": {"file": example["file"]}}
                elif content:
                    example = content["application/json"]["example"]
                    sent = {"json": {**example, "input_file_id": ids["file_id"]}}
                answer = await rig.client.request(method, path.format(**ids), **sent)
                assert answer.status_code == 200, (method, path, answer.text)
                shown = operation["responses"]["200"]["content"]
                kind = answer.headers["content-type"].partition(";")[0]
                if kind == "application/json":
                    schema = {"components": document["components"], **shown[kind]["schema"]}
                    for body in (answer.json(), shown[kind]["example"]):
                        jsonschema.validate(body, schema)
                seen += 1
        assert seen == 8


async def test_without_a_folder_the_error_names_the_flag(tmp_path: Path) -> None:
    async with serve_app(build_test_config(write_model_folder(tmp_path))) as rig:
        async with rig.openai_client() as client:
            with pytest.raises(openai.NotFoundError, match="--batch-dir FOLDER"):
                await client.files.list()
            with pytest.raises(openai.NotFoundError, match="--batch-dir FOLDER"):
                await start(client, lines())
