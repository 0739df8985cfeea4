"""Ranks on several nodes with tokens of their own share experts: their tokens are one process's,
and they live and die together.

Both nodes are this machine, so that they meet on its loopback interface; the further one is started
as a user starts it. Groups start slowly, so each test asks one of everything that it leaves well.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from atom.config import Config, EngineOptions, NodePlace, build_config
from atom.eplb_config import EPLBConfig
from atom.errors import ConfigError
from atom.model_engine.wire.core_port import CoreFailed
from tests.support.engine_core.core_client import CoreClient, core_client
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.further_node import FurtherNode, further_node
from tests.support.server.open_stream import OpenStream, error_of
from tests.support.server.server_process import reserved_port, server_process
from tests.support.waiting import wait_until

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
PROMPTS = [[5, 6, 7], list(range(3, 60)), [9] * 17, [4, 3, 2]]
LONG = 8000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    extra = {"vocab_size": 384, **EXPERTS}
    return str(make_tiny_checkpoint(folder, "qwen3_moe", max_position_embeddings=8192, extra=extra))


@pytest.fixture(scope="module")
def expected(model: str) -> list[list[int]]:
    """One process's answers."""
    alone = CoreDriver(model, num_kv_blocks=600, max_num_seqs=4)
    return alone.generate(PROMPTS, max_tokens=12, ignore_eos=True)


def config_of(model: str, **options: Any) -> Config:
    settings: dict[str, Any] = {
        "num_kv_blocks": 600, "max_num_seqs": 4, "data_parallel_size": 2, "nnodes": 2,
        "enable_dp_attention": True, "enable_expert_parallel": True, "stall_seconds": 2.0,
    }  # fmt: skip
    return build_config(EngineOptions.of(model=model, device="cpu", **{**settings, **options}))


@contextmanager
def two_nodes(model: str, folder: Path, **options: Any) -> Iterator[tuple[CoreClient, FurtherNode]]:
    """A group that is ready."""
    with reserved_port() as port:
        config = config_of(model, master_port=port, **options)
        place = NodePlace(count=2, rank=1, port=port)
        size = str(config.parallel.data_parallel_size)
        flags = ["--data-parallel-size", size, "--enable-dp-attention", "--enable-expert-parallel"]
        with (
            further_node(model, place, folder / "node.log", *flags) as node,
            core_client(config) as client,
        ):
            yield client, node


def wait_gone(processes: list[psutil.Process]) -> None:
    for process in processes:
        wait_until(lambda process=process: not process.is_running(), f"the end of {process}")


def test_two_nodes_say_what_one_process_says_and_a_lost_core_ends_both_by_name(
    model: str, expected: list[list[int]], tmp_path: Path
) -> None:
    with two_nodes(model, tmp_path) as (client, node):
        assert client.wait_finished(*client.add(*PROMPTS, max_tokens=12)) == expected
        assert client.answer(PROMPTS[0], max_tokens=12) == expected[0], "with an idle rank"
        ((first,), (other,)) = client.processes(), node.core_processes()
        (endless,) = client.add([5, 6], max_tokens=LONG)
        client.wait_first_token(endless)
        client.manager.abort_requests([endless])
        client.wait_finished(endless)
        assert len(client.tokens[endless]) < LONG
        client.assert_well()
        assert [rank.rank for rank in client.report.ranks] == [0, 1]
        client.wait_first_token(*client.add([5, 6], max_tokens=LONG))
        other.send_signal(signal.SIGKILL)
        message = client.next_of(CoreFailed).message
        assert message.startswith("the engine process of rank 1 on node 1 (")
        assert message.endswith(f"(pid {other.pid}) was killed by signal 9 (out of memory?)")
        assert node.wait_exit() == 1
        assert message in node.log
        wait_gone([first])


@pytest.mark.slow
def test_four_ranks_end_in_order(model: str, expected: list[list[int]], tmp_path: Path) -> None:
    balance = EPLBConfig(window_steps=4, interval_steps=4)
    with two_nodes(model, tmp_path, data_parallel_size=4, balance=balance) as (client, node):
        assert client.wait_finished(*client.add(*PROMPTS, max_tokens=12)) == expected
        client.assert_well()
        cores = [*client.processes(), *node.core_processes()]
        assert len(cores) == 4
        node.process.send_signal(signal.SIGTERM)  # as a pod is told when its group ends
        assert client.answer(PROMPTS[1], max_tokens=12) == expected[1]
        client.wait_first_token(*client.add([5, 6], max_tokens=LONG))
        client.manager.shutdown()
        assert node.wait_exit() == 0, node.log
        wait_gone(cores)
        while not client.events.empty():
            assert not isinstance(client.events.get(), CoreFailed)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["core of the first node", "process of the further node"])
