"""Tiles are dealt out so that a die's programs share its cache, and each is computed once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from atom.model_ops.backends.triton_ops import xcd_order
from atom.model_ops.backends.triton_ops.xcd_order import (
    card_dies,
    dies_by_units,
    head_dies,
    head_tile,
    product_dies,
    product_tile,
    row_dies,
    row_tile,
    xcd_tile,
)
from tools.kernel_code import instructions

# Programs of a die at a time: two per compute unit of MI300X.
_AT_A_TIME = 76

Place = tuple[int, ...]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Place]]:
    """What a rule gives each program of a grid, in the order in which they are dealt out."""

    def of_grid(rule: Any, grid: tuple[int, ...], dies: int) -> list[Place]:
        now: Place = ()
        language = SimpleNamespace(
            program_id=lambda axis: now[axis],
            num_programs=lambda axis: grid[axis],
            minimum=min,
            where=lambda condition, yes, no: yes if condition else no,
        )
        monkeypatch.setattr(xcd_order, "tl", language)
        monkeypatch.setattr(xcd_order, "xcd_tile", xcd_tile.fn)
        monkeypatch.setattr(xcd_order, "_TOKEN_TILES", 8)
        monkeypatch.setattr(xcd_order, "_ROW_TILES", 8)
        found = []
        for backwards in itertools.product(*(range(size) for size in reversed(grid))):
            now = backwards[::-1]
            found.append(tuple(rule.fn(axis, dies) for axis in range(len(grid))))
        return found

    return of_grid


GRIDS = [(1, 1, 1), (3, 5, 1), (3, 5, 4), (16, 24, 1), (17, 9, 2), (64, 11, 1)]


@pytest.mark.parametrize("dies", [1, 4, 6, 8])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_tile_is_computed_once(
    places: Callable[..., list[Place]], grid: tuple[int, int, int], dies: int
) -> None:
    every = Counter(itertools.product(*map(range, grid)))
    assert Counter(places(product_tile, grid, dies)) == every
    plane = Counter(itertools.product(*map(range, grid[:2])))
    assert Counter(places(row_tile, grid[:2], dies)) == plane
    assert Counter(places(head_tile, (grid[0], grid[1] * dies), dies)) == Counter(
        itertools.product(range(grid[0]), range(grid[1] * dies))
    )


def _reads(dealt: list[Place], dies: int, operands: Callable[[Place], set[Any]]) -> int:
    """Tiles of operands that dies read, each as many at a time as it computes."""
    total = 0
    for die in range(dies):
        own = dealt[die::dies]
        for first in range(0, len(own), _AT_A_TIME):
            computed = own[first : first + _AT_A_TIME]
            total += len(set().union(*map(operands, computed)))
    return total


def _of_product(place: Place) -> set[Any]:
    t, n, part = place
    return {("x", t, part), ("w", n, part)}


@pytest.mark.parametrize("grid", [(2, 224, 1), (8, 112, 1), (16, 112, 1), (63, 48, 1)], ids=str)
def test_a_die_reads_fewer_tiles_of_a_product(
    places: Callable[..., list[Place]], grid: tuple[int, int, int]
) -> None:
    before = _reads(places(product_tile, grid, 1), 8, _of_product)
    assert _reads(places(product_tile, grid, 8), 8, _of_product) < 0.9 * before


def _of_experts(place: Place) -> set[Any]:
    column, row = place
    return {("x", row), ("w", row // 4, column)}  # four tiles of rows of each expert


def test_where_the_grids_own_order_is_as_good_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xcd_order, "card_dies", lambda device: 8)
    device = torch.device("cpu")
    assert product_dies(device, 1) == 1  # no two programs read the same of a matrix
    assert product_dies(device, 2) == 8
    assert [row_dies(device, columns) for columns in (12, 24, 32, 45)] == [8, 8, 1, 8]


@pytest.mark.parametrize("grid", [(12, 128), (24, 640), (45, 70)], ids=str)
def test_a_die_reads_fewer_tiles_of_experts(
    places: Callable[..., list[Place]], grid: tuple[int, int]
) -> None:
    before = _reads(places(row_tile, grid, 1), 8, _of_experts)
    assert _reads(places(row_tile, grid, 8), 8, _of_experts) < 0.9 * before


def test_empty_rows_at_the_end_are_every_dies(places: Callable[..., list[Place]]) -> None:
    dealt = places(row_tile, (12, 640), 8)
    empty = [sum(row >= 500 for _, row in dealt[die::8]) for die in range(8)]
    assert max(empty) - min(empty) <= 8 * 12


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 12])
def test_a_die_has_whole_heads_and_its_share_of_the_longest_tiles(
    places: Callable[..., list[Place]], heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xcd_order, "card_dies", lambda device: 8)
    groups = head_dies(torch.device("cpu"), heads)
    dealt = places(head_tile, (64, heads), groups)
    for die in range(8):
        own = dealt[die::8]
        assert len({head for _, head in own}) == heads // groups
        assert abs(sum(tile for tile, _ in own) / len(own) - 31.5) <= 4


@pytest.mark.parametrize(
    ("architecture", "units", "expected"),
    [
        ("gfx942", 304, 8),  # MI300X
        ("gfx942", 228, 6),  # MI300A
        ("gfx942", 38, 1),  # an XCD as a device of its own
        ("gfx950", 256, 8),  # MI355X
        ("gfx942", 80, 1),  # of unknown dies
        ("gfx90a", 104, 1),
        ("gfx942", 0, 1),
    ],
)
def test_dies_follow_from_the_units_of_a_card(architecture: str, units: int, expected: int) -> None:
    assert dies_by_units(architecture, units) == expected


@pytest.fixture
def instinct(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """An MI300X at 0000:c4:00, as torch describes one in mode DPX."""
    found = SimpleNamespace(
        pci_domain_id=0, pci_bus_id=0xC4, pci_device_id=0, multi_processor_count=152,
        gcnArchName="gfx942:sramecc+:xnack-",
    )  # fmt: skip
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    card_dies.cache_clear()
    xcd_order.compute_units.cache_clear()
    yield torch.device("cuda", 0)
    card_dies.cache_clear()
    xcd_order.compute_units.cache_clear()


def test_a_partition_has_the_dies_that_the_driver_says(
    instinct: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {(0, 0xC4, 0): 4}
    monkeypatch.setattr(xcd_order.kfd_topology, "dies_at", told.get)
    assert card_dies(instinct) == 4


def test_without_the_drivers_word_its_units_count(
    instinct: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xcd_order.kfd_topology, "dies_at", lambda place: None)
    assert card_dies(instinct) == 152 // 38


def test_other_devices_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    card_dies.cache_clear()
    assert card_dies(torch.device("cpu")) == card_dies(torch.device("cuda", 0)) == 1
    card_dies.cache_clear()


@triton.jit
def _in_order(out_ptr, DIES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    part = tl.program_id(2)
    at = tl.program_id(0) * 64 + tl.program_id(1) * 8 + part
    tl.store(out_ptr + at, part)


@triton.jit
def _by_die(out_ptr, DIES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    part = product_tile(2, DIES)
    at = product_tile(0, DIES) * 64 + product_tile(1, DIES) * 8 + part
    tl.store(out_ptr + at, part)


def _assembly(kernel: Any, target: GPUTarget, dies: int) -> str:
    source = ASTSource(kernel, {"out_ptr": "*i32", "DIES": "constexpr"}, {"DIES": dies})
    made = triton.compile(source, target=target)
    return instructions(made.asm.get("ptx") or made.asm["amdgcn"], made.metadata.name)


@pytest.mark.parametrize(
    "target", [GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)], ids=lambda t: str(t.arch)
)
def test_a_card_of_one_die_runs_what_it_ran(target: GPUTarget) -> None:
    assert _assembly(_by_die, target, 1) == _assembly(_in_order, target, 1)
    assert _assembly(_by_die, target, 8) != _assembly(_by_die, target, 1)
