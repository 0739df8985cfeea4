from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from atom.config import Config
from atom.model_engine.wire.core_processes import thread_waiting, visible_devices
from tests.support.engine_core.front_half import build_test_config, write_model_folder


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = write_model_folder(tmp_path)
    return build_test_config(folder, device="auto", data_parallel_size=3)


def of_rank(config: Config, rank: int) -> Config:
    parallel = dataclasses.replace(config.parallel, data_parallel_rank=rank)
    return dataclasses.replace(config, parallel=parallel)


def test_each_rank_sees_the_device_of_its_number(config: Config) -> None:
    assert visible_devices(of_rank(config, 2), {}) == {
        "HIP_VISIBLE_DEVICES": "2",
        "CUDA_VISIBLE_DEVICES": "2",
    }


def test_ranks_share_out_what_the_environment_shows(config: Config) -> None:
    environ = {"HIP_VISIBLE_DEVICES": "4, 6,7", "CUDA_VISIBLE_DEVICES": ""}
    shown = [visible_devices(of_rank(config, rank), environ) for rank in range(3)]
    assert shown == [{"HIP_VISIBLE_DEVICES": name} for name in ("4", "6", "7")]


def test_a_rank_beyond_the_shown_devices_sees_none(config: Config) -> None:
    shown = visible_devices(of_rank(config, 2), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert shown == {"CUDA_VISIBLE_DEVICES": ""}


def test_one_rank_and_the_cpu_are_left_alone(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert visible_devices(build_test_config(folder, device="auto"), environ) == {}
    on_cpu = build_test_config(folder, device="cpu", data_parallel_size=2)
    assert visible_devices(of_rank(on_cpu, 1), environ) == {}


def test_how_threads_wait_is_ours_unless_the_user_says_it() -> None:
    assert int(thread_waiting({})["GOMP_SPINCOUNT"]) < 100_000
    assert thread_waiting({"OMP_WAIT_POLICY": "ACTIVE"}) == {}
    assert thread_waiting({"GOMP_SPINCOUNT": "5"}) == {}
