"""CoreManager and real engine processes: ranks, routing of aborts and calls, start-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.wire.core_port import CoreFailed
from atom.model_engine.wire.engine_protocol import RankStats
from tests.support.engine_core.core_client import CoreClient, core_client
from tests.support.models.tiny_model import make_tiny_checkpoint

PROMPTS = [[number + 3, 17, number * 2 + 5, 40] for number in range(8)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, max_position_embeddings=8192)


def config_of(checkpoint: Path, **options: object) -> Config:
    settings: dict[str, object] = {"device": "cpu", "num_kv_blocks": 600, "max_num_seqs": 16}
    return build_config(EngineOptions.of(model=str(checkpoint), **{**settings, **options}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def two_ranks(checkpoint: Path) -> Iterator[CoreClient]:
    with core_client(config_of(checkpoint, data_parallel_size=2)) as client:
        yield client


def ranks_that_worked(client: CoreClient, steps_before: dict[int, int]) -> set[int]:
    return {rank for rank, steps in latest_steps(client).items() if steps > steps_before[rank]}


def latest_steps(client: CoreClient) -> dict[int, int]:
    """Steps that each rank has made, by a beat that comes from now on."""
    client.call("check_integrity")  # both loops have come to rest behind it
    found: dict[int, int] = {}
    while len(found) < 2:
        event = client.next_of(RankStats)
        found[event.rank] = event.stats.steps_total
    return found


def test_two_ranks_give_the_same_greedy_tokens_as_one(
    checkpoint: Path, two_ranks: CoreClient
) -> None:
    before = latest_steps(two_ranks)
    of_two = two_ranks.wait_finished(*two_ranks.add(*PROMPTS, max_tokens=24))
    assert ranks_that_worked(two_ranks, before) == {0, 1}
    with core_client(config_of(checkpoint)) as one:
        of_one = one.wait_finished(*one.add(*PROMPTS, max_tokens=24))
    assert of_two == of_one
    assert len(set(map(tuple, of_one))) > 1, "the answers differ, so a mix-up would show"


def test_each_rank_reports_its_own_sizes(two_ranks: CoreClient) -> None:
    report = two_ranks.report
    assert report.data_parallel_size == 2
    assert [(rank.rank, rank.num_blocks) for rank in report.ranks] == [(0, 600), (1, 600)]
    assert report.num_blocks == 600, "sizes are per rank"


def test_an_abort_ends_its_request_on_its_rank_and_no_other(two_ranks: CoreClient) -> None:
    numbers = two_ranks.add([5], [6], [7], [8], max_tokens=4000)
    for number in numbers:
        two_ranks.wait_first_token(number)
    left, *others = numbers
    two_ranks.manager.abort_requests([left])
    two_ranks.wait_finished(left)
    assert two_ranks.finished[left].reason == "abort"
    assert not any(number in two_ranks.finished for number in others)
    two_ranks.manager.abort_requests(others)
    two_ranks.wait_finished(*others)
    two_ranks.assert_well()


def test_an_abort_of_an_ended_or_unknown_request_is_nothing(two_ranks: CoreClient) -> None:
    (ended,) = two_ranks.add([5, 6], max_tokens=1)
    two_ranks.wait_finished(ended)
    two_ranks.manager.abort_requests([ended, ended + 10_000])
    two_ranks.assert_well()


def test_a_call_reaches_every_rank(two_ranks: CoreClient) -> None:
    assert two_ranks.call("reset_prefix_cache").result == [None, None]
    unknown = two_ranks.call("no_such_call").error
    assert unknown is not None
    assert unknown.startswith("rank 0: no utility 'no_such_call'; there are: ")
    assert "; rank 1: no utility" in unknown


def test_unseeded_requests_of_two_ranks_draw_apart(checkpoint: Path) -> None:
    config = config_of(checkpoint, data_parallel_size=2, data_parallel_routing="round_robin")
    with core_client(config) as client:
        first, second = client.wait_finished(
            *client.add([5, 6], [5, 6], max_tokens=24, temperature=1.0)
        )
    assert first != second


def test_a_rank_that_cannot_start_is_named_with_its_own_words(checkpoint: Path) -> None:
    config = config_of(checkpoint, data_parallel_size=2)
    broken = dataclasses.replace(config.cache, num_kv_blocks=3)
    client = CoreClient(dataclasses.replace(config, cache=broken))
    try:
        client.start()
        failed = client.next_of(CoreFailed)
    finally:
        client.manager.shutdown()
    assert failed.user_error
    assert failed.message.startswith(("rank 0: num_kv_blocks 3", "rank 1: num_kv_blocks 3"))


@pytest.mark.fresh_processes
def test_closing_leaves_neither_processes_nor_files(checkpoint: Path) -> None:
    client = CoreClient(config_of(checkpoint, data_parallel_size=2))
    folder = client.manager.address.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    client.start().wait_ready()
    processes = client.processes()
    assert len(processes) == 2
    client.manager.shutdown()
    assert not any(process.is_running() for process in processes)
    assert not folder.exists()


def test_two_ranks_with_states_say_what_one_does(tmp_path: Path) -> None:
    """Each has states and checkpoints of its own; the second round finds prefixes on either."""
    model = make_tiny_checkpoint(tmp_path, "qwen3_next", layers=4)
    draw = np.random.default_rng(4)
    prompts = [draw.integers(3, 290, size).tolist() for size in (40, 70, 100, 33)]
    answers = []
    for ranks in (1, 2):
        config = config_of(
            model, data_parallel_size=ranks, data_parallel_routing="round_robin", max_num_seqs=4
        )
        with core_client(config) as client:
            assert client.report.num_checkpoints > 0
            for _ in range(2):
                found = client.wait_finished(*client.add(*prompts, max_tokens=8))
                answers.append(found)
    assert answers[1:] == answers[:-1]
