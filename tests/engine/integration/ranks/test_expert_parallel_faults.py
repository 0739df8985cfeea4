"""Cores that share experts serve together, rest together, and live and die together."""

from __future__ import annotations

import signal

import psutil
import pytest

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.wire.core_port import CoreFailed, CoreStalled
from atom.model_engine.wire.engine_protocol import StreamBody
from tests.support.engine_core.core_client import CoreClient, core_client
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.waiting import wait_until

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    extra = {"vocab_size": 384, **EXPERTS}
    return str(make_tiny_checkpoint(folder, "qwen3_moe", max_position_embeddings=8192, extra=extra))


@pytest.fixture(scope="module")
def config(model: str) -> Config:
    options = EngineOptions.of(
        model=model,
        device="cpu",
        num_kv_blocks=600,
        max_num_seqs=4,
        data_parallel_size=2,
        enable_dp_attention=True,
        enable_expert_parallel=True,
        stall_seconds=2.0,
    )
    return build_config(options)


def _wait_gone(processes: list[psutil.Process]) -> None:
    for process in processes:
        wait_until(lambda process=process: not process.is_running(), f"the end of {process}")


def test_requests_of_both_ranks_are_served_and_the_end_of_an_idle_one_is_told(
    config: Config, model: str
) -> None:
    with core_client(config) as client:
        one, other = client.add([5, 6, 7], [9, 8, 7, 6], max_tokens=12)
        client.wait_finished(one, other)
        alone = CoreDriver(model, num_kv_blocks=600, max_num_seqs=4)
        expected = alone.generate([[5, 6, 7], [9, 8, 7, 6]], max_tokens=12, ignore_eos=True)
        assert [client.tokens[one], client.tokens[other]] == expected
        assert [rank.rank for rank in client.report.ranks] == [0, 1]
        client.assert_well()
        victim = client.processes()[1]
        victim.send_signal(signal.SIGKILL)
        assert f"rank 1 (pid {victim.pid}) was killed" in client.next_of(CoreFailed).message


def test_a_rank_that_is_killed_in_a_step_takes_its_group_down(config: Config) -> None:
    with core_client(config) as client:
        processes = client.processes()
        client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        victim = processes[1]
        victim.send_signal(signal.SIGKILL)
        failed = client.next_of(CoreFailed)
        assert failed.message.startswith(
            f"the engine process of rank 1 (pid {victim.pid}) was killed by signal 9"
        )
        _wait_gone(processes)


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_its_group_ended(config: Config) -> None:
    with core_client(config) as client:
        processes = client.processes()
        client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        processes[1].send_signal(signal.SIGSTOP)
        while not isinstance(event := client.events.get(), CoreFailed):
            assert isinstance(event, StreamBody | CoreStalled) or event.rank == 0
        assert "rank 1" in event.message


@pytest.mark.slow
def test_a_group_in_the_middle_of_an_answer_ends_in_order(config: Config) -> None:
    with core_client(config) as client:
        processes = client.processes()
        client.wait_first_token(*client.add([5, 6], max_tokens=8000))
        client.manager.shutdown(timeout_seconds=5.0)
        _wait_gone(processes)
        assert not any(isinstance(event, CoreFailed) for event in _left(client))


def _left(client: CoreClient) -> list[object]:
    events: list[object] = []
    while not client.events.empty():
        events.append(client.events.get())
    return events
