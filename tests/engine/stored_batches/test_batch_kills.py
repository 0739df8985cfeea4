"""A server that is killed at any file call loses no request of a batch and answers none twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.batch_store import BatchStore
from atom.entrypoints.stored_batches.file_store import FileStore
from atom.entrypoints.stored_batches.records import BatchOrder, BatchState, Purpose, StoredFile
from atom.entrypoints.stored_batches.service import BatchService
from atom.entrypoints.stored_batches.worker import BatchWorker, Door
from tests.support.waiting import eventually

URL = "/v1/completions"
NAMES = ["a", "b", "c", "d"]
REFUSED = "c"  # which has its answer in the file of errors
KILLED = 9
OS_CALLS = ("open", "close", "write", "fsync", "ftruncate")
PATH_CALLS = ("mkdir", "replace", "unlink")


def killing(number: int) -> None:
    """Let this process end at its `number`-th file call from now on; writes are short ones."""
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(KILLED)
            left -= 1
            return call(*args, **kwargs)

        return wrapped

    write = os.write
    os.write = lambda fd, data: write(fd, bytes(data)[:150])  # type: ignore[assignment]
    for name in OS_CALLS:
        setattr(os, name, counted(getattr(os, name)))
    for name in PATH_CALLS:
        setattr(Path, name, counted(getattr(Path, name)))


async def post(path: str, body: bytes, client: str) -> tuple[int, bytes]:
    prompt = json.loads(body)["prompt"]
    return (400 if prompt == REFUSED else 200), b'{"of": "%s"}' % prompt.encode()


async def live(root: Path, told: int) -> None:
    """Run one life of a server: upload the file and add its batch, if they are missing, and answer
    the batch. told: a pipe that gets the id of the batch, as its client does."""
    options = BatchOptions(folder=root, at_once=2)
    service = BatchService(options)  # removes the rest of an earlier life
    files, batches = service.files, service.batches
    service.worker = BatchWorker(files, batches, Door(post, lambda: True), lambda: 1e9)
    if not batches.open() and not batches.states():
        upload = files.start_upload()
        request = {"method": "POST", "url": URL}
        rows = [json.dumps({"custom_id": n, **request, "body": {"prompt": n}}) for n in NAMES]
        upload.path.write_text("\n".join(rows))
        upload.size_bytes = upload.path.stat().st_size
        await files.keep(StoredFile(upload.id, "", "f", Purpose.BATCH, upload.size_bytes, 1))
        files.end_upload(upload)
        batch = await batches.add("", BatchOrder(upload.id, URL, "24h"), 10**6)
        os.write(told, batch.id.encode())
    async with service.running():
        await eventually(lambda: not batches.open(), "the batch ends")
    service.close()


def life(root: Path, kill_at: int | None) -> tuple[int, str]:
    """Run a life in a process of its own. Returns its exit status, and the id that a client got."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            if kill_at is not None:
                killing(kill_at)
            asyncio.run(live(root, writer))
            status = 0
        os._exit(status)
    os.close(writer)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(reader) as told:
        return status, told.read()


def check(root: Path, promised: str) -> None:
    folder = BatchFolder(root)
    batches = BatchStore(folder, 10, lambda: 1e9)
    files = FileStore(folder, BatchOptions(folder=root), lambda: 1e9)
    found = batches.of("")
    assert promised in ("", *(batch.id for batch in found))
    for batch in found:
        assert (batch.state, batch.total) == (BatchState.COMPLETED, len(NAMES))
        answers = Counter()
        for file_id, status in ((batch.output_id, 200), (batch.error_id, 400)):
            assert files.get(file_id, "").size_bytes == folder.content(file_id).stat().st_size
            for line in folder.content(file_id).read_text().splitlines():
                answer = json.loads(line)
                assert answer["response"]["status_code"] == status
                assert answer["response"]["body"] == {"of": answer["custom_id"]}
                answers[answer["custom_id"]] += 1
        assert answers == Counter(NAMES)
        assert (batch.completed, batch.failed) == (len(NAMES) - 1, 1)
    kept = {path.stem for path in (root / "files").glob("*.jsonl")}
    assert kept == {path.stem for path in (root / "files").glob("*.json")}, "no rest is left"
    assert not list(root.rglob("*.part"))
    folder.close()


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.whole)])
def test_a_server_killed_at_every_file_call_loses_and_repeats_nothing(
    tmp_path: Path, step: int
) -> None:
    kills = 0
    for number in range(0, 1000, step):
        root = tmp_path / str(number)
        status, promised = life(root, number)
        assert status in (0, KILLED)
        if status == 0:
            break
        # The next life is killed as well, at another place, and the third is not.
        life(root, (number * 7) % 40)
        assert life(root, None)[0] == 0
        check(root, promised)
        kills += 1
    assert kills > 60 / step, "answers that come together are written at once"
