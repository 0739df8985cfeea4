"""The end of the demo: what is shown when the pod that answers dies, and what is no proof.

Servers here are scripts, but for one test with the real ones; the cluster's own part is the demo.
"""

from __future__ import annotations

import contextlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.server_process import PEERS, ServerProcess, server_process
from tests.support.waiting import wait_until
from tools.demo.killed_pod import (
    KILL_IF_ANSWERING,
    LONG_ANSWER,
    Kill,
    killing_by,
    outlive,
    waiting_process,
)
from tools.demo.steps import chunks
from tools.kube import KubeError

ROOT = Path(__file__).parents[3]
TINY = ROOT / "examples/models/atom-tiny"
WORDS = [f"word{n} " for n in range(40)]
MOVE = {"ended": "10.0.0.1:8000", "went_on": "10.0.0.2:8000", "tokens": 12}


class Script:
    """Answers of a server that is killed. dies: in which of the asked answers, counted from 1."""

    def __init__(self, *dies: int, changed: bool = False, hit: bool = True) -> None:
        self.dies, self.changed, self.hit = dies, changed, hit
        self.asked = self.recovered = 0
        self.killed_at: list[int] = []
        self.sent = 0

    def ask(self) -> Iterator[dict[str, Any]]:
        number = self.asked
        self.asked += 1
        moved = number in self.dies
        for self.sent, word in enumerate(WORDS, 1):
            piece = word.upper() if moved and self.changed and self.sent > 20 else word
            yield {"choices": [{"delta": {"content": piece}}]}
        yield {"choices": [], **({"moves": [MOVE]} if moved else {})}

    @contextlib.contextmanager
    def killing(self) -> Iterator[Kill]:
        def kill() -> str | None:
            self.killed_at.append(self.sent)
            return "chat-a" if self.hit else None

        yield kill

    def recover(self) -> None:
        self.recovered += 1


def names(address: str) -> str:
    return {"10.0.0.2:8000": "chat-b"}.get(address, address)


def test_a_death_in_the_middle_changes_no_byte() -> None:
    script = Script(1)
    found = outlive(script.ask, script.killing, script.recover)
    assert found.answer == "".join(WORDS)
    assert 0 < script.killed_at[0] < len(WORDS)
    said = found.told(names)
    assert "chat-a was killed after 12 tokens; chat-b went on." in said
    assert f"one answer of {len(found.answer)} bytes" in said


def test_an_answer_that_changed_fails_the_demo() -> None:
    script = Script(1, changed=True)
    with pytest.raises(KubeError, match="the answer changed when chat-a was killed: 270 and 270"):
        outlive(script.ask, script.killing, script.recover)


def test_an_answer_that_ended_before_the_death_is_asked_again() -> None:
    script = Script(3)
    outlive(script.ask, script.killing, script.recover)
    assert script.asked == 4
    assert script.recovered == 2, "the pods that died have to be back"


@pytest.mark.parametrize("hit", [True, False])
def test_no_hit_is_no_proof(hit: bool) -> None:
    script = Script(hit=hit)
    with pytest.raises(KubeError, match="ended before its pod died"):
        outlive(script.ask, script.killing, script.recover)
    assert script.recovered == (5 if hit else 0)


def script_of(port: int, processes: Path) -> list[str]:
    return [sys.executable, "-c", KILL_IF_ANSWERING, str(port), str(processes)]


def proc_of(folder: Path, server: int, engine: int) -> Path:
    """A folder that looks like the /proc of a pod with two processes."""
    names = {server: b"atom.entrypoints.openai_server", engine: b"atom.model_engine.core_main"}
    for pid, name in names.items():
        (folder / str(pid)).mkdir(parents=True)
        (folder / str(pid) / "cmdline").write_bytes(b"python3\0-m\0" + name + b"\0")
    return folder


class _Metrics(http.server.BaseHTTPRequestHandler):
    running = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f'atom:requests_running{{rank="0"}} {self.running}\n'.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("running", [0, 1])
def test_a_pod_kills_itself_only_while_it_answers(running: int, tmp_path: Path) -> None:
    """Its processes are two that sleep."""
    handler = type("Handler", (_Metrics,), {"running": running})
    sleep = [sys.executable, "-c", "import signal; signal.pause()"]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        processes = [subprocess.Popen(sleep) for _ in range(2)]
        proc_of(tmp_path, *(process.pid for process in processes))
        try:
            port = server.server_address[1]
            waiting = waiting_process(script_of(port, tmp_path))
            with killing_by({"chat-a": waiting}) as kill:
                assert kill() == ("chat-a" if running else None)
            if running:
                assert [process.wait() for process in processes] == [-9, -9]
            assert [process.poll() for process in processes] == [-9 if running else None] * 2
        finally:
            for process in processes:
                process.kill()
                process.wait()
            server.shutdown()


@pytest.mark.whole  # test_workers proves the same of two engines in `make test`
def test_the_demos_model_outlives_a_real_server(tmp_path: Path) -> None:
    """Two servers behind a frontend, as the demo has pods, and the demo's own question. The image
    has no C compiler, so torch computes there."""
    with contextlib.ExitStack() as stack:

        def serve(name: str, *flags: str) -> ServerProcess:
            own = ("--max-model-len", "1024", "--max-num-seqs", "8", "--backend", "torch_cpu")
            started = server_process(TINY, tmp_path / name, *own, *flags, environment=PEERS)
            return stack.enter_context(started)

        workers = [serve("one"), serve("two")]
        urls = [worker.url for worker in workers]
        front = serve("front", "--worker-urls", *urls)
        for each in (*workers, front):
            each.wait_ready()
        wait_until(lambda: front.health()[0] == 200, "the workers are found")

        def killing() -> contextlib.AbstractContextManager[Kill]:
            waiting = {}
            for number, worker in enumerate(workers):
                pids = worker.process.pid, worker.engine_process().pid
                proc = proc_of(tmp_path / f"proc{number}", *pids)
                waiting[worker.url] = waiting_process(script_of(worker.port, proc))
            return killing_by(waiting)

        def ask() -> Iterator[dict[str, Any]]:
            return chunks(front.url, "What is ATOM?", model="tiny", **LONG_ANSWER)

        found = outlive(ask, killing, lambda: None)
        assert found.killed in urls
        assert found.move.tokens > 0
        assert len(found.answer) > 500
