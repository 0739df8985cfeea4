"""Ranks on several nodes: their tokens are one process's, and they live and die together.

Both nodes are this machine, so that they meet on its loopback interface; the further one is started
as a user starts it. Two pods are tests/operator/live/neighbours/test_engine_over_nodes.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from atom.config import Config, EngineOptions, NodePlace, build_config
from atom.errors import ConfigError
from atom.model_engine.wire.core_port import CoreFailed
from tests.engine.integration.ranks.test_tensor_parallel import EXPERTS, MLA_EXPERTS
from tests.support.engine_core.core_client import CoreClient, core_client
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint
from tests.support.processes import children_of, children_that_run
from tests.support.ranks.further_node import FurtherNode, further_node
from tests.support.server.server_process import reserved_port
from tests.support.waiting import wait_until

PROMPTS = [[5, 6, 7], list(range(3, 60)), [9] * 17]
SIZE = ["--tensor-parallel-size", "2"]
WHOLE_EXPERTS = "--enable-expert-parallel"


@pytest.fixture
def port() -> Iterator[int]:
    """Where the nodes meet."""
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    extra = {"vocab_size": 384}
    return str(make_tiny_checkpoint(folder, max_position_embeddings=8192, extra=extra))


def config_of(model: str, **options: object) -> Config:
    settings = {
        "num_kv_blocks": 600, "max_num_seqs": 4, "tensor_parallel_size": 2, "nnodes": 2,
        "stall_seconds": 2.0,
    }  # fmt: skip
    return build_config(EngineOptions.of(model=model, device="cpu", **{**settings, **options}))  # type: ignore[arg-type]


@contextmanager
def two_nodes(
    model: str, folder: Path, *, whole_experts: bool = False
) -> Iterator[tuple[CoreClient, FurtherNode]]:
    """A group that is ready."""
    with reserved_port() as port:
        config = config_of(model, master_port=port, enable_expert_parallel=whole_experts)
        place = NodePlace(count=2, rank=1, port=port)
        flags = [*SIZE, WHOLE_EXPERTS] if whole_experts else SIZE
        with (
            further_node(model, place, folder / "node.log", *flags) as node,
            core_client(config) as client,
        ):
            yield client, node


@pytest.mark.fresh_processes
def test_two_nodes_say_what_one_process_says(model: str, tmp_path: Path) -> None:
    alone = CoreDriver(model, num_kv_blocks=600, max_num_seqs=4)
    expected = alone.generate(PROMPTS, max_tokens=12, ignore_eos=True)
    with two_nodes(model, tmp_path) as (client, node):
        assert client.wait_finished(*client.add(*PROMPTS, max_tokens=12)) == expected
        client.assert_well()
        (core,) = client.processes()
        assert not children_that_run("rank_main", core.pid)
        rank = node.rank_process()
        node.process.send_signal(signal.SIGTERM)  # as a pod is told when its group ends
        assert client.answer(PROMPTS[0], max_tokens=12) == expected[0]
        client.manager.shutdown()
        assert node.wait_exit() == 0, node.log
        wait_until(lambda: not rank.is_running(), "the end of rank 1")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek3"])
def test_two_nodes_with_whole_experts_each_say_what_one_process_says(
    architecture: Architecture, tmp_path: Path
) -> None:
    experts = EXPERTS if architecture == "qwen3_moe" else MLA_EXPERTS
    folder = tmp_path / "mixture"
    model = str(make_tiny_checkpoint(folder, architecture, extra={"vocab_size": 384, **experts}))
    alone = CoreDriver(model, num_kv_blocks=600, max_num_seqs=4)
    expected = alone.generate(PROMPTS, max_tokens=12, ignore_eos=True)
    with two_nodes(model, tmp_path, whole_experts=True) as (client, node):
        assert client.wait_finished(*client.add(*PROMPTS, max_tokens=12)) == expected
        assert client.report.weights_bytes < alone.report.weights_bytes
        client.assert_well()
        rank = node.rank_process()
        rank.send_signal(signal.SIGKILL)
        message = client.next_of(CoreFailed).message
        assert message.startswith("rank 1 of the tensor-parallel group on node 1 (")
        assert node.wait_exit() == 1


@pytest.mark.parametrize("victim", ["rank", pytest.param("node", marks=pytest.mark.slow)])
def test_what_dies_on_another_node_ends_the_group_by_name(
    model: str, tmp_path: Path, victim: str
) -> None:
    with two_nodes(model, tmp_path) as (client, node):
        (core,) = client.processes()
        client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        process = node.rank_process() if victim == "rank" else node.node_process()
        process.send_signal(signal.SIGKILL)
        message = client.next_of(CoreFailed).message
        if victim == "rank":
            assert message.startswith("rank 1 of the tensor-parallel group on node 1 (")
            assert f"(pid {process.pid}) was killed by signal 9" in message
        else:
            assert message.startswith("node 1 (")
            assert message.endswith("is gone: its connection has ended")
        assert node.wait_exit() == 1
        assert ("killed by signal 9") in node.log
        wait_until(lambda: not core.is_running(), "the end of the core")


@pytest.mark.slow
def test_a_first_node_that_dies_takes_the_others_along(model: str, tmp_path: Path) -> None:
    with two_nodes(model, tmp_path) as (client, node):
        (core,) = client.processes()
        rank = node.rank_process()
        core.send_signal(signal.SIGKILL)
        assert node.wait_exit() == 1
        assert "the first node is gone" in node.log
        wait_until(lambda: not rank.is_running(), "the end of rank 1")


@pytest.mark.slow
def test_a_node_that_hangs_is_named(model: str, tmp_path: Path) -> None:
    with two_nodes(model, tmp_path) as (client, node):
        client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        node.node_process().send_signal(signal.SIGSTOP)
        while not isinstance(event := client.events.get(), CoreFailed):
            pass
        assert event.message.startswith("the node of rank 1 of the tensor-parallel group is silent")


def test_a_node_that_waits_for_the_first_can_be_stopped(
    model: str, tmp_path: Path, port: int
) -> None:
    place = NodePlace(count=2, rank=1, port=port)
    with further_node(model, place, tmp_path / "node.log", *SIZE) as node:
        waiting = node.node_process()
        node.process.send_signal(signal.SIGTERM)
        assert node.wait_exit() == 0
        wait_until(lambda: not psutil.pid_exists(waiting.pid), "its end")


@pytest.mark.fresh_processes
def test_a_node_that_is_started_again_in_its_place_joins_no_other_group(
    model: str, tmp_path: Path, port: int
) -> None:
    """As a pod's container is when its group has ended, before the pod is deleted: the next
    group's first node has the same name, and would be lost with the pod."""
    place, started = NodePlace(count=2, rank=1, port=port), tmp_path / "started"
    environment = {"ATOM_JOIN_ONCE": str(started)}
    with further_node(model, place, tmp_path / "first.log", *SIZE, environment=environment) as node:
        node.node_process()
        assert started.exists()
    with further_node(model, place, tmp_path / "again.log", *SIZE, environment=environment) as node:
        wait_until(lambda: "joins no other, and waits to be ended" in node.log, "a second start")
        assert not children_of(node.process.pid), "nothing of it looks for a group"
        node.process.send_signal(signal.SIGTERM)
        assert node.wait_exit() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel_size": 3}, "give a multiple of 2"),
        ({"node_rank": 2}, "node_rank must be within"),
        ({"data_parallel_size": 2}, "several copies of the model over several nodes"),
        ({"master_port": 0}, "master_port must be within"),
        ({"tensor_parallel_size": 6}, "sizes that divide this model over 2 nodes: 2, 4"),
    ],
    ids=str,
)
def test_places_that_cannot_be_are_refused(model: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(model, **options)
