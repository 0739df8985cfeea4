"""Engines whose pages go on to files answer as engines without tiers do, whatever is in the files.

Tiny models of every kind of cache, a device and a host that are too small, and a folder that
several engines share, one after the other or at once. Files are damaged in every way that a disk or
another program may damage them; tokens are compared with those of an engine that keeps everything
on the device.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom.errors import ConfigError
from atom.model_engine.kv_disk.disk_folder import ROOT
from tests.engine.integration.core.test_kv_tiers import (
    KINDS,
    OF_DENSE,
    Way,
    adapters,
    ask,
    cases,
    conversations,
    folders,
    least_blocks,
    ranks,
)
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.damaged_files import DAMAGES
from tests.support.ranks.rank_group import RankGroup
from tests.support.waiting import wait_until

__all__ = ["adapters", "folders", "ranks"]

HOST_PAGES = 30
# Kinds and ways that test_kv_tiers leaves to `make test-all`, as these go through the tier as well.
_IN_FILES = (
    "dense-drafts", "entries-plain", "shared-indexers-deferred", "shared-keys-plain",
    "sinks-scarce", "states-through", "windows-odd-heads-scarce",
)  # fmt: skip
# Kinds whose rows two ranks share in `make test` without files.
_OF_TIERS = ("window-beside-dense", "states")
# The kind of caches whose files `make test` mixes up with those of other models.
_DAILY = {"window-beside-dense"}


def with_files(way: Way, folder: Path, row_bytes: int) -> dict[str, Any]:
    """The options of a small host's tier, and of files behind it."""
    size = (HOST_PAGES + 1) * row_bytes / 2**30
    return {**way.tier, "kv_offloading_size": size, "kv_disk_dir": str(folder), "kv_disk_size": 1.0}


def row_bytes_of(plain: CoreDriver, ranks: int = 1) -> int:
    """A row of the host, with the share of a checkpoint of states."""
    report = plain.report
    interval = max(1, report.checkpoint_tokens // report.block_size)
    states = report.state_bytes // max(1, report.max_num_seqs + 1 + report.num_checkpoints)
    return ranks * (report.kv_cache_bytes // report.num_blocks + states // interval) + 64


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{ROOT}/*/*/*.page"))


def settled(driver: CoreDriver) -> None:
    """Wait until what the host has is in files."""
    tiers = driver.scheduler.tiers
    assert tiers is not None

    def done() -> bool:
        if not (tiers._files._writings or tiers.has_news):
            return True
        tiers.take_in(0.0)
        tiers.send()
        return False

    wait_until(done, "the host's pages are in files", poll_seconds=0)


@pytest.mark.parametrize(("kind", "name"), cases(*_IN_FILES))
def test_answers_are_those_without_files(
    kind: str, name: str, folders: Any, adapters: list[Path], tmp_path: Path
) -> None:
    """A second engine begins with nothing but the files of the first."""
    way, folder = OF_DENSE[name], folders(kind)
    rounds = conversations(len(kind) + len(name), 6, adapters=2 if way.adapters else 0)
    options = way.options(adapters)
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    options |= {"num_kv_blocks": least_blocks(plain) + way.tight}
    options |= with_files(way, tmp_path, row_bytes_of(plain))
    first = CoreDriver(str(folder), **options)
    for turns in rounds[:-2]:
        assert ask(first, turns) == ask(plain, turns)
        settled(first)
    stats = first.scheduler.stats()
    assert stats.offload_disk_store_bytes_total > 0
    assert stats.offload_disk_errors_total == ()
    first.close()
    second = CoreDriver(str(folder), **options)
    for turns in rounds[-2:]:
        assert ask(second, turns) == ask(plain, turns)
    stats = second.scheduler.stats()
    assert stats.offload_disk_hits_total > 0
    assert stats.offload_checksum_errors_total == 0
    second.close()


@pytest.mark.parametrize("kind", ["dense", pytest.param("states", marks=pytest.mark.whole)])
@pytest.mark.parametrize("seeds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_damaged_files_are_counted_and_never_believed(
    kind: str, seeds: int, folders: Any, tmp_path: Path
) -> None:
    way, folder = Way(), folders(kind)
    options = way.options([])
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    options |= {"num_kv_blocks": least_blocks(plain) + way.tight}
    options |= with_files(way, tmp_path, row_bytes_of(plain))
    damaged, draw = 0, random.Random(len(kind))
    for seed in range(seeds):
        rounds = conversations(seed, 10, adapters=0)
        expected = [ask(plain, turns) for turns in rounds]
        writer = CoreDriver(str(folder), **options)
        for turns in rounds:
            ask(writer, turns)
            settled(writer)
        writer.close()
        for path in draw.sample(files_of(tmp_path), len(files_of(tmp_path)) // 2):
            if path.is_file():
                draw.choice(DAMAGES)(path, draw)
                damaged += 1
        reader = CoreDriver(str(folder), **options)
        assert [ask(reader, turns) for turns in rounds] == expected
        told = dict(reader.scheduler.stats().offload_disk_errors_total)
        assert set(told) == {"damaged"}, "the disk itself works"
        reader.close()
        shutil.rmtree(tmp_path / ROOT)
    assert damaged >= 30 * seeds


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in _DAILY else pytest.mark.whole)
        for kind in sorted(set(KINDS) - {"dense"})
    ],
)
def test_files_of_other_models_are_not_read(kind: str, folders: Any, tmp_path: Path) -> None:
    """Two models, and two versions of the weights of one, share a folder and a path."""
    served, options, way = tmp_path / "served", Way().options([]), Way()
    rounds = conversations(3, 4, adapters=0)[:4]
    store = tmp_path / "store"
    store.mkdir()
    for source in (folders(kind), folders("dense"), folders(kind, 1), folders(kind)):
        shutil.rmtree(served, ignore_errors=True)
        shutil.copytree(source, served)
        plain = CoreDriver(str(served), num_kv_blocks=900, **options)
        expected = [ask(plain, turns) for turns in rounds]
        blocks = least_blocks(plain) + way.tight
        files = with_files(way, store, row_bytes_of(plain))
        driver = CoreDriver(str(served), num_kv_blocks=blocks, **options, **files)
        for turns, answers in zip(rounds, expected, strict=True):
            assert ask(driver, turns) == answers
            settled(driver)
        assert driver.scheduler.stats().offload_disk_errors_total == ()
        driver.close()
    assert driver.scheduler.stats().offload_disk_hits_total > 0, "the first model's pages are left"
    assert len(list((store / ROOT).iterdir())) == 4  # with the one of the check at the start


