"""Models whose layers keep states beside layers that see a window cache prefixes, on the device and
below it, and answer as without a cache.

No family that is served has both, so a hybrid's layers with attention get windows here. A prefix
ends at a checkpoint of states whose windows are still there; it is compared with the answers of an
engine that computes every prompt, in every way in which blocks and states are kept.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.engine.integration.core.test_kv_disk import row_bytes_of, settled, with_files
from tests.engine.integration.core.test_kv_tiers import (
    WAYS,
    Turn,
    Way,
    ask,
    conversations,
    least_blocks,
)
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.masked_hybrid import MASKS, make_masked_hybrid

ALL_WAYS = {**WAYS, "drafts": Way(drafts=3, depth=1), "fp8": Way(fp8=True, budget=40)}
_DAILY = ("windows before dense", "deferred")


def marks_of(mask: str, way: str) -> Any:
    """`make test-all` has every way with one mask by turns."""
    if (mask, way) == _DAILY:
        return ()
    turn = list(ALL_WAYS).index(way) % len(MASKS)
    return pytest.mark.whole if list(MASKS).index(mask) == turn else pytest.mark.slow


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hybrid whose layers with attention have these masks."""
    return make_masked_hybrid(tmp_path / "model", request.param, monkeypatch)


def cached_share(driver: CoreDriver) -> float:
    stats = driver.scheduler.stats()
    return float(stats.cached_tokens_total / stats.prompt_tokens_total)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(mask, way, marks=marks_of(mask, way))
        for mask, way in itertools.product(MASKS, ALL_WAYS)
    ],
    indirect=["model"],
)
def test_answers_are_those_without_a_cache(model: Path, name: str, tmp_path: Path) -> None:
    way = ALL_WAYS[name]
    rounds = conversations(len(name), 6, adapters=0)
    options = way.options([])
    plain = CoreDriver(str(model), num_kv_blocks=900, enable_prefix_caching=False, **options)
    ample = CoreDriver(str(model), num_kv_blocks=900, **options)
    assert ample.report.num_checkpoints > 0
    tight = {**options, "num_kv_blocks": least_blocks(plain) + way.tight}
    tiered = CoreDriver(str(model), **tight, **with_files(way, tmp_path, row_bytes_of(ample)))
    small = CoreDriver(str(model), **tight)
    for turns in rounds:
        expected = ask(plain, turns)
        for driver in (ample, small, tiered):
            assert ask(driver, turns) == expected
        settled(tiered)
    assert cached_share(plain) == 0
    assert cached_share(ample) > 0.3
    assert cached_share(tiered) > cached_share(small)
    stats = tiered.scheduler.stats()
    assert stats.offload_load_bytes_total > 0
    assert stats.offload_checksum_errors_total == 0
    assert stats.offload_disk_errors_total == ()
    tiered.close()
    again = CoreDriver(str(model), **tight, **with_files(way, tmp_path, row_bytes_of(ample)))
    for turns in rounds[-2:]:
        assert ask(again, turns) == ask(plain, turns)
    assert again.scheduler.stats().offload_disk_hits_total > 0
    again.close()


@pytest.mark.parametrize("model", ["beside dense"], indirect=True)
def test_a_prompt_goes_on_from_a_checkpoint_before_the_end(model: Path) -> None:
    """The window before an earlier checkpoint was freed long ago, and is still there."""
    options = Way().options([])
    driver = CoreDriver(str(model), num_kv_blocks=900, **options)
    every = driver.report.checkpoint_tokens
    text = [3 + 7 * at % 80 for at in range(3 * every + 5)]
    (answer,) = ask(driver, [Turn(text, 0, "")])
    before = driver.scheduler.stats().cached_tokens_total
    plain = CoreDriver(str(model), num_kv_blocks=900, enable_prefix_caching=False, **options)
    other = [*text[: every + 3], 5, 6, 7]
    assert ask(driver, [Turn(other, 0, "")]) == ask(plain, [Turn(other, 0, "")])
    assert driver.scheduler.stats().cached_tokens_total - before == every
    assert ask(driver, [Turn(text, 0, "")]) == [answer] == ask(plain, [Turn(text, 0, "")])
