"""Engines with other numbers of tensor-parallel ranks read each other's files of the KV cache.

One folder goes from engine to engine: the first writes files, and each later one, with another
number of ranks, begins with nothing but these, adds its own, and answers as an engine of one rank
without tiers. Every kind of cache and of state, heads that are fewer than the ranks included.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.integration.core.test_kv_disk import files_of, row_bytes_of, settled, with_files
from tests.engine.integration.core.test_kv_tiers import Way, ask, conversations, least_blocks
from tests.engine.integration.ranks.test_tensor_parallel import FAMILIES
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.damaged_files import DAMAGES
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroups

_SIZES = {"vocab_size": 512}
_HEADS = {"heads": 8, "kv_heads": 4, "extra": _SIZES}
_FP8 = {"kv_cache_dtype": "fp8"}
# What four ranks can share: checkpoints, and options of the engine.
WIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": ({"architecture": "qwen3", **_HEADS}, {}),
    "dense, fp8": ({"architecture": "qwen3", **_HEADS}, _FP8),
    "two heads": ({"architecture": "qwen3", **_HEADS, "kv_heads": 2}, {}),
    "one head, fp8": ({"architecture": "llama", **_HEADS, "kv_heads": 1}, _FP8),
    "windows": ({"architecture": "gemma3", **_HEADS}, {}),
    "windows, fp8": ({"architecture": "gpt_oss", **_HEADS}, _FP8),
    "chunks of attention": ({"architecture": "llama4", **_HEADS}, {}),
    "mla": ({"architecture": "deepseek3", "extra": _SIZES}, {}),
    "mla with an indexer": ({"architecture": "deepseek32", "extra": _SIZES}, {}),
    "an indexer of heads": (
        {
            "architecture": "minimax_m3", "layers": 3, "heads": 8, "kv_heads": 4,
            "extra": {**_SIZES, "index_n_heads": 4},
        },
        {},
    ),
    "states": (
        {
            "architecture": "qwen3_5", "layers": 4, "heads": 8, "kv_heads": 4,
            "extra": {**_SIZES, "linear_num_key_heads": 4, "linear_num_value_heads": 8},
        },
        {},
    ),
}  # fmt: skip

# Heads of two sizes, of which one kind is on both ranks: layers are in other groups on one rank.
OTHER_GROUPS = {"keys that are values, heads of two sizes, experts beside an MLP"}


@pytest.fixture(scope="module")
def group_of() -> Iterator[RankGroups]:
    groups = RankGroups()
    yield groups
    groups.close()


def asked_by_each(
    group_of: RankGroups,
    model: Path,
    sizes: tuple[int, ...],
    options: dict[str, Any],
    between: Callable[[], None] = lambda: None,
) -> list[Any]:
    """The statistics of engines of these numbers of ranks, one after the other on the folder of the
    model, each of which answers as a plain one. between: called before each but the first."""
    plain = CoreDriver(str(model), num_kv_blocks=900, **options)
    rounds = conversations(7, 6, adapters=0)[:-2]
    expected = [ask(plain, turns) for turns in rounds]
    tight = {**options, "num_kv_blocks": least_blocks(plain) + 6}
    tight |= with_files(Way(), model.parent, row_bytes_of(plain))
    found = []
    for size in sizes:
        if found:
            between()
        ranks = group_of(size)
        made = CoreDriver if ranks is None else ranks.driver
        driver = made(str(model), **tight)
        try:
            for turns, answers in zip(rounds, expected, strict=True):
                assert ask(driver, turns) == answers, f"{size} ranks"
                settled(driver)
            found.append(driver.scheduler.stats())
            assert found[-1].offload_checksum_errors_total == 0
        finally:
            driver.close()
    return found


def layouts_in(folder: Path) -> int:
    return len({path.parent.parent for path in files_of(folder)})


def assert_shared(found: list[Any], folder: Path) -> None:
    """Every engine but the first has read files, and all of one layout."""
    assert all(stats.offload_disk_hits_total > 0 for stats in found[1:])
    assert all(stats.offload_disk_errors_total == () for stats in found)
    assert layouts_in(folder) == 1, "the number of ranks is no part of a layout"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("states", (1, 2)),
        *(
            pytest.param(
                name, sizes, marks=pytest.mark.slow if (at + turn) % 4 else pytest.mark.whole
            )
            for turn, name in enumerate(WIDE)
            for at, sizes in enumerate(((1, 2, 1), (4, 1), (2, 4), (1, 4, 2)))
        ),
    ],
)
def test_tokens_are_those_of_one_rank(
    group_of: RankGroups, name: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    checkpoint, kind = WIDE[name]
    model = make_tiny_checkpoint(tmp_path / "model", **checkpoint)
    options = {**Way(depth=1).options([]), **kind}
    assert_shared(asked_by_each(group_of, model, sizes, options), tmp_path)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(
            family,
            marks=pytest.mark.slow
            if turn % 4 and family not in OTHER_GROUPS
            else pytest.mark.whole,
        )
        for turn, family in enumerate(FAMILIES)
    ],
)
def test_every_family_shares_files(group_of: RankGroups, family: str, tmp_path: Path) -> None:
    extra = {**_SIZES, **FAMILIES[family].get("extra", {})}
    model = make_tiny_checkpoint(tmp_path / "model", **{**FAMILIES[family], "extra": extra})
    found = asked_by_each(group_of, model, (2, 1, 2), Way(depth=1).options([]))
    if family in OTHER_GROUPS:
        assert layouts_in(tmp_path) == 2
        assert found[-1].offload_disk_hits_total > 0
    else:
        assert_shared(found, tmp_path)


@pytest.mark.parametrize("name", ["two heads", pytest.param("states", marks=pytest.mark.whole)])
def test_damaged_files_of_other_ranks_are_counted_and_never_believed(
    group_of: RankGroups, name: str, tmp_path: Path
) -> None:
    checkpoint, kind = WIDE[name]
    model = make_tiny_checkpoint(tmp_path / "model", **checkpoint)
    draw = random.Random(5)

    def damage() -> None:
        found = files_of(tmp_path)
        for path in draw.sample(found, len(found) // 2):
            if path.is_file():
                draw.choice(DAMAGES)(path, draw)

    options = {**Way(depth=1).options([]), **kind}
    first, other = asked_by_each(group_of, model, (2, 1), options, damage)
    assert first.offload_disk_errors_total == ()
    assert set(dict(other.offload_disk_errors_total)) == {"damaged"}
