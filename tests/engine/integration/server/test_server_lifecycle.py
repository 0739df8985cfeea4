"""How the real server starts and ends: signals, a killed engine, bad models, taken ports."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.torch import load_file, save_file

from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.processes import has_ended
from tests.support.server.open_stream import LONG, OpenStream, error_of
from tests.support.server.paced_engines import paced
from tests.support.server.server_process import ServerProcess, run_atom, server_process
from tests.support.waiting import HANG_SECONDS, wait_until

FEW_FILES = 128
TOKENS = 400
PROMPTS = [f"s {number}" for number in range(4)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    return make_tiny_checkpoint(folder, "llama", max_position_embeddings=8192)


@contextlib.contextmanager
def ready_server(checkpoint: Path, tmp_path: Path, *flags: str) -> Iterator[ServerProcess]:
    with server_process(checkpoint, tmp_path / "log", *flags) as server:
        yield server.wait_ready()


@pytest.fixture
def hears_hangups() -> Iterator[None]:
    """What is started hears SIGHUP, though this run may be one that nohup started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ask(server: ServerProcess) -> httpx.Response:
    return server.post("/v1/completions", prompt="y")


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.fresh_processes
def test_a_signal_lets_running_requests_finish_refuses_new_ones_and_exits_0(
    checkpoint: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with ready_server(checkpoint, tmp_path, "--drain-seconds", "600") as server:
        with paced(server) as engines:
            (stream,) = engines.begin(server, TOKENS, "s")
            server.signal(number)
            wait_until(lambda: server.health()[1].get("status") == "draining", "it drains")
            refused = ask(server)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "draining" in refused.json()["error"]["message"]
        events = stream.end()
        assert events[-1] == "[DONE]"
        assert '"finish_reason":"length"' in events[-2]
        assert server.wait_exit() == 0
        assert "Traceback" not in server.log


def test_requests_that_do_not_finish_in_time_get_an_error_and_the_exit_is_0(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_server(checkpoint, tmp_path, "--drain-seconds", "0.5") as server:
        stream = OpenStream(server)
        engine = server.engine_process()
        server.signal(signal.SIGINT)
        assert "shut down before" in error_of(stream.end()[-1])["message"]
        assert server.wait_exit() == 0
        assert not engine.is_running()


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param("<&- >&- 2>&-", id="none"),
        pytest.param(">&- 2>&-", id="only stdin", marks=pytest.mark.whole),
        pytest.param("> >(:) 2>&1", id="no reader"),
    ],
)
def test_without_standard_streams_a_server_drains_and_exits_0(
    checkpoint: Path, tmp_path: Path, streams: str
) -> None:
    launcher = ("bash", "-c", f'exec "$@" {streams}', "bash")
    with server_process(checkpoint, tmp_path / "log", launcher=launcher) as server:
        server.wait_ready()
        with paced(server) as engines:
            (stream,) = engines.begin(server, TOKENS, "s")
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.health()[1].get("status") == "draining", "it drains")
        assert stream.end()[-1] == "[DONE]"
        assert server.wait_exit() == 0


def test_a_second_signal_ends_at_once(checkpoint: Path, tmp_path: Path) -> None:
    with ready_server(checkpoint, tmp_path, "--drain-seconds", "600") as server:
        OpenStream(server)
        engine = server.engine_process()
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.health()[1].get("status") == "draining", "it drains")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 1
        wait_until(lambda: not engine.is_running(), "the engine process is gone")


@pytest.mark.fresh_processes
def test_sigterm_during_start_up_ends_promptly(checkpoint: Path, tmp_path: Path) -> None:
    with server_process(checkpoint, tmp_path / "log") as server:
        wait_until(lambda: server.health()[0] == 503, "it listens")
        assert server.health()[1]["status"] == "starting"
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert server.url not in server.log, "it never announced that it serves"
        assert "Traceback" not in server.log


