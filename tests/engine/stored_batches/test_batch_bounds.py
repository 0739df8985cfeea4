"""Bounds of stored batches, and hostile files and ids: no name leads out of the folder, and the
server serves on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from atom.entrypoints.stored_batches import batch_folder, worker
from atom.entrypoints.stored_batches.batch_answers import BatchAnswers
from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.line_check import MOST_LINE_BYTES, check_lines
from atom.entrypoints.stored_batches.records import MOST_PROBLEMS, BatchRecord, BatchState
from atom.entrypoints.stored_batches.service import BatchService
from atom.errors import ConfigError
from tests.engine.stored_batches.test_batches_api import (
    CHAT,
    TEXT,
    check_well,
    content_of,
    ended,
    lines,
    serve,
    start,
)
from tests.support.server.http_app import AppRig

IDS = (
    "../../secret", "..%2f..%2fsecret", "%2e%2e/secret", "/etc/passwd", "file-", "file-../x",
    f"file-{'0' * 32}/../../secret", f"file-{'0' * 31}\n", f"file-{'0' * 32}%00", "batch_x",
    f"file-{'G' * 32}", "file-" + "0" * 5000, "*", ".part", "~", "лог", "%ff",
)  # fmt: skip
GOOD = {"custom_id": "a", "method": "POST", "url": TEXT, "body": {"prompt": "a", "max_tokens": 1}}
HOSTILE: tuple[str | bytes, ...] = (
    "", " ", "\x00", "null", "[]", "3", '"text"', "{", "{}", "[" * 100_000, '{"a":' * 600,
    json.dumps({**GOOD, "custom_id": ""}), json.dumps({**GOOD, "custom_id": "x" * 600}),
    json.dumps({**GOOD, "custom_id": 7}), json.dumps({**GOOD, "custom_id": None}),
    json.dumps({**GOOD, "method": "GET"}), json.dumps({**GOOD, "method": "POST\r\nX: y"}),
    json.dumps({**GOOD, "url": "/v1/files"}), json.dumps({**GOOD, "url": "/sleep"}),
    json.dumps({**GOOD, "url": "http://127.0.0.1/v1/completions"}),
    json.dumps({**GOOD, "url": "/v1/completions?x=1"}), json.dumps({**GOOD, "url": CHAT}),
    json.dumps({**GOOD, "body": {"stream": True}}), json.dumps({**GOOD, "body": {"stream": 1}}),
    *(json.dumps({**GOOD, "body": body}) for body in ([], None, "text", 3)),
    json.dumps(GOOD)[:-1], json.dumps(GOOD) * 2, b"\xff\xfe", b'{"custom_id": "\xed\xa0\x80"}',
    '{"custom_id": "\\ud800", "method": "POST", "url": "/v1/completions", "body": {}}',
)  # fmt: skip
# Lines that a batch may have, whose requests are refused or answered one by one.
ODD_BODIES: tuple[Any, ...] = (
    {}, {"prompt": None}, {"prompt": "a", "max_tokens": 10**30},
    {"prompt": "a", "priority": "high"}, {"prompt": "a", "priority": 10**9, "max_tokens": 1},
    {"prompt": "a", "model": "../x"}, {"prompt": "a" * 10_000}, {"prompt": [[[]]]},
    {"prompt": "\u0000\u2028", "max_tokens": 1}, {"prompt": "a", "max_tokens": 1, "n": 2},
)  # fmt: skip


def outside(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        str(path.relative_to(folder)) for path in (folder / "batches").rglob("*")
    }


async def form(rig: AppRig, body: bytes, kind: str = "multipart/form-data; boundary=b") -> Any:
    return await rig.client.post("/v1/files", content=body, headers={"content-type": kind})


def parts(*fields: tuple[str, bytes]) -> bytes:
    """A form of headers' options and contents."""
    found = b"".join(
        b"--b\r\nContent-Disposition: form-data; "
        + options.encode()
        + b"\r\n\r\n"
        + value
        + b"\r\n"
        for options, value in fields
    )
    return found + b"--b--\r\n"


async def test_no_id_or_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    async with serve(tmp_path) as rig, rig.openai_client() as client:
        before = outside(tmp_path)
        for each in IDS:
            for method, path in (
                ("GET", f"/v1/files/{each}"), ("GET", f"/v1/files/{each}/content"),
                ("DELETE", f"/v1/files/{each}"), ("GET", f"/v1/batches/{each}"),
                ("POST", f"/v1/batches/{each}/cancel"),
            ):  # fmt: skip
                url = httpx.URL(rig.url).copy_with(
                    raw_path=httpx.URL(path.replace("\n", "%0a")).raw_path
                )
                answer = await rig.client.request(method, url)
                assert answer.status_code in (404, 405, 400, 414, 431), (method, path)
                assert answer.text != "secret"
            made = await rig.post(
                "/v1/batches", input_file_id=each, endpoint=TEXT, completion_window="24h"
            )
            assert made.status_code == 404, made.text
        for each in IDS[:5]:
            named = await client.files.create(file=(each, b"x"), purpose="batch")
            assert (await client.files.content(named.id)).content == b"x"
        assert outside(tmp_path) == before
        names = {path.suffix for path in (tmp_path / "batches/files").iterdir()}
        assert names == {".json", ".jsonl"}
        await check_well(rig)


