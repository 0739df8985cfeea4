"""What the prefix cache costs per block: to find and take cached blocks, and to hash new ones.

    python -m benchmarks.prefix_cache [--repeat N]

Matched: 1,000 prompts that share 2,048 tokens, one after the other, so that every block is taken
while no other holds it (the dear case) and given back. Hashed: prompts that are new, computed and
made shareable, in a pool that is full of older ones, so that each new block evicts one. Both again
with a pool ten times as large, and, as a control, with that pool when running sequences hold nine
tenths of it: the same tables, but the blocks that come and go are as few as in the small pool. What
only the control regains is the processor's cache missing, no work. CPU time of this thread, best of
N runs taken in turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.block_manager import BlockManager

BLOCK_SIZE = 16
SHARED_TOKENS = 2048
PROMPT_TOKENS = SHARED_TOKENS + BLOCK_SIZE
NUM_PROMPTS = 1000
POOL_BLOCKS = 4_000
LARGER = 10

Tokens = NDArray[np.int32]


def _random_tokens(count: int, draw: np.random.Generator) -> Tokens:
    return draw.integers(0, 150_000, count).astype(np.int32)


def _serve(blocks: BlockManager, tokens: Tokens) -> int:
    """One prompt as the scheduler does it, from lookup to the last block given back; the number of
    blocks that were found."""
    match = blocks.match_prefix(tokens)
    tables = blocks.allocate(len(tokens), match)
    found = match.num_blocks
    full = len(tokens) // BLOCK_SIZE * BLOCK_SIZE
    blocks.publish(tables, tokens[found * BLOCK_SIZE : full], found, match.last_hash)
    blocks.free(tables)
    return found


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The size of a block pool. num_held: of num_blocks, those that running sequences hold
    throughout."""

    num_blocks: int
    num_held: int = 0


POOLS = {
    "": PoolSize(POOL_BLOCKS),
    "_large_pool": PoolSize(POOL_BLOCKS * LARGER),
    "_large_pool_mostly_held": PoolSize(POOL_BLOCKS * LARGER, POOL_BLOCKS * (LARGER - 1)),
}


def _filled_pool(size: PoolSize, draw: np.random.Generator) -> BlockManager:
    """A pool whose every block has content, and whose blocks that are not held are only cached."""
    num_blocks = size.num_blocks
    blocks = BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True)
    if size.num_held:
        held = _random_tokens(size.num_held * BLOCK_SIZE, draw)
        match = blocks.match_prefix(held)
        blocks.publish(blocks.allocate(len(held), match), held, 0, match.last_hash)
    while blocks.pool.num_indexed < num_blocks:
        free = num_blocks - blocks.pool.num_indexed
        _serve(blocks, _random_tokens(min(PROMPT_TOKENS, free * BLOCK_SIZE), draw))
    return blocks


def matched_per_second(size: PoolSize) -> float:
    """Blocks found and taken per second of lookup and allocation; giving back is counted too."""
    draw = np.random.default_rng(0)
    blocks = _filled_pool(size, draw)
    prefix = _random_tokens(SHARED_TOKENS, draw)
    # The last token is never matched, so each prompt has one token more than whole blocks.
    prompts = [np.concatenate([prefix, _random_tokens(1, draw)]) for _ in range(NUM_PROMPTS)]
    _serve(blocks, prompts[0])
    found = 0
    started = time.thread_time()
    for tokens in prompts:
        match = blocks.match_prefix(tokens)
        tables = blocks.allocate(len(tokens), match)
        found += match.num_blocks
        blocks.free(tables)
    seconds = time.thread_time() - started
    assert found == NUM_PROMPTS * SHARED_TOKENS // BLOCK_SIZE, "the shared prefix was not found"
    blocks.pool.check_integrity()
    return found / seconds


def hashed_per_second(size: PoolSize) -> float:
    """New full blocks hashed and made findable per second, eviction and giving back included."""
    draw = np.random.default_rng(0)
    blocks = _filled_pool(size, draw)
    prompts = [_random_tokens(PROMPT_TOKENS, draw) for _ in range(NUM_PROMPTS)]
    started = time.thread_time()
    for tokens in prompts:
        assert _serve(blocks, tokens) == 0
    seconds = time.thread_time() - started
    blocks.pool.check_integrity()
    return NUM_PROMPTS * PROMPT_TOKENS // BLOCK_SIZE / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, of which the best")
    repeat = parser.parse_args().repeat
    rates: dict[str, list[float]] = {}
    for _ in range(repeat):
        for suffix, size in POOLS.items():
            for name, measure in (("matched", matched_per_second), ("hashed", hashed_per_second)):
                rates.setdefault(f"blocks_{name}_per_s{suffix}", []).append(measure(size))
    summary = {name: max(values) for name, values in rates.items()}
    titles = (f"{POOL_BLOCKS:,} blocks", f"{POOL_BLOCKS * LARGER:,}", "mostly held")
    print(f"{'blocks per second':<20}" + "".join(f"{title:>16}" for title in titles))
    for name in ("matched", "hashed"):
        row = (summary[f"blocks_{name}_per_s{suffix}"] for suffix in POOLS)
        print(f"{name:<20}" + "".join(f"{rate:>16,.0f}" for rate in row))
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
