# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The tile of a program, on AMD cards that distribute a grid's programs over several dies.

Programs go to the dies (XCDs) of MI300 and MI350 in turn, numbered with the first axis of the grid
as the fastest, and each die has its own L2. So neighbours in a grid, which read the same rows, are
on different dies. Kernels whose neighbours share their reads get their tile here, near the other
tiles of their die. If programs of a grid differ in length, an order keeps the dies equally busy.
With DIES = 1 a kernel compiles to the same code as without.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import compute_units
from atom.utils import kfd_topology

# Compute units of one die that are in use, by architecture.
_UNITS_OF_DIE = {"gfx942": 38, "gfx950": 32}
# Tiles of tokens that a die goes through before it takes others: with as many tiles of outputs they
# are what its L2 holds.
_TOKEN_TILES = tl.constexpr(8)
# Tiles of rows that a die takes at a time: of one expert, mostly.
_ROW_TILES = tl.constexpr(8)
# Tiles of columns for each die from which the grid's own order, where they divide, reads less.
_COLUMNS_OF_DIE = 4


def dies_by_units(architecture: str, compute_units: int) -> int:
    """Return the XCDs of a card, or of the partition of it that is a device. architecture: its gfx
    name; 1 if its units are not a number of whole known dies."""
    units = _UNITS_OF_DIE.get(architecture, compute_units)
    return compute_units // units if compute_units and compute_units % units == 0 else 1


@cache
def card_dies(device: torch.device) -> int:
    """Return the XCDs of the device: from the driver, else from its number of compute units; 1 for
    NVIDIA's cards and in the interpreter."""
    if device.type == "cpu" or torch.version.hip is None:
        return 1
    found: Any = torch.cuda.get_device_properties(device)
    place = (found.pci_domain_id, found.pci_bus_id, found.pci_device_id)
    architecture = found.gcnArchName.partition(":")[0]
    return kfd_topology.dies_at(place) or dies_by_units(architecture, compute_units(device))


def product_dies(device: torch.device, token_tiles: int) -> int:
    """Return the dies for `product_tile`: 1 with one tile of tokens, since no two programs then
    read the same part of a matrix."""
    return card_dies(device) if token_tiles > 1 else 1


def head_dies(device: torch.device, heads: int) -> int:
    """Return the dies for `head_tile`: groups of dies that get as many heads each."""
    return math.gcd(card_dies(device), heads)


def row_dies(device: torch.device, columns: int) -> int:
    """Return the dies for `row_tile` with so many tiles of columns: 1 if the grid's own order
    already gives each die the same few columns for all rows."""
    dies = card_dies(device)
    return 1 if columns % (_COLUMNS_OF_DIE * dies) == 0 else dies


@triton.jit
def xcd_tile(program, programs, DIES: tl.constexpr):
    """The tile of a program, such that each die gets a run of neighbours; where programs are no
    multiple of DIES, the first runs have one more."""
    # The hardware deals programs to dies in turn, so the remainder is the die.
    die = program % DIES
    return die * (programs // DIES) + tl.minimum(die, programs % DIES) + program // DIES


@triton.jit
def product_tile(AXIS: tl.constexpr, DIES: tl.constexpr):
    """Of a grid of tiles of tokens (axis 0), tiles of outputs (1) and parts (2): the number, along
    an axis, that this program computes. A die's are a block of the product, a few tiles of tokens
    high."""
    # A constant: on NVIDIA's cards the order is the grid's own and has no cost.
    if DIES == 1:
        return tl.program_id(AXIS)
    else:
        tokens, outputs = tl.num_programs(0), tl.num_programs(1)
        size = tokens * outputs
        program = tl.program_id(0) + tokens * (tl.program_id(1) + outputs * tl.program_id(2))
        tile = xcd_tile(program, size * tl.num_programs(2), DIES)
        if AXIS == 2:
            return tile // size
        else:
            tile = tile % size
            # Blocks a few token tiles high: a die's L2 holds that much of x while outputs pass.
            first = tile // (_TOKEN_TILES * outputs) * _TOKEN_TILES
            height = tl.minimum(tokens - first, _TOKEN_TILES)
            within = tile - first * outputs
            return first + within % height if AXIS == 0 else within // height


@triton.jit
def head_tile(AXIS: tl.constexpr, DIES: tl.constexpr):
    """Of a grid of tiles of queries (axis 0) and KV heads (1): the number, along an axis, that this
    program computes. DIES divides heads. A die's are whole heads, whose tiles, longest first, go to
    the dies of a group in turn: a run of one head's tiles would leave those with the last ones
    idle."""
    if DIES == 1:
        return tl.program_id(AXIS)
    else:
        tiles = tl.num_programs(0)
        program = tl.program_id(0) + tiles * tl.program_id(1)
        # Heads, not tiles, are neighbours of a die: all tiles of a head read its keys and values.
        tile = xcd_tile(program, tiles * tl.num_programs(1), DIES)
        return tile % tiles if AXIS == 0 else tile // tiles


@triton.jit
def row_tile(AXIS: tl.constexpr, DIES: tl.constexpr):
    """Of a grid of tiles of columns (axis 0) and of rows (1): the number, along an axis, that this
    program computes. Dies take a few tiles of rows, with all columns, in turn: the last rows of the
    grid may be empty, and one die with all of them would be idle. The rest that is not dealt out
    evenly stays in order."""
    if DIES == 1:
        return tl.program_id(AXIS)
    else:
        columns = tl.num_programs(0)
        chunk = columns * _ROW_TILES
        program = tl.program_id(0) + columns * tl.program_id(1)
        die, turn = program % DIES, program // DIES
        dealt = (turn // chunk * DIES + die) * chunk + turn % chunk
        # Beyond the last full deal, order is the grid's: a rest dealt out unevenly would leave a
        # die with a chunk more.
        even = columns * tl.num_programs(1) // (DIES * chunk) * (DIES * chunk)
        tile = tl.where(program < even, dealt, program)
        return tile % columns if AXIS == 0 else tile // columns
