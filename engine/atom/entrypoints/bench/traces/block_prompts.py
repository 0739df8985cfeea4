"""Makes up the prompts of a trace: random tokens for each block id, the same wherever it stands.

Pure. Prompts are built when they are sent, since those of a long trace together would not fit into
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.random import default_rng

from atom.entrypoints.bench.traces.traced_request import TracedRequest
from atom.entrypoints.bench.workload import Ask


class BlockPrompts:
    """Make the prompts of a trace. seed: another one gives other tokens for every id, so a replay
    does not profit from a server's cache of an earlier one."""

    def __init__(self, requests: Sequence[TracedRequest], vocab_size: int, seed: int) -> None:
        self._requests = requests
        self._vocab_size = vocab_size
        self._seed = seed

    def ask(self, place: int) -> Ask:
        """Build the prompt of a request: its blocks, cut to its length, and its own tokens
        behind."""
        request = self._requests[place]
        scope = int.from_bytes(hashlib.sha256(request.scope.encode()).digest()[:8])
        blocks = [
            self._tokens((1, scope, hash_id), request.block_tokens) for hash_id in request.hash_ids
        ]
        missing = request.input_tokens - len(blocks) * request.block_tokens
        if missing > 0:
            blocks.append(self._tokens((2, place, 0), missing))
        tokens = np.concatenate(blocks)[: request.input_tokens]
        return Ask(tokens.tolist(), request.output_tokens)

    def _tokens(self, key: tuple[int, int, int], count: int) -> np.ndarray:
        return default_rng((self._seed, *key)).integers(self._vocab_size, size=count)
