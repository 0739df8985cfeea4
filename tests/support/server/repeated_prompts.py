"""Prompts that begin alike, asked through a router, and how many find their beginning cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests.support.server.server_process import SERVED_NAME
from tests.support.waiting import HANG_SECONDS

PREFIXES, ROUNDS = 8, 5
# Of each beginning, in the tiny model's tokens, at least; it has a little more.
PREFIX_TOKENS = 384
SHARE = 0.95  # of what is asked again and finds its beginning cached, where a router does its work


def beginnings(name: str) -> list[str]:
    """Eight that differ from the first tokens on, and from those of other names."""
    return [f"{number}{name}: " + f"{number} of eight " * 40 for number in range(PREFIXES)]


@dataclass
class RepeatedPrompts:
    """Asks `url`; `failed` are requests without an answer. `prefix_tokens`: of each beginning, as
    this model counts them, at least."""

    url: str
    model: str = SERVED_NAME
    prefix_tokens: int = PREFIX_TOKENS
    asked: int = 0
    failed: list[str] = field(default_factory=list)

    def hits(self, known: Sequence[str]) -> int:
        """Ask something new about each of these, and count those that are found cached."""
        return sum(self._cached(beginning) >= self.prefix_tokens for beginning in known)

    def share(self, known: Sequence[str]) -> float:
        """Of many repeats the part that went where they are cached."""
        return sum(self.hits(known) for _ in range(ROUNDS)) / (ROUNDS * len(known))

    def _cached(self, beginning: str) -> int:
        self.asked += 1
        body = {"model": self.model, "prompt": f"{beginning} {self.asked}", "max_tokens": 2}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=HANG_SECONDS)
        if answer.status_code != 200:
            self.failed.append(answer.text)
            return 0
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
