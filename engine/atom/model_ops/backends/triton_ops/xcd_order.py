# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Which tile a program of a grid computes, where an AMD card deals programs out to several dies.

Programs go to the dies (XCDs) of MI300 and MI350 in turn, and each die has an L2 of its own: tiles
that read the same rows are neighbours in a grid and so on different dies. `xcd_tile` gives each die
a run of neighbouring tiles. On other cards (one die) a kernel that calls it compiles to what it was
without.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Compute units of one die that are in use, by architecture.
_UNITS_OF_DIE = {"gfx942": 38, "gfx950": 32}


def dies(architecture: str | None, compute_units: int) -> int:
    """XCDs of a card, or of the part of it that is partitioned off as a device. architecture: its
    gfx name, None where it is not AMD's; 1 where its units are no whole dies that are known."""
    units = _UNITS_OF_DIE.get(architecture or "", compute_units)
    return compute_units // units if compute_units and compute_units % units == 0 else 1


def tile_of(program: int, programs: int, dies: int) -> int:
    """What `xcd_tile` computes: programs 0, dies, 2·dies, … get the first run of tiles, and so on;
    where programs are no multiple of dies the first runs have one more."""
    die, turn = program % dies, program // dies
    longer = min(die, programs % dies)
    return die * (programs // dies) + longer + turn


@triton.jit
def xcd_tile(program, programs, DIES: tl.constexpr):
    """The tile of a program of a one-dimensional grid; DIES: of the card, 1 for none."""
    tile = program
    if DIES > 1:
        die = program % DIES
        tile = die * (programs // DIES) + tl.minimum(die, programs % DIES) + program // DIES
    return tile
