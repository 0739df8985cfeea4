"""The fingerprint names what decides an answer's bits, where they are promised."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from atom.model_engine.front.fingerprint import fingerprint
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> CoreDriver:
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("m"), layers=1)
    return CoreDriver(str(path), reproducible=True, num_kv_blocks=64, max_model_len=64)


def test_it_is_the_weights_version_where_nothing_else_is_promised(driver: CoreDriver) -> None:
    config = replace(driver.config, reproducible=False)
    assert fingerprint("fp_1", config, driver.report) == "fp_1"


def test_its_parts_change_one_by_one(driver: CoreDriver) -> None:
    def parts(weights: str = "fp_1", seed: int = 0, **changed: object) -> list[str]:
        report = msgspec.structs.replace(driver.report, **changed)
        return fingerprint(weights, replace(driver.config, seed=seed), report).split("/")

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
    assert parts(seed=3)[3] != base[3]
