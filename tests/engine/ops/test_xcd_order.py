"""Tiles are dealt out so that neighbours share a die's cache, and each is computed once."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from atom.model_ops.backends.triton_ops import xcd_order
from atom.model_ops.backends.triton_ops.xcd_order import dies, tile_of, xcd_tile


@pytest.mark.parametrize("programs", [1, 7, 8, 9, 64, 100, 2047])
@pytest.mark.parametrize("count", [1, 4, 6, 8])
def test_every_die_gets_a_run_of_its_own(programs: int, count: int) -> None:
    tiles = [tile_of(program, programs, count) for program in range(programs)]
    assert sorted(tiles) == list(range(programs))
    runs = [tiles[die::count] for die in range(min(count, programs))]
    for run in runs:
        assert run == list(range(run[0], run[0] + len(run)))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


@pytest.mark.parametrize(
    ("architecture", "units", "expected"),
    [
        ("gfx942", 304, 8),  # MI300X
        ("gfx942", 228, 6),  # MI300A
        ("gfx942", 38, 1),  # an XCD as a device of its own
        ("gfx950", 256, 8),  # MI355X
        ("gfx942", 80, 1),  # of unknown dies
        ("gfx90a", 104, 1),
        (None, 132, 1),  # an H200
        ("gfx942", 0, 1),
    ],
)
def test_dies_follow_from_the_units_of_a_card(
    architecture: str | None, units: int, expected: int
) -> None:
    assert dies(architecture, units) == expected


def test_the_kernels_rule_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xcd_order, "tl", SimpleNamespace(minimum=min))
    rule: Any = xcd_tile.fn
    for count in (1, 6, 8):
        for programs in (5, 48, 100):
            for program in range(programs):
                assert rule(program, programs, count) == tile_of(program, programs, count)


@triton.jit
def _in_order(out_ptr, DIES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    tile = tl.program_id(0)
    tl.store(out_ptr + tile, tile)


@triton.jit
def _by_die(out_ptr, DIES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    tile = xcd_tile(tl.program_id(0), tl.num_programs(0), DIES)
    tl.store(out_ptr + tile, tile)


def _assembly(kernel: Any, target: GPUTarget, count: int) -> str:
    source = ASTSource(kernel, {"out_ptr": "*i32", "DIES": "constexpr"}, {"DIES": count})
    made = triton.compile(source, target=target).asm
    if target.backend == "hip":
        return str(made["ttgir"])
    text = made["ptx"].partition(".file")[0]
    lines = re.sub(r"//.*|_by_die|_in_order", "", text).splitlines()
    return "\n".join(line for line in lines if line.strip() and ".loc" not in line)


def test_a_card_of_one_die_runs_what_it_ran() -> None:
    nvidia = GPUTarget("cuda", 90, 32)
    assert _assembly(_by_die, nvidia, 1) == _assembly(_in_order, nvidia, 1)
    amd = GPUTarget("hip", "gfx942", 64)
    assert _assembly(_by_die, amd, 8) != _assembly(_by_die, amd, 1)