def test_an_adapters_files_are_those_of_its_weights(
    folders: Any, adapters: list[Path], tmp_path: Path
) -> None:
    """The number of an adapter means other weights to another server."""
    way = replace(OF_DENSE["adapters"], tight=2)
    rounds = conversations(4, 6, adapters=2)
    for order in (adapters, adapters[::-1], adapters):
        options = way.options(order)
        plain = CoreDriver(str(folders("dense")), num_kv_blocks=900, **options)
        options |= {"num_kv_blocks": least_blocks(plain) + way.tight}
        options |= with_files(way, tmp_path, row_bytes_of(plain))
        driver = CoreDriver(str(folders("dense")), **options)
        for turns in rounds:
            assert ask(driver, turns) == ask(plain, turns)
            settled(driver)
        driver.close()
    assert driver.scheduler.stats().offload_disk_hits_total > 0


@pytest.mark.parametrize(
    "kind", ["dense", pytest.param("window-beside-dense", marks=pytest.mark.whole)]
)
def test_engines_on_one_folder_find_each_others_pages(
    kind: str, folders: Any, tmp_path: Path
) -> None:
    way, folder = Way(), folders(kind)
    options = way.options([])
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    options |= {"num_kv_blocks": least_blocks(plain) + way.tight}
    options |= with_files(way, tmp_path, row_bytes_of(plain))
    engines = [CoreDriver(str(folder), **options) for _ in range(3)]
    draw = random.Random(1)
    for turns in conversations(9, 8, adapters=0):
        expected = ask(plain, turns)
        one, other = draw.sample(engines, 2)
        assert ask(one, turns) == expected
        settled(one)
        other.scheduler.tiers._files._store._list_now()
        assert ask(other, turns) == expected
    hits = [engine.scheduler.stats().offload_disk_hits_total for engine in engines]
    assert sum(hits) > 0
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    "kind",
    ["latent", *(pytest.param(kind, marks=pytest.mark.whole) for kind in ("dense", *_OF_TIERS))],
)
def test_two_ranks_share_a_file(kind: str, folders: Any, ranks: RankGroup, tmp_path: Path) -> None:
    folder, options = folders(kind), Way(depth=1).options([])
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    rounds = conversations(7, 6, adapters=0)
    expected = [ask(plain, turns) for turns in rounds]
    files = with_files(Way(), tmp_path, row_bytes_of(plain, 2))
    for _ in range(2):
        tiered = ranks.driver(
            str(folder), num_kv_blocks=least_blocks(plain) + 6, **options, **files
        )
        try:
            for turns, answers in zip(rounds, expected, strict=True):
                assert ask(tiered, turns) == answers
                settled(tiered)
            stats = tiered.scheduler.stats()
            assert stats.offload_checksum_errors_total == 0
            assert stats.offload_disk_errors_total == ()
        finally:
            tiered.close()
    assert stats.offload_disk_hits_total > 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_disk_dir": "/nowhere", "kv_disk_size": 1}, "there is no such folder"),
        ({"kv_disk_dir": "."}, "needs --kv-disk-size"),
        ({"kv_disk_size": 1}, "needs --kv-disk-dir"),
        ({"kv_disk_dir": ".", "kv_disk_size": 0}, "kv_disk_size must be more than 0"),
        (
            {"kv_disk_dir": ".", "kv_disk_size": 1, "kv_offloading_size": None},
            "add --kv-offloading-size",
        ),
    ],
)
def test_files_that_cannot_work_are_refused(
    options: dict[str, Any], told: str, folders: Any
) -> None:
    with pytest.raises(ConfigError, match=told):
        CoreDriver(str(folders("dense")), **{**Way().tier, **options})
