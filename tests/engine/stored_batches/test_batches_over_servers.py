"""Real servers that share a folder of batches: the other one finishes a batch whose server loses a
process, and all of them show the same."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.paced_engines import PacedEngines, paced
from tests.support.server.server_process import ServerProcess, server_process
from tests.support.waiting import HANG_SECONDS, wait_until

TEXT = "/v1/completions"
LINES, TOKENS, AT_ONCE = 14, 24, 2
FLAGS = ("--num-kv-blocks", "1200", "--max-num-seqs", "4", "--batch-concurrency", str(AT_ONCE))
BODIES = [
    {"prompt": f"line {number}", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    for number in range(LINES)
]
REFUSED = 3  # a line whose answer is in the file of errors
BODIES[REFUSED]["temperature"] = -1
ENDED = ("completed", "failed", "expired", "cancelled")
LOOKS = 6  # each over a connection of its own, which may come to either HTTP process


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")


def upload(server: ServerProcess) -> str:
    rows = [
        {"custom_id": f"r{number}", "method": "POST", "url": TEXT, "body": body}
        for number, body in enumerate(BODIES)
    ]
    answer = httpx.post(
        f"{server.url}/v1/files",
        data={"purpose": "batch"},
        files={"file": ("requests.jsonl", "\n".join(map(json.dumps, rows)))},
        timeout=HANG_SECONDS,
    )
    return str(answer.raise_for_status().json()["id"])


def order(server: ServerProcess, file_id: str) -> dict[str, Any]:
    fields = {"input_file_id": file_id, "endpoint": TEXT, "completion_window": "24h"}
    batch: dict[str, Any] = server.post("/v1/batches", **fields).raise_for_status().json()
    return batch


def batch_at(server: ServerProcess, batch_id: str) -> dict[str, Any]:
    batch: dict[str, Any] = server.get(f"/v1/batches/{batch_id}").raise_for_status().json()
    return batch


def agreed(batch_id: str, *servers: ServerProcess) -> dict[str, Any]:
    """The batch as each HTTP process of the servers shows it and lists it, once all show the same:
    answers may still be on their way to a file while the engines stand still."""
    shown: list[dict[str, Any]] = []

    def all_agree() -> bool:
        shown[:] = [batch_at(server, batch_id) for server in servers for _ in range(LOOKS)]
        for server in servers:
            listed = server.get("/v1/batches").raise_for_status().json()["data"]
            shown.extend(each for each in listed if each["id"] == batch_id)
        assert len(shown) == (LOOKS + 1) * len(servers)
        return all(each == shown[0] for each in shown)

    wait_until(all_agree, "all servers show the same")
    return shown[0]


def ended(server: ServerProcess, batch_id: str) -> None:
    wait_until(lambda: batch_at(server, batch_id)["status"] in ENDED, "the batch ends")


def answers_of(server: ServerProcess, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = server.get(f"/v1/files/{file_id}/content").raise_for_status().text
    return [json.loads(line) for line in text.splitlines()]


def num_answered(batch: dict[str, Any]) -> int:
    counts = batch["request_counts"]
    return int(counts["completed"] + counts["failed"])


def run_to_the_middle(engines: PacedEngines, server: ServerProcess, batch_id: str) -> None:
    """Answer some lines: the engine then stands still, with requests of the batch open."""
    engines.run_until(
        lambda: num_answered(batch_at(server, batch_id)) > 2, "some lines are answered"
    )
    batch = batch_at(server, batch_id)
    assert (batch["status"], batch["request_counts"]["total"]) == ("in_progress", LINES)
    assert num_answered(batch) < LINES - AT_ONCE


def kill_http_process(server: ServerProcess, folder: Path) -> None:
    """Kill the one that answers the batch, by the locks that the system knows of."""
    claims = {str(path.stat().st_ino) for path in (folder / "claims").iterdir()}
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    holders = {int(pid) for *_, pid, file, _, _ in locks if file.rpartition(":")[2] in claims}
    (found,) = [process for process in server.api_processes() if process.pid in holders]
    found.kill()


def kill_engine(server: ServerProcess, folder: Path) -> None:
    server.engine_process().kill()


def kill_all(server: ServerProcess, folder: Path) -> None:
    server.kill_without_notice()


def terminate(server: ServerProcess, folder: Path) -> None:
    server.signal(signal.SIGTERM)


def check_answers(server: ServerProcess, batch: dict[str, Any]) -> None:
    """Each line is answered once, as by itself; lines of a batch that expired may lack an answer,
    and are named then."""
    answers = answers_of(server, batch["output_file_id"])
    errors = answers_of(server, batch["error_file_id"])
    late = [each for each in errors if each["response"] is None]
    codes = {each["error"]["code"] for each in late}
    assert codes == ({"batch_expired"} if batch["status"] == "expired" else set())
    ids = Counter(each["custom_id"] for each in (*answers, *errors))
    assert ids == Counter(f"r{number}" for number in range(LINES))
    for each in answers:
        assert each["response"]["status_code"] == 200
        assert each["response"]["body"]["usage"]["completion_tokens"] == TOKENS
    (refused,) = [each for each in errors if each["response"] is not None]
    assert (refused["custom_id"], refused["response"]["status_code"]) == (f"r{REFUSED}", 400)
    counts = {"total": LINES, "completed": len(answers), "failed": len(errors)}
    assert batch["request_counts"] == counts


@pytest.mark.parametrize("end", [kill_http_process, kill_engine, kill_all, terminate])
def test_another_server_finishes_the_batch_of_one_that_loses_a_process(
    checkpoint: Path, tmp_path: Path, end: Callable[[ServerProcess, Path], None]
) -> None:
    folder = tmp_path / "batches"
    flags = (*FLAGS, "--batch-dir", str(folder))
    processes = ("--api-server-count", "2")
    with server_process(checkpoint, tmp_path / "one", *flags, *processes) as one:
        with paced(one.wait_ready()) as engines:
            batch = order(one, upload(one))
            run_to_the_middle(engines, one, batch["id"])
            with server_process(checkpoint, tmp_path / "other", *flags) as other:
                before = agreed(batch["id"], one, other.wait_ready())
                end(one, folder)
                engines.resume()
                ended(other, batch["id"])
                one.wait_exit()
                after = agreed(batch["id"], other)
                assert after["status"] == "completed"
                for key in ("created_at", "expires_at", "in_progress_at", "input_file_id"):
                    assert after[key] == before[key]
                check_answers(other, after)
                assert "Traceback" not in other.log + one.log


def test_any_server_cancels_and_a_window_ends_though_the_answering_server_is_lost(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "batches"
    flags = (*FLAGS, "--batch-dir", str(folder))
    with (
        server_process(checkpoint, tmp_path / "one", *flags) as one,
        paced(one.wait_ready()) as engines,
    ):
        file_id = upload(one)
        cancelled, late = order(one, file_id), order(one, file_id)
        run_to_the_middle(engines, one, cancelled["id"])
        with server_process(checkpoint, tmp_path / "other", *flags) as other:
            other.wait_ready()
            told = other.post(f"/v1/batches/{cancelled['id']}/cancel").raise_for_status().json()
            assert told["status"] == "cancelling"
            ended(other, cancelled["id"])  # by the server that answers it, though its engine stands
            shown = agreed(cancelled["id"], one, other)
            assert shown["status"] == "cancelled"
            kept = answers_of(one, shown["output_file_id"])
            assert len(kept) == shown["request_counts"]["completed"] < LINES
            refused = one.post(f"/v1/batches/{cancelled['id']}/cancel")
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, None)

            run_to_the_middle(engines, one, late["id"])
            disk = BatchFolder(folder)
            now = disk.change_batch(
                late["id"], lambda each: msgspec.structs.replace(each, expires_at=each.created_at)
            )
            disk.close()
            answered = agreed(late["id"], one, other)["request_counts"]["completed"]
            one.kill_without_notice()
            ended(other, late["id"])
            shown = agreed(late["id"], other)
            assert (shown["status"], shown["expires_at"]) == ("expired", now.expires_at)
            assert shown["request_counts"]["completed"] >= answered
            check_answers(other, shown)
            listed = other.get("/v1/batches").raise_for_status().json()["data"]
            assert {each["id"] for each in listed} == {cancelled["id"], late["id"]}
