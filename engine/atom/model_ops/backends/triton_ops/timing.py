"""Device time of small kernels: calls captured into one graph, replays timed by events.

Launch gaps of the host do not count, as they do not in a captured decode step. The caller passes
calls over enough different buffers that the cache does not hold them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import torch

# Launches that one graph holds at least, so that its own start is spread thin.
_MIN_LAUNCHES = 24
# More bytes than any card's last-level cache holds.
CACHE_BYTES = 600 * 1024 * 1024


def copies_beyond_cache(bytes_per_call: int, most: int = 200) -> int:
    """Return how many sets of buffers to rotate so that each call reads from memory."""
    return max(1, min(most, math.ceil(CACHE_BYTES / bytes_per_call)))


def graph_microseconds(calls: Sequence[Callable[[], object]], replays: int = 5) -> float:
    """Return the median time of one call, in microseconds."""
    repeats = math.ceil(_MIN_LAUNCHES / len(calls))
    calls[0]()  # compiles, allocates workspaces
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    graph.replay()
    samples = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / (repeats * len(calls)))
    return median(samples)
