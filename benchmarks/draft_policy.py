"""What the choice of how many drafts a row carries is worth, played without a model or a card.

    python -m benchmarks.draft_policy [--rows 1 16 64] [--drafts 5] [--matched 1]

The texts of benchmarks.drafts.said_texts and tokens drawn at random are said by rows that all do
alike, to the engine's own policy; a step costs what follows from qwen3-8b's steps that were timed
on an H200, and the host hears of a step when the next one is on its way. ratio: of speed to that
without drafts; length: tokens of a row and step; asked: steps that look for drafts. How near a card
comes to it is in docs/results/gpu/speculation.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atom.model_ops.drafts import Lookup
from atom.speculation.draft_lengths import AdaptiveDraftLengths
from atom.speculation.measured_cost import MeasuredCost, Timed
from atom.speculative_config import SpeculativeConfig
from benchmarks.drafts.said_texts import SAID, SaidText, TextSize, said_text

# Milliseconds.
_TIMED = (
    Timed(1, 0, 4.145), Timed(1, 1, 4.532), Timed(1, 5, 4.609),
    Timed(4, 0, 4.367), Timed(4, 1, 4.591), Timed(4, 5, 4.730),
    Timed(16, 0, 4.459), Timed(16, 1, 4.760), Timed(16, 5, 5.608),
    Timed(64, 0, 4.907), Timed(64, 1, 5.862), Timed(64, 5, 10.125),
    Timed(64, 0, 9.003, 2015), Timed(64, 5, 15.229, 2015),
)  # fmt: skip
_VOCABULARY, _LONGEST, _ANSWER = 151_936, 2_047, 192
_SLOT = np.zeros(1, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Played:
    ratio: float
    length: float
    asked: float


def look_up(tokens: Sequence[int], lookup: Lookup, num_drafts: int) -> list[int]:
    """Return what followed the newest of the longest earlier matches of the last tokens."""
    end, matched = max(
        (
            (earlier, _matched(tokens, earlier, lookup.most))
            for earlier in range(len(tokens) - 1)
            if tokens[earlier] == tokens[-1]
        ),
        key=lambda found: (found[1], found[0]),
        default=(0, 0),
    )
    if matched < lookup.fewest:
        return []
    period = len(tokens) - 1 - end
    return [tokens[end + 1 + ahead % period] for ahead in range(num_drafts)]


def _matched(tokens: Sequence[int], earlier: int, most: int) -> int:
    back = 1
    while back < min(most, earlier + 1) and (
        tokens[earlier - back] == tokens[len(tokens) - 1 - back]
    ):
        back += 1
    return back


class AllAlike:
    """Costs of steps in which so many rows do the same."""

    def __init__(self, rows: int) -> None:
        self._cost = MeasuredCost(_TIMED)
        self._rows = rows

    def of_steps(self, rows: int, lengths: np.ndarray, context: float = 0.0) -> np.ndarray:
        """See Costs; rows are the text's."""
        return self._cost.of_steps(self._rows, lengths, context)

    def of_step(self, drafts: int, context: int) -> float:
        return float(self.of_steps(self._rows, np.array([float(drafts)]), float(context))[0])


def play(text: SaidText, rows: int, lookup: Lookup, most: int) -> Played:
    """Say the text, with so many drafts a step at most, and count what its steps cost."""
    cost = AllAlike(rows)
    policy = AdaptiveDraftLengths(most, 1, cost)
    policy.enter(0)
    tokens, left = list(text.prompt), deque(text.answer)
    news: deque[tuple[int, int, int]] = deque()  # wanted, found and held of steps
    plain, took, steps, asked = 0.0, 0.0, 0, 0
    while left:
        if len(news) > 1:
            _tell(policy, *news.popleft())
        wanted = int(policy.choose(_SLOT, np.array([len(tokens)], dtype=np.int32))[0])
        drafts = look_up(tokens, lookup, wanted) if wanted else []
        held = _held(drafts, left)
        news.append((wanted, len(drafts), held))
        took += cost.of_step(wanted, len(tokens))
        said = [left.popleft() for _ in range(min(held + 1, len(left)))]
        plain += len(said) * cost.of_step(0, len(tokens))
        tokens += said
        steps, asked = steps + 1, asked + (wanted > 0)
    return Played(plain / took, len(text.answer) / steps, asked / steps)


def _held(drafts: Sequence[int], left: deque[int]) -> int:
    for number, (draft, said) in enumerate(zip(drafts, left, strict=False)):
        if draft != said:
            return number
    return min(len(drafts), len(left))


def _tell(policy: AdaptiveDraftLengths, wanted: int, found: int, held: int) -> None:
    if found:
        policy.observe(_SLOT, np.array([found], np.int32), np.array([held], np.int32))
    elif wanted:
        policy.miss(_SLOT)


def text(name: str, seed: int) -> SaidText:
    draw = np.random.default_rng(seed)
    if name in SAID:
        return said_text(name, TextSize(_LONGEST, _ANSWER, _VOCABULARY), draw)
    prompt, answer = (draw.integers(_VOCABULARY, size=size).tolist() for size in (512, _ANSWER))
    return SaidText(prompt, answer)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--drafts", type=int, default=5, help="of a step, at most")
    parser.add_argument("--matched", type=int, default=1, help="tokens, at least")
    parser.add_argument("--seeds", type=int, default=6, help="texts of each kind")
    args = parser.parse_args(argv)
    lookup = Lookup(args.matched, SpeculativeConfig().most_matched)
    for rows in args.rows:
        for name in (*SAID, "random"):
            found = [
                play(text(name, 1001 + 1000 * seed), rows, lookup, args.drafts)
                for seed in range(args.seeds)
            ]
            means = {
                key: round(statistics.mean(getattr(each, key) for each in found), 3)
                for key in Played.__slots__
            }
            print(json.dumps({"text": name, "rows": rows, **means}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
