"""What the prefix cache costs per block: to find and take cached blocks, and to hash new ones.

    python -m benchmarks.prefix_cache [--repeat N]

Matched: 1,000 prompts that share 2,048 tokens, one after the other, so that every block is taken
while nobody holds it (the dear case) and given back. Hashed: prompts nobody has seen, computed and
made shareable, in a pool that is full of older ones, so that each new block evicts one. Both again
with a pool ten times as large. CPU time of this thread, best of N runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

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
    table = blocks.allocate(len(tokens), match)
    found = len(match.block_ids)
    blocks.publish(table, tokens[found * BLOCK_SIZE :], found, match.last_hash)
    blocks.free(table)
    return found


def _filled_pool(num_blocks: int, draw: np.random.Generator) -> BlockManager:
    """A pool whose every block is cached content that nobody holds."""
    blocks = BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True)
    while blocks.pool.num_indexed < num_blocks:
        free = num_blocks - blocks.pool.num_indexed
        _serve(blocks, _random_tokens(min(PROMPT_TOKENS, free * BLOCK_SIZE), draw))
    return blocks


def matched_per_second(num_blocks: int) -> float:
    """Blocks found and taken per second of lookup and allocation; giving back is counted too."""
    draw = np.random.default_rng(0)
    blocks = _filled_pool(num_blocks, draw)
    prefix = _random_tokens(SHARED_TOKENS, draw)
    # The last token is never matched, so each prompt has one token more than whole blocks.
    prompts = [np.concatenate([prefix, _random_tokens(1, draw)]) for _ in range(NUM_PROMPTS)]
    _serve(blocks, prompts[0])
    found = 0
    started = time.thread_time()
    for tokens in prompts:
        match = blocks.match_prefix(tokens)
        table = blocks.allocate(len(tokens), match)
        found += len(match.block_ids)
        blocks.free(table)
    seconds = time.thread_time() - started
    assert found == NUM_PROMPTS * SHARED_TOKENS // BLOCK_SIZE, "the shared prefix was not found"
    blocks.pool.check_integrity()
    return found / seconds


def hashed_per_second(num_blocks: int) -> float:
    """New full blocks hashed and made findable per second, eviction and giving back included."""
    draw = np.random.default_rng(0)
    blocks = _filled_pool(num_blocks, draw)
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
    summary: dict[str, float] = {}
    for suffix, pool in (("", POOL_BLOCKS), ("_large_pool", POOL_BLOCKS * LARGER)):
        for name, measure in (("matched", matched_per_second), ("hashed", hashed_per_second)):
            summary[f"blocks_{name}_per_s{suffix}"] = max(measure(pool) for _ in range(repeat))
    print(f"{'blocks per second':<20}{POOL_BLOCKS:>16,} {POOL_BLOCKS * LARGER:>16,} in the pool")
    for name in ("matched", "hashed"):
        small, large = (summary[f"blocks_{name}_per_s{end}"] for end in ("", "_large_pool"))
        print(f"{name:<20}{small:>16,.0f} {large:>16,.0f}")
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
