"""The fingerprint names what decides an answer's bits, where they are promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from atom.config import Config
from atom.config_values import GenerationDefaults
from atom.model_engine.front.fingerprint import Fingerprint
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> CoreDriver:
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("m"), layers=1)
    return CoreDriver(str(path), reproducible=True, num_kv_blocks=64, max_model_len=64)


def test_it_is_the_weights_version_where_nothing_else_is_promised(driver: CoreDriver) -> None:
    execution = replace(driver.config.execution, reproducible=False)
    config = replace(driver.config, execution=execution)
    assert Fingerprint(config).of("fp_1", driver.report) == "fp_1"


def test_its_parts_change_one_by_one(driver: CoreDriver) -> None:
    def parts(weights: str = "fp_1", options: Config = driver.config, **changed: Any) -> list[str]:
        report = msgspec.structs.replace(driver.report, **changed)
        return Fingerprint(options).of(weights, report).split("/")

    base = parts()
    assert base[2].startswith("batch_invariant_cpu-")
    changes = [
        parts("fp_2"),
        parts(version="9.9"),
        parts(device="another card"),
        parts(tensor_parallel_size=8),
    ]
    for place, changed in enumerate(changes):
        assert [one != other for one, other in zip(base, changed, strict=True)] == [
            other == place for other in range(4)
        ]
    model = driver.config.model
    options: list[dict[str, Any]] = [
        {"seed": 3},
        {"model": replace(model, max_model_len=32)},
        {"model": replace(model, eos_token_ids=(1, 2, 3))},
        {"model": replace(model, generation=GenerationDefaults(temperature=0.25))},
    ]
    told = {parts(options=replace(driver.config, **each))[3] for each in options} | {base[3]}
    assert len(told) == 1 + len(options)


def test_it_is_composed_once_for_each_version(driver: CoreDriver) -> None:
    composed = Fingerprint(driver.config)
    first = composed.of("fp_1", driver.report)
    assert composed.of("fp_1", driver.report) is first
    assert composed.of("fp_2", driver.report).startswith("fp_2/")
    assert composed.of("fp_1", driver.report) == first