def test_what_dies_ends_both_nodes_by_name(model: str, tmp_path: Path, victim: str) -> None:
    with two_nodes(model, tmp_path) as (client, node):
        cores = [*client.processes(), *node.core_processes()]
        client.wait_first_token(*client.add([5, 6], max_tokens=LONG))
        if victim == "core of the first node":
            cores[0].send_signal(signal.SIGKILL)
            words = "the engine process of rank 0 on node 0 ("
        else:
            node.node_process().send_signal(signal.SIGKILL)
            words = "node 1 ("
        message = client.next_of(CoreFailed).message
        assert message.startswith(words)
        assert node.wait_exit() == 1
        if victim == "core of the first node":
            assert message in node.log
        else:
            assert message.endswith("of the data-parallel group is gone: its connection has ended")
        wait_gone(cores)


@pytest.mark.slow
def test_a_core_of_another_node_that_hangs_is_named(model: str, tmp_path: Path) -> None:
    with two_nodes(model, tmp_path) as (client, node):
        client.wait_first_token(*client.add([5, 6], max_tokens=LONG))
        node.core_processes()[0].send_signal(signal.SIGSTOP)
        while not isinstance(event := client.events.get(), CoreFailed):
            pass
        assert "rank 1 of the data-parallel group is behind the others" in event.message
        assert node.wait_exit() == 1
        assert event.message in node.log


@pytest.mark.slow
def test_a_core_that_cannot_start_is_told_by_its_own_words_on_its_node(
    model: str, tmp_path: Path
) -> None:
    flags = ["--data-parallel-size", "2", "--enable-dp-attention", "--enable-expert-parallel"]
    with reserved_port() as port:
        place = NodePlace(count=2, rank=1, port=port)
        client = CoreClient(config_of(model, master_port=port, num_kv_blocks=3))
        try:
            with further_node(model, place, tmp_path / "node.log", *flags) as node:
                client.start()
                failed = client.next_of(CoreFailed)
                assert node.wait_exit() == 1
                words = ("rank 0: num_kv_blocks 3", "rank 1: num_kv_blocks 3")
                assert failed.user_error
                assert failed.message.startswith(words)
                said = [line for line in node.log.splitlines() if " ERROR node 1 " in line]
                assert said[-1].endswith(failed.message)
        finally:
            client.manager.shutdown()


def test_a_server_that_waits_for_nodes_can_be_stopped(model: str) -> None:
    with reserved_port() as port:
        config = config_of(model, master_port=port)
        client = CoreClient(config).start()
        with pytest.raises(ConfigError, match=f"master_port {port} cannot be listened on"):
            CoreClient(config)
        client.manager.shutdown()
        CoreClient(config).manager.shutdown()  # the port is free


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data_parallel_size": 3}, "3 ranks are not equally many on each of 2 nodes; .*: 2, 4, 8"),
        ({"data_parallel_size": 6}, "8 experts are not .* over 2 nodes: 2, 4, 8"),
        ({"tensor_parallel_size": 2}, "not over 2 × 2"),
    ],
    ids=str,
)
def test_places_that_cannot_be_are_refused(model: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(model, **options)


def test_a_further_node_is_no_server(model: str) -> None:
    with pytest.raises(ConfigError, match="run by `atom serve` alone"):
        CoreClient(config_of(model, node_rank=1))


@pytest.mark.slow
def test_every_http_process_is_reached_from_another_node(model: str, tmp_path: Path) -> None:
    flags = ["--data-parallel-size", "2", "--enable-dp-attention", "--enable-expert-parallel"]
    with reserved_port() as port:
        place = NodePlace(count=2, rank=1, port=port)
        servers = ["--nnodes", "2", "--master-port", str(port), "--api-server-count", "2"]
        with (
            further_node(model, place, tmp_path / "node.log", *flags) as node,
            server_process(model, tmp_path / "log", *flags, *servers) as server,
        ):
            server.wait_ready()
            # Every request is a new connection, so the kernel spreads them over the processes.
            streams = [OpenStream(server, prompt=[5, n], max_tokens=20) for n in range(8)]
            assert {stream.end()[-1] for stream in streams} == {"[DONE]"}
            answering = [name for name in ("api-1", "api-2") if f"{name} uvicorn" in server.log]
            assert answering == ["api-1", "api-2"], "both took part"
            assert server.metric("generation_tokens_total") == 8 * 20
            assert server.metric("rank_generation_tokens_total") == 8 * 20
            open_ones = [OpenStream(server, prompt=[5, n]) for n in range(8)]
            (victim,) = node.core_processes()
            victim.send_signal(signal.SIGKILL)
            words = f"rank 1 on node 1 ({socket.gethostname()}) (pid {victim.pid}) was killed"
            for stream in open_ones:
                assert words in error_of(stream.end()[-1])["message"]
            assert server.wait_exit() == 1
            assert words in server.log.strip().splitlines()[-1]
            assert node.wait_exit() == 1
