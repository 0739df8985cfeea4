"""Several API server processes on one port, over two ranks: one server to everybody outside."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.open_stream import OpenStream, error_of
from tests.support.server.paced_engines import PacedEngines, paced
from tests.support.server.server_process import ServerProcess, run_atom, server_process
from tests.support.waiting import HANG_SECONDS, wait_until

FLAGS = ("--api-server-count", "2", "--data-parallel-size", "2", "--max-num-seqs", "8")
SMALL = ("--num-kv-blocks", "1200")
STREAMS = 8
TOKENS = 400


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    return make_tiny_checkpoint(folder, "llama", max_position_embeddings=8192)


@contextlib.contextmanager
def ready_servers(checkpoint: Path, tmp_path: Path, *flags: str) -> Iterator[ServerProcess]:
    with server_process(checkpoint, tmp_path / "log", *FLAGS, *SMALL, *flags) as server:
        yield server.wait_ready()


def everyone(server: ServerProcess) -> list[psutil.Process]:
    found = server.api_processes() + server.engine_processes()
    assert len(found) == 4
    return found


def has_clients(api: psutil.Process, port: int) -> bool:
    return any(
        each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
        for each in api.net_connections("tcp")
    )


def greedy(server: ServerProcess, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", **body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_each_answer_reaches_its_own_client_through_any_process(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_servers(checkpoint, tmp_path) as server:
        # Every request is a new connection, so the kernel spreads them over the processes.
        alone = {f"prompt {number}": greedy(server, f"prompt {number}") for number in range(6)}
        streams = [OpenStream(server, max_tokens=200, prompt=f"s {n}") for n in range(STREAMS)]
        together = {prompt: greedy(server, prompt) for prompt in alone}
        assert together == alone
        assert len(set(alone.values())) > 1, "the answers differ, so a mix-up would show"
        for stream in streams:
            events = stream.end()
            assert events[-1] == "[DONE]"
            assert '"finish_reason":"length"' in events[-2]
        answering = [name for name in ("api-1", "api-2") if f"{name} uvicorn.access" in server.log]
        assert answering == ["api-1", "api-2"], "both took part"
        # No waiting: with its last token a request's whole count is in every later scrape.
        assert server.metric("requests_running") == server.metric("kv_cache_blocks_used") == 0
        scrapes = {server.metric("requests_finished_total") for _ in range(8)}
        assert scrapes == {2 * len(alone) + STREAMS}, "the same whichever process answers"
        tokens = server.metric("generation_tokens_total")
        assert server.metric("rank_generation_tokens_total") == tokens
        assert server.metric("request_generation_tokens_sum") == tokens
        prompts = server.metric("prompt_tokens_total")
        assert server.metric("request_prompt_tokens_sum") == prompts
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert "Traceback" not in server.log


def test_processes_that_share_no_store_say_so(checkpoint: Path, tmp_path: Path) -> None:
    """By whichever of them is asked: the next request may come to another one."""
    path, asked = "/v1/responses", {"input": "hello", "max_output_tokens": 4}
    with ready_servers(checkpoint, tmp_path) as server:
        for _ in range(STREAMS):
            assert server.post(path, **asked).json()["store"] is False
            for field, value in (("store", True), ("previous_response_id", "resp_1")):
                refused = server.post(path, **asked, **{field: value})
                error = refused.json()["error"]
                assert (refused.status_code, error["param"]) == (400, field)
                assert error["code"] == "unsupported_parameter"
                assert (
                    "the processes of --api-server-count above 1 share no store" in error["message"]
                )
                assert error["message"].endswith("send the whole conversation as input")
        answering = {name for name in ("api-1", "api-2") if f"{name} uvicorn.access" in server.log}
        assert answering == {"api-1", "api-2"}


@pytest.mark.whole
def test_sigterm_drains_every_process_even_if_it_comes_to_all_of_them(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_servers(checkpoint, tmp_path, "--shutdown-timeout", "600") as server:
        children = everyone(server)
        streams = [OpenStream(server, max_tokens=400, prompt=f"s {n}") for n in range(STREAMS)]
        for process in (*children, server.process):  # as a service manager or a terminal does
            process.send_signal(signal.SIGTERM)
        for stream in streams:
            assert stream.end()[-1] == "[DONE]"
        assert server.wait_exit() == 0
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in server.log


def streams_of_both(server: ServerProcess, engines: PacedEngines) -> list[OpenStream]:
    """The kernel spreads them by chance, and once in 256 times one process has all of eight."""
    streams: list[OpenStream] = []
    while len(streams) < STREAMS or not all(
        has_clients(api, server.port) for api in server.api_processes()
    ):
        streams += engines.begin(server, TOKENS, f"s {len(streams)}")
    return streams


def test_a_killed_rank_takes_no_answer_with_it(checkpoint: Path, tmp_path: Path) -> None:
    with ready_servers(checkpoint, tmp_path) as server:
        children = everyone(server)
        with paced(server) as engines:
            streams = streams_of_both(server, engines)
            engines.engines[1].kill()
            words = "the engine process of rank 1"
            wait_until(lambda: words in server.health()[1].get("reason", ""), "the loss is named")
            assert server.health()[1]["status"] == "draining"
            assert server.get("/live").status_code == 200
            refused = server.post("/v1/completions", prompt="y")
            assert refused.status_code == 503
            assert words in refused.json()["error"]["message"]
            assert server.metric("requests_continued_total") > 0
        assert {stream.end()[-1] for stream in streams} == {"[DONE]"}
        assert_ended(server, children, words)


def test_a_killed_http_process_takes_its_own_streams_alone(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_servers(checkpoint, tmp_path) as server:
        children = everyone(server)
        with paced(server) as engines:
            streams = streams_of_both(server, engines)
            server.api_processes()[1].kill()
        ends = [stream.end_or_break()[-1] for stream in streams]
        assert 0 < ends.count("[DONE]") < len(streams)
        for stream, end in zip(streams, ends, strict=True):
            assert (stream.broken is None) is (end == "[DONE]")
        assert_ended(server, children, "API server process 2")


@pytest.mark.whole
def test_the_last_rank_is_the_engine(checkpoint: Path, tmp_path: Path) -> None:
    with ready_servers(checkpoint, tmp_path) as server:
        children = everyone(server)
        with paced(server) as engines:
            streams = streams_of_both(server, engines)
            for victim in engines.engines:
                victim.kill()
        for stream in streams:
            assert error_of(stream.end()[-1])["code"] == "engine_dead"
        assert_ended(server, children, "the engine process of rank")


def assert_ended(server: ServerProcess, children: list[psutil.Process], words: str) -> None:
    assert server.wait_exit() == 1
    last_line = server.log.strip().splitlines()[-1]
    assert last_line.startswith("error: ")
    assert words in last_line
    assert not any(child.is_running() for child in children)
    assert "Traceback" not in server.log


@pytest.mark.whole
def test_children_do_not_outlive_a_killed_server(checkpoint: Path, tmp_path: Path) -> None:
    with ready_servers(checkpoint, tmp_path) as server:
        children = everyone(server)
        children[0].suspend()  # one that could not read the end of its input
        children[3].suspend()
        server.signal(signal.SIGKILL)
        server.wait_exit()
        gone, alive = psutil.wait_procs(children, timeout=HANG_SECONDS)
        assert (len(gone), alive) == (4, [])


def test_what_is_wrong_with_a_start_is_said_once(checkpoint: Path, tmp_path: Path) -> None:
    words = ["serve", "--device", "cpu", "--host", "127.0.0.1", "--server-port", "0", *FLAGS]
    done = run_atom(*words, "--model", str(tmp_path / "missing"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no such folder" in done.stderr
    done = run_atom(*words, "--model", str(checkpoint), "--num-kv-blocks", "3")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith("error: rank ")
    assert "num_kv_blocks 3" in last_line


def test_a_taken_port_is_an_error_though_the_processes_share_theirs(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = str(taken.getsockname()[1])
        words = ["serve", "--model", str(checkpoint), "--host", "127.0.0.1"]
        done = run_atom(*words, "--server-port", port, *FLAGS)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot listen")