def test_hostile_lines_fail_their_batch_by_name(tmp_path: Path) -> None:
    dice = random.Random(7)
    for line in HOSTILE:
        raw = line if isinstance(line, bytes) else line.encode()
        rows = [json.dumps({**GOOD, "custom_id": f"g{n}"}).encode() for n in range(3)]
        rows.insert(dice.randrange(4), raw)
        (tmp_path / "file").write_bytes(b"\n".join(rows))
        total, problems = check_lines(tmp_path / "file", TEXT, 4)
        if not raw.strip():
            assert (total, problems) == (3, ())
            continue
        (problem,) = problems
        assert problem.line == rows.index(raw) + 1
        assert f"line {problem.line}" in problem.message
        assert len(problem.message) < 2000
    (tmp_path / "file").write_bytes(b"[" * (MOST_LINE_BYTES + 1))
    assert check_lines(tmp_path / "file", TEXT, 4)[1][0].code == "line_too_long"
    (tmp_path / "file").write_bytes(b"x\n" * 1000)
    assert len(check_lines(tmp_path / "file", TEXT, 10**6)[1]) == MOST_PROBLEMS


async def test_an_invalid_line_fails_its_batch_and_an_odd_body_only_itself(tmp_path: Path) -> None:
    async with serve(tmp_path) as rig, rig.openai_client() as client:
        good = json.dumps(GOOD).encode()
        done = await ended(client, (await start(client, good + b"\n" + good)).id)
        assert (done.status, done.output_file_id) == ("failed", None)
        assert (done.errors.data[0].code, done.errors.data[0].line) == ("duplicate_custom_id", 2)
        assert not rig.core.added
        odd = [
            {**GOOD, "custom_id": f"o{number}", "body": body}
            for number, body in enumerate(ODD_BODIES)
        ]
        odd.append({**GOOD, "custom_id": "no text", "body": {"?": 1}})
        content = b"\n".join(json.dumps(each).encode() for each in odd).replace(b"?", b"\xff")
        done = await ended(client, (await start(client, content)).id)
        assert done.status == "completed"
        answers = await content_of(client, done.output_file_id)
        errors = await content_of(client, done.error_file_id)
        ids = [each["custom_id"] for each in (*answers, *errors)]
        assert sorted(ids) == sorted(each["custom_id"] for each in odd)
        assert {each["response"]["status_code"] for each in errors} <= {400, 404}
        await check_well(rig)


async def test_forms_that_are_none_keep_nothing(tmp_path: Path) -> None:
    file = ('name="file"; filename="f"', b"x")
    purpose = ('name="purpose"', b"batch")
    long = ('name="purpose"', b"b" * 5000)
    async with serve(tmp_path) as rig:
        for body, status in (
            (b"", 400), (b"garbage", 400), (parts(), 400), (parts(file), 400),
            (parts(purpose), 400),
            (parts(file, file, purpose), 400), (parts(file, long), 400),
            (parts(file, purpose)[:-9], 400),
            (parts(file, ('name="purpose"', b"fine-tune")), 400),
            (parts(file, purpose, ('name="x"', b"y")), 400),
            (parts(*[(f'name="x{number}"', b"y") for number in range(50)]), 400),
            (parts(file, purpose, ('name="expires_after[seconds]"', b"1")), 400),
            (parts(file, purpose, ('name="expires_after[anchor]"', b"created_at"),
                   ('name="expires_after[seconds]"', b"\xff")), 400),
        ):  # fmt: skip
            answer = await form(rig, body)
            assert answer.status_code == status, (body[:80], answer.text)
            assert answer.json()["error"]["message"]
        for kind in (
            "application/json",
            "multipart/form-data",
            f"multipart/form-data; boundary={'b' * 99}",
        ):
            assert (await form(rig, parts(file, purpose), kind)).status_code == 415
        assert list((tmp_path / "batches/files").iterdir()) == []
        assert rig.batches is not None
        assert rig.batches.files.used_bytes == 0
        good = parts(file, purpose, ('name="expires_after[anchor]"', b"created_at"),
                     ('name="expires_after[seconds]"', b"3600"))  # fmt: skip
        answer = (await form(rig, good)).json()
        assert answer["expires_at"] == answer["created_at"] + 3600


