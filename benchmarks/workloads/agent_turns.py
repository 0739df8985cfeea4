"""Agents that take turns: conversations that grow, and a device cache that holds few of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine, free_memory

_BLOCK = 16
_SHORT_TOKENS = 200
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Agents:
    """Conversations. begun: tokens of the first prompts; added: to a prompt after each answer;
    answer: tokens; device_tokens: that the device's cache holds; tier_gib: of the host's; write:
    when a block goes there; shorts: prompts that never return."""

    count: int = 20
    turns: int = 4
    begun: int = 8_000
    added: int = 300
    answer: int = 24
    device_tokens: int = 48_000
    tier_gib: float = 30.0
    max_model_len: int = 10_240
    max_num_seqs: int = 16
    write: str = "through"
    shorts: int = 256

    @staticmethod
    def tiny() -> Agents:
        """Return conversations that a processor computes in seconds."""
        return Agents(5, 3, 300, 20, 4, 1100, 0.2, 512, 4, shorts=4)

    def longer(self, turns: int) -> Agents:
        """Return the conversations with so many turns, and a tier that holds all of them."""
        grown = self.begun + turns * (self.added + self.answer)
        size = self.tier_gib * grown / (self.begun + self.turns * (self.added + self.answer))
        longest = -(-(grown + _BLOCK) // 1024) * 1024
        return replace(
            self, turns=turns, max_model_len=max(longest, self.max_model_len), tier_gib=size * 1.2
        )

    @property
    def tier(self) -> dict[str, Any]:
        """Return the options of an engine with the tier."""
        return {
            "kv_offloading_size": self.tier_gib,
            "kv_offload_min_tokens": 64,
            "kv_offload_write": self.write,
        }

    def fewer(self) -> Agents:
        """Return the conversations that suffice to compare tokens."""
        return replace(
            self,
            count=min(8, self.count),
            turns=3,
            device_tokens=self.device_tokens // 2,
            tier_gib=self.tier_gib / 2,
        )


@dataclass(slots=True)
class Played:
    """The results of a run. first_seconds: of each turn, until its first token; answers: by agent
    and turn; short_seconds: of the prompts that never return, the fastest of some rounds."""

    seconds: float = 0.0
    short_seconds: float = 0.0
    computed: int = 0
    first_seconds: list[float] = field(default_factory=list)
    answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)


def engine_of(folder: Path, device: str, agents: Agents, **options: Any) -> OfflineEngine:
    """Start an engine with random weights and a cache that is too small."""
    return OfflineEngine(
        str(folder),
        load_dummy=True,
        device=device,
        block_size=_BLOCK,
        num_kv_blocks=agents.device_tokens // _BLOCK,
        max_model_len=agents.max_model_len,
        max_num_seqs=agents.max_num_seqs,
        **options,
    )


def play(engine: OfflineEngine, agents: Agents) -> Played:
    """Let every agent ask its next turn as soon as it has an answer."""
    draw = np.random.default_rng(2)
    params = SamplingParams(temperature=0.0, max_tokens=agents.answer, ignore_eos=True)
    found = Played(short_seconds=min(_short_seconds(engine, agents, draw) for _ in range(_ROUNDS)))
    before = engine.scheduler.stats()
    texts = [engine.random_prompt(agents.begun, draw) for _ in range(agents.count)]
    further = [
        [engine.random_prompt(agents.added, draw) for _ in range(agents.turns)] for _ in texts
    ]
    open_turns, asked = dict[int, tuple[int, int]](), dict[int, float]()
    began = time.perf_counter()

    def ask(agent: int, turn: int) -> None:
        texts[agent] = texts[agent] + further[agent][turn]
        number = engine.add(texts[agent], params)
        open_turns[number], asked[number] = (agent, turn), time.perf_counter()
        found.answers[agent, turn] = []

    for agent in range(agents.count):
        ask(agent, 0)
    while engine.has_work():
        result = engine.step()
        now = time.perf_counter()
        for number, run in () if result is None else result.runs():
            answer = found.answers[open_turns[number]]
            if not answer:
                found.first_seconds.append(now - asked[number])
            answer += [int(token) for token in run]
        for row in () if result is None else result.finished:
            agent, turn = open_turns.pop(row.request_id)
            texts[agent] = texts[agent] + found.answers[agent, turn]
            if turn + 1 < agents.turns:
                ask(agent, turn + 1)
    found.seconds = time.perf_counter() - began
    stats = engine.scheduler.stats()
    found.computed = stats.prompt_tokens_total - before.prompt_tokens_total
    found.computed -= stats.cached_tokens_total - before.cached_tokens_total
    return found


def _short_seconds(engine: OfflineEngine, agents: Agents, draw: np.random.Generator) -> float:
    """Return how long prompts that never return take, all at once."""
    params = SamplingParams(temperature=0.0, max_tokens=agents.answer, ignore_eos=True)
    for _ in range(agents.shorts):
        engine.add(engine.random_prompt(_SHORT_TOKENS, draw), params)
    began = time.perf_counter()
    engine.run()
    return time.perf_counter() - began


def played(folder: Path, device: str, agents: Agents, **options: Any) -> Played:
    """Start an engine, play, and give its memory back."""
    engine = engine_of(folder, device, agents, **options)
    found = play(engine, agents)
    engine.close()
    del engine
    free_memory()
    return found


def with_and_without(folder: Path, device: str, agents: Agents) -> Iterator[tuple[str, float]]:
    """Yield the figures of agents with the tier, without it, and their ratios, each once known."""
    runs: dict[str, Played] = {}
    for name, options in (("tier", agents.tier), ("none", {})):
        run = runs[name] = played(folder, device, agents, **options)
        yield f"agents_{name}_requests_per_s", len(run.answers) / run.seconds
        yield f"agents_{name}_mean_ttft_s", float(np.mean(run.first_seconds))
        yield f"agents_{name}_computed_tokens", run.computed
        yield f"short_{name}_requests_per_s", agents.shorts / run.short_seconds
    few, many = runs["tier"], runs["none"]
    yield "short_requests_ratio", many.short_seconds / few.short_seconds
    yield "agents_requests_ratio", many.seconds / few.seconds
    yield "agents_ttft_ratio", float(np.mean(few.first_seconds) / np.mean(many.first_seconds))
    yield "agents_computed_ratio", few.computed / many.computed


def same_tokens(folder: Path, device: str, agents: Agents) -> Iterator[tuple[str, float]]:
    """Yield how many answers differ between engines with the tier and without it."""
    few = agents.fewer()
    options = {"reproducible": True, "enforce_eager": True}
    one = played(folder, device, few, **options, **few.tier)
    other = played(folder, device, few, **options)
    differ = sum(one.answers[key] != other.answers[key] for key in other.answers)
    yield "same_answers", len(other.answers)
    yield "same_computed_ratio", one.computed / other.computed
    yield "same_answers_that_differ", differ