def test_a_killed_engine_process_ends_open_requests_and_the_server_with_code_1(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_server(checkpoint, tmp_path) as server:
        with paced(server) as engines:
            streams = engines.begin(server, TOKENS, *PROMPTS)
            engines.engines[0].kill()
        for stream in streams:
            error = error_of(stream.end()[-1])
            assert error["code"] == "engine_dead"
            assert "signal 9" in error["message"]
        assert server.wait_exit() == 1
        last_line = server.log.strip().splitlines()[-1]
        assert last_line.startswith("error: the engine stopped: ")
        assert "signal 9" in last_line
        assert "Traceback" not in server.log


def test_a_killed_rank_of_two_is_named_while_the_other_finishes_what_both_began(
    checkpoint: Path, tmp_path: Path
) -> None:
    """And until the end the port answers: it is refused once no engine process is left."""
    with ready_server(checkpoint, tmp_path, "--data-parallel-size", "2") as server:
        with paced(server) as engines:
            streams = engines.begin(server, TOKENS, *PROMPTS)
            victim, other = engines.engines
            victim.kill()
            reason = "the engine process of rank 0"
            wait_until(lambda: reason in server.health()[1].get("reason", ""), "the loss is named")
            assert server.health()[1]["status"] == "draining"
            assert server.get("/live").status_code == 200
            refused = ask(server)
            assert refused.status_code == 503
            assert reason in refused.json()["error"]["message"]
        assert [stream.end()[-1] for stream in streams] == ["[DONE]"] * 4
        wait_until(lambda: server.health() == (0, {}), "the port is closed")
        assert has_ended(other)
        assert server.wait_exit() == 1
        last_line = server.log.strip().splitlines()[-1]
        assert last_line.startswith(f"error: {reason}")
        assert "Traceback" not in server.log


def test_a_rank_that_fails_in_a_step_says_why_and_the_other_finishes(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_server(checkpoint, tmp_path, "--data-parallel-size", "2") as server:
        with paced(server) as engines:
            streams = engines.begin(server, TOKENS, *PROMPTS)
            engines.engines[1].send_signal(signal.SIGSEGV)
        assert [stream.end()[-1] for stream in streams] == ["[DONE]"] * 4
        assert server.wait_exit() == 1
        assert "was killed by signal 11" in server.log.strip().splitlines()[-1]


def test_a_stopped_engine_process_fails_health_and_live_until_it_runs_again(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_server(checkpoint, tmp_path, "--stall-seconds", "3") as server:
        with paced(server) as engines:
            (stream,) = engines.begin(server, TOKENS, "s")
            wait_until(lambda: server.health()[1].get("status") == "stalled", "a stall is seen")
            assert "rank 0 has computed nothing" in server.health()[1]["reason"]
            live = server.get("/live")
            assert (live.status_code, live.json()["status"]) == (503, "stalled")
            assert ask(server).status_code == 503
        wait_until(lambda: server.health()[0] == 200, "it is well again")
        assert stream.end()[-1] == "[DONE]", "nothing was lost"
        assert server.get("/live").status_code == 200


def test_a_client_that_leaves_frees_what_its_request_held(checkpoint: Path, tmp_path: Path) -> None:
    with ready_server(checkpoint, tmp_path) as server:
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json={**LONG, "max_tokens": 8000},
            timeout=HANG_SECONDS,
        ) as response:
            lines = response.iter_lines()  # kept: its end would close the connection
            next(lines)
            wait_until(lambda: server.metric("requests_running") == 1, "it runs")
        wait_until(lambda: server.metric("requests_running") == 0, "it was aborted")
        assert server.metric("kv_cache_blocks_used") == 0
        assert server.metric("generation_tokens_total") < 8000


@pytest.mark.fresh_processes
def test_the_engine_process_does_not_outlive_a_killed_server(
    checkpoint: Path, tmp_path: Path
) -> None:
    with ready_server(checkpoint, tmp_path) as server:
        engine = server.engine_process()
        server.signal(signal.SIGKILL)
        server.wait_exit()
        psutil.wait_procs([engine], timeout=HANG_SECONDS)
        assert not engine.is_running()


def test_more_connections_than_the_soft_limit_of_open_files_are_served(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Container runtimes start programs with few files allowed, and a hard limit far above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server = stack.enter_context(ready_server(checkpoint, tmp_path))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))  # the child keeps what it has
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(FEW_FILES + 50)
        ]
        for connection in connections:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        for connection in connections:
            connection.settimeout(HANG_SECONDS)
            assert connection.recv(12) == b"HTTP/1.1 200"


def test_a_taken_port_is_one_error(checkpoint: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_atom(
            "serve", "--model", str(checkpoint), "--host", "127.0.0.1", "--server-port", port
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot listen")
    assert done.stderr.count("\n") == 1


def test_bad_models_are_one_error_with_code_1(checkpoint: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    strange = make_tiny_checkpoint(tmp_path / "strange", "llama")
    text = (strange / "config.json").read_text().replace("LlamaForCausalLM", "MambaForCausalLM")
    (strange / "config.json").write_text(text)
    truncated = make_tiny_checkpoint(tmp_path / "truncated", "llama")
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    wordless = make_tiny_checkpoint(tmp_path / "wordless", "llama")
    (wordless / "tokenizer.json").unlink()
    # What no header shows is found when a part of the weights is read already.
    halfway, _ = make_quantised_checkpoint(tmp_path / "halfway", LAYOUTS["gptq-ordered"], "llama")
    tensors = load_file(halfway / "model.safetensors")
    last = max(name for name in tensors if name.endswith("g_idx"))
    save_file({**tensors, last: tensors[last] + 1000}, halfway / "model.safetensors")
    cases = {
        tmp_path / "missing": "no such folder",
        empty: "config.json",
        strange: "MambaForCausalLM",
        truncated: "model.safetensors",
        wordless: "tokenizer.json",
        halfway: f"{last}: names groups",
    }
    for folder, words in cases.items():
        done = run_atom("serve", "--model", str(folder), "--server-port", "0", "--device", "cpu")
        assert done.returncode == 1, (folder, done.stderr)
        assert "Traceback" not in done.stderr
        last_line = done.stderr.strip().splitlines()[-1]
        assert last_line.startswith("error: "), done.stderr
        assert words in last_line