async def test_each_bound_names_its_flag(tmp_path: Path) -> None:
    mib = b"x" * 2**20
    bounds = {"file_bytes": 2**20, "storage_bytes": 2 * 2**20, "most_files": 4, "most_lines": 3}
    async with serve(tmp_path, **bounds) as rig, rig.openai_client() as client:

        async def upload(content: bytes) -> Any:
            return await client.files.create(file=("f", content), purpose="batch")

        with pytest.raises(openai.APIStatusError, match="--batch-file-mib"):
            await upload(mib + b"x")
        kept = [await upload(mib), await upload(mib)]
        with pytest.raises(openai.APIStatusError, match="--batch-storage-mib"):
            await upload(b"x")
        for file in kept:
            await client.files.delete(file.id)
        done = await ended(client, (await start(client, lines(count=4))).id)
        assert "--batch-max-lines" in done.errors.data[0].message
        for _ in range(3):
            await upload(b"x")
        with pytest.raises(openai.APIStatusError, match="--batch-max-files"):
            await upload(b"x")
        await check_well(rig)


async def test_a_batch_without_room_for_its_answers_fails_and_keeps_those_it_has(
    tmp_path: Path,
) -> None:
    content = lines(count=20)
    bounds = {"storage_bytes": len(content) + 3000, "at_once": 1}
    async with serve(tmp_path, **bounds) as rig, rig.openai_client() as client:
        done = await ended(client, (await start(client, content)).id)
        assert (done.status, done.errors.data[0].code) == ("failed", "storage_full")
        answers = await content_of(client, done.output_file_id)
        assert 0 < len(answers) == done.request_counts.completed < 20
        await check_well(rig)


def test_an_error_of_answers_names_the_flag_and_no_path(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    with pytest.raises(ConfigError, match=r"--batch-dir: cannot be written \(No such") as caught:
        BatchAnswers(path, path, lambda _: None)
    assert str(tmp_path) not in str(caught.value)


async def test_open_batches_are_bounded_and_ended_ones_make_room(tmp_path: Path) -> None:
    async with serve(tmp_path, most_files=2, held=True) as rig, rig.openai_client() as client:
        first = await start(client, lines(count=1))
        again = {"input_file_id": first.input_file_id, "endpoint": TEXT, "completion_window": "24h"}
        await client.batches.create(**again)
        with pytest.raises(openai.RateLimitError, match="are open"):
            await client.batches.create(**again)
        await client.batches.cancel(first.id)
        await ended(client, first.id)
        await client.batches.create(**again)
        with pytest.raises(openai.NotFoundError, match="made room"):
            await client.batches.retrieve(first.id)


async def test_windows_that_are_none_are_refused(tmp_path: Path) -> None:
    async with serve(tmp_path) as rig:
        for window in ("", "24", "h", "0h", "-1h", "31d", "1e3h", "24H", "9" * 400 + "h"):
            answer = await rig.post(
                "/v1/batches", input_file_id="x", endpoint=TEXT, completion_window=window
            )
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "completion_window"


def test_a_folder_is_shared_unless_a_server_has_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_folder, "_START_SECONDS", 0.0)
    first = BatchFolder(tmp_path / "b")
    BatchFolder(tmp_path / "b").close()
    held = first.claim("ada")
    assert held is not None
    assert first.claim("ada") is None
    os.close(held)
    first.close()
    with (tmp_path / "b" / "lock").open() as lock:  # as earlier versions have it
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="a server of another version uses it alone"):
            BatchFolder(tmp_path / "b")
    BatchFolder(tmp_path / "b").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        BatchFolder(tmp_path / "file")


def no_writes(path: Path, *args: Any, **kwargs: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_a_folder_that_is_read_only_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BatchFolder(tmp_path).close()
    monkeypatch.setattr(Path, "touch", no_writes)
    with pytest.raises(ConfigError, match=r"--batch-dir .*: cannot be used \(.*Read-only"):
        BatchFolder(tmp_path)


async def test_a_batch_that_cannot_be_read_ends_the_start_and_keeps_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, held=True) as rig, rig.openai_client() as client:
        batch = await start(client, lines(count=2))
    folder = tmp_path / "batches"
    output = BatchFolder(folder)
    (record,) = output.batches()
    output.content(record.output_id).write_text("{}\n")
    output.close()
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.stem == batch.id:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", failing)
        with pytest.raises(ConfigError, match=rf"{batch.id}.json cannot be read"):
            BatchService(BatchOptions(folder=folder))
    service = BatchService(BatchOptions(folder=folder))  # the folder is free again
    assert service.files.folder.content(record.output_id).exists()
    service.close()


async def test_a_batch_goes_on_once_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_SWEEP_SECONDS", 0.0)
    write, failed = BatchFolder.write_batch, 0

    def full(folder: BatchFolder, batch: BatchRecord) -> None:
        nonlocal failed
        if batch.state is not BatchState.VALIDATING and failed < 5:
            failed += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, batch)

    monkeypatch.setattr(BatchFolder, "write_batch", full)
    async with serve(tmp_path) as rig, rig.openai_client() as client:
        done = await ended(client, (await start(client, lines(count=3))).id)
        assert (done.status, done.request_counts.completed) == ("completed", 3)
        answers = await content_of(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in answers) == ["r0", "r1", "r2"]
        assert failed == 5
        await check_well(rig)
