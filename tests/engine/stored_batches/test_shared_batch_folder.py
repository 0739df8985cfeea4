"""Servers that share a folder of batches answer each line once, whichever of them ends when."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from atom.entrypoints.stored_batches import worker
from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.records import BatchOrder, BatchState, Purpose, StoredFile
from atom.entrypoints.stored_batches.service import BatchService
from atom.entrypoints.stored_batches.worker import BatchWorker, Door
from tests.engine.stored_batches.test_batch_kills import KILLED, killing
from tests.engine.stored_batches.test_batches_api import TEXT, content_of, ended, lines, serve
from tests.support.random_search import examples
from tests.support.waiting import eventually

AT_ONCE = 2
OWNERS = ("", "ada", "bob")
NUM_LINES = 9


async def add_batches(root: Path, owners: list[str]) -> None:
    """Upload a file and add its batch for each owner, as a server does that answers nothing."""
    service = BatchService(BatchOptions(folder=root))
    for number, owner in enumerate(owners):
        rows = [
            {"custom_id": f"{number}-{line}", "method": "POST", "url": TEXT, "body": {"n": line}}
            for line in range(NUM_LINES)
        ]
        upload = service.files.start_upload()
        upload.path.write_text("\n".join(map(json.dumps, rows)))
        size = upload.path.stat().st_size
        file = StoredFile(upload.id, owner, "f", Purpose.BATCH, size, 1)
        await service.files.keep(file)
        service.files.end_upload(upload)
        await service.batches.add(owner, BatchOrder(upload.id, TEXT, "24h"), 10**6)
    service.close()


async def answer_all(root: Path, asked: Path, ends_at: int) -> None:
    """Answer the batches of a folder beside other servers, and write each request that is asked.
    ends_at: requests after which this server ends at once."""
    left = ends_at

    async def post(path: str, body: bytes, client: str) -> tuple[int, bytes]:
        nonlocal left
        with asked.open("ab", buffering=0) as record:
            record.write(json.dumps([os.getpid(), client, json.loads(body)["n"]]).encode() + b"\n")
        left -= 1
        if left == 0:
            os._exit(KILLED)
        await asyncio.sleep(0)
        return (400 if json.loads(body)["n"] == 3 else 200), b"{}"

    worker._LOOK_SECONDS = 0.02
    service = BatchService(BatchOptions(folder=root, at_once=AT_ONCE))
    door = Door(post, lambda: True)
    service.worker = BatchWorker(service.files, service.batches, door, lambda: 1e9)
    async with service.running():
        await eventually(lambda: not service.batches.open(), "the batches end")
    service.close()


def started(root: Path, asked: Path, ends_at: int, kill_at: int | None) -> int:
    """Start a server as a process; returns its id. kill_at: the file call at which it is killed."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if kill_at is not None:
            killing(kill_at)
        asyncio.run(answer_all(root, asked, ends_at))
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("seed", range(examples(6, more=10)))
def test_servers_that_are_killed_lose_no_line_and_no_two_ask_one(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    root, asked = tmp_path / "batches", tmp_path / "asked"
    owners = draw.choices(OWNERS, k=draw.randint(1, 4))
    asyncio.run(add_batches(root, owners))
    kills = 0
    for _ in range(draw.randint(1, 3)):  # some servers at a time, of which one at least is killed
        last = draw.randint(0, 120)
        servers = [started(root, asked, draw.randint(1, NUM_LINES), None)]
        servers += [
            started(root, asked, 10**9, draw.choice([None, last]))
            for _ in range(draw.randint(1, 2))
        ]
        for pid in servers:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status in (0, KILLED)
            kills += status == KILLED
    survivors = [started(root, asked, 10**9, None) for _ in range(2)]
    assert [os.waitpid(pid, 0)[1] for pid in survivors] == [0, 0]
    folder = BatchFolder(root)
    answered: Counter[str] = Counter()
    for batch in folder.batches():
        assert (batch.state, batch.total) == (BatchState.COMPLETED, NUM_LINES)
        assert (batch.completed, batch.failed) == (NUM_LINES - 1, 1)
        for file_id in (batch.output_id, batch.error_id):
            rows = folder.content(file_id).read_text().splitlines()
            answered.update(json.loads(row)["custom_id"] for row in rows)
    folder.close()
    wanted = [f"{each}-{line}" for each in range(len(owners)) for line in range(NUM_LINES)]
    assert answered == Counter(wanted)
    # A server that is killed leaves the requests that it had open, and no others, to the next.
    num_asked = len(asked.read_text().splitlines())
    assert len(wanted) <= num_asked <= len(wanted) + kills * AT_ONCE * len(set(owners))
    assert not [each for each in root.rglob("*.part") if each.parent.name != "claims"]


async def test_each_server_of_a_folder_shows_and_changes_the_batches_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LOOK_SECONDS", 0.02)
    async with (
        serve(tmp_path, held=True) as one,
        serve(tmp_path) as other,
        one.openai_client() as first,
        other.openai_client() as second,
    ):
        assert one.batches is not None
        assert other.batches is not None
        claim = one.batches.files.folder.claim("")
        assert claim is not None  # so that no server answers yet
        file = await first.files.create(file=("f", lines(count=3)), purpose="batch")
        order: Any = {"input_file_id": file.id, "endpoint": TEXT, "completion_window": "24h"}
        batch = await second.batches.create(**order)
        assert (await first.batches.retrieve(batch.id)).status == "validating"
        with pytest.raises(openai.APIStatusError, match="needs the file"):
            await first.files.delete(file.id)
        os.close(claim)
        # The engine of one is held: once it has claimed, the batch ends by the other's cancel.
        last = (await first.batches.retrieve(batch.id)).status
        if last not in ("completed", "finalizing"):
            with suppress(openai.ConflictError):  # it may be about to end by now
                await second.batches.cancel(batch.id)
        done = await ended(first, batch.id)
        assert done.status in ("completed", "cancelled")
        seen = await second.batches.retrieve(batch.id)
        assert seen == done
        for client in (first, second):
            assert (
                len(await content_of(client, done.output_file_id)) == done.request_counts.completed
            )
        assert (await second.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await first.files.retrieve(file.id)
        with pytest.raises(openai.NotFoundError):
            await first.batches.create(**order)


async def test_a_server_goes_on_with_the_batch_of_one_that_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LOOK_SECONDS", 0.02)
    async with serve(tmp_path, held=True) as one, one.openai_client() as first:
        file = await first.files.create(file=("f", lines(count=4)), purpose="batch")
        order: Any = {"input_file_id": file.id, "endpoint": TEXT, "completion_window": "24h"}
        batch = await first.batches.create(**order)
        await eventually(lambda: len(one.core.open_requests) == 4, "the requests are asked")
        async with serve(tmp_path) as other, other.openai_client() as second:
            assert one.batches is not None
            during = await second.batches.retrieve(batch.id)
            assert (during.status, during.request_counts.completed) == ("in_progress", 0)
            assert not other.core.added  # the first server has them
            stopping = one.batches.worker
            for task in list(stopping._tasks.values()):
                task.cancel()
            stopping._start_next = lambda: None  # type: ignore[method-assign]
            done = await ended(second, batch.id)
            assert (done.status, done.request_counts.completed) == ("completed", 4)
            assert len(other.core.added) == 4
