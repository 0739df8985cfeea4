"""CoreDriver: the engine core in this process, stepped until every request has ended.

The engine loop without sockets, for tests of what is computed rather than of how it travels.
"""

from __future__ import annotations

from typing import Any

from atom.sampling_params import SamplingParams
from benchmarks.offline_engine import OfflineEngine


class CoreDriver(OfflineEngine):
    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **{"device": "cpu", **options})
        self.vocab_size = self.config.model.vocab_size

    def generate(self, prompts: list[list[int]], **params: Any) -> list[list[int]]:
        """Greedy unless told otherwise; all prompts at once; their new tokens in order."""
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        tokens: dict[int, list[int]] = {self.add(prompt, sampling): [] for prompt in prompts}
        while self.pipeline.has_work():
            result = self.step()
            if result is None:
                continue
            for row, token in zip(result.request_ids, result.token_ids, strict=True):
                tokens[int(row)].append(int(token))
            self.scheduler.blocks.pool.check_integrity()
        return list(tokens.values())
