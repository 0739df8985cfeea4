"""Ranks that share a model live and die together, and the one that is to blame is named."""

from __future__ import annotations

import signal

import psutil
import pytest

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.wire.core_port import CoreFailed, CoreStalled
from atom.model_engine.wire.engine_protocol import StreamBody
from tests.support.engine_core.core_client import CoreClient, core_client
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.processes import children_that_run
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = make_tiny_checkpoint(
        tmp_path_factory.mktemp("tiny"), max_position_embeddings=8192, extra={"vocab_size": 384}
    )
    options = EngineOptions.of(
        model=str(folder),
        device="cpu",
        num_kv_blocks=600,
        max_num_seqs=4,
        tensor_parallel_size=2,
        stall_seconds=2.0,
    )
    return build_config(options)


def _processes(client: CoreClient) -> tuple[psutil.Process, psutil.Process]:
    """The core's, which is rank 0, and rank 1's."""
    (core,) = client.processes()
    (follower,) = children_that_run("rank_main", core.pid)
    return core, follower


def _wait_gone(*processes: psutil.Process) -> None:
    for process in processes:
        wait_until(lambda process=process: not process.is_running(), f"the end of {process}")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a step"])
def test_a_killed_rank_takes_its_group_down(config: Config, busy: bool) -> None:
    with core_client(config) as client:
        client.assert_well()
        processes = _processes(client)
        if busy:
            client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        victim = processes[1]
        victim.send_signal(signal.SIGKILL)
        failed = client.next_of(CoreFailed)
        assert failed.message.startswith(
            f"rank 1 of the tensor-parallel group (pid {victim.pid}) was killed by signal 9"
        )
        _wait_gone(*processes)


def test_a_rank_that_hangs_is_named_and_its_group_ended(config: Config) -> None:
    with core_client(config) as client:
        processes = _processes(client)
        client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        processes[1].send_signal(signal.SIGSTOP)
        while not isinstance(event := client.events.get(), CoreFailed):
            assert isinstance(event, StreamBody | CoreStalled) or event.rank == 0
        assert event.message.startswith("rank 1 of the tensor-parallel group is behind the others")
        _wait_gone(*processes)


@pytest.mark.fresh_processes
def test_no_rank_outlives_the_core(config: Config) -> None:
    with core_client(config) as client:
        core, follower = _processes(client)
        follower.send_signal(signal.SIGSTOP)  # it cannot even look
        core.send_signal(signal.SIGKILL)
        assert "was killed by signal 9" in client.next_of(CoreFailed).message
        _wait_gone(core, follower)
