"""Tiers of the KV cache, and prefill and decode apart: simulated beside recorded runs on H200s.

    python -m benchmarks.advice.recorded_runs

The runs are those of `benchmarks.engines.kv_tiers --only agents` on one card and of
`benchmarks.engines.prefill_decode` on two. Nothing of them was used to fit anything. Needs no card.
Prints a Markdown row for each figure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atom.advisor.candidates import launches_of
from atom.advisor.engine_form import EngineForm
from atom.advisor.pair import Pair
from atom.advisor.rates import Tables
from atom.advisor.room import tier_of
from atom.advisor.simulation import Due, Fleet, Outcome, simulate
from atom.sizing import ModelFacts
from atom.sizing.cards import CARDS
from benchmarks.advice.h200_truth import Predictor
from benchmarks.step_rates.measure import config_of
from benchmarks.workloads.agent_turns import Agents

SHAPE, CARD = "qwen3-8b", CARDS["H200"]
_BLOCK, _TOKENS = 16, 150_000
_ROUNDS, _STEADY_ANSWER = 3, 4000
# Of the pages of one prompt over one TCP connection of a host; not measured in that run.
LOOPBACK_BYTES_PER_SECOND = 2.5e9


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run, as it was seen and as it is simulated."""

    run: str
    name: str
    seen: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.seen - 1


@dataclass(frozen=True, slots=True)
class Prompts:
    """Requests with their prompts. Implements the advisor's Load."""

    dues: Sequence[Due]
    prompts: Sequence[list[int]]
    outputs: Sequence[int]

    def prompt(self, place: int) -> list[int]:
        return self.prompts[place]

    def output_tokens(self, place: int) -> int:
        return self.outputs[place]


def agent_figures(agents: Agents) -> Iterator[Figure]:
    """Simulate conversations that the device's cache does not hold, with the host's tier and
    without it."""
    found, load = predictor(), agent_load(agents)
    form = resized(
        found.form, agents.device_tokens, max_num_seqs=agents.max_num_seqs,
        max_model_len=agents.max_model_len,
    )  # fmt: skip
    host = tier_of(form, int(agents.tier_gib * 2**30))
    if host is not None:  # pages on their way had 256 MiB when the run was recorded
        host = replace(host, step_pages=0)
    given = sum(map(len, load.prompts))
    seen = {"no tier": (3.7716, 3.948, 702_880.0), "tier": (5.2165, 3.0188, 438_080.0)}
    for name, one in (("no tier", form), ("tier", replace(form, host=host))):
        outcome = simulate(fleet(found, one, 1), load)
        served = [each for each in outcome.served if each is not None]
        figures = (
            len(served) / outcome.seconds,
            float(np.mean([each.ttft for each in served])),
            float(given - sum(each.cached for each in served)),
        )
        names = ("requests/s", "mean first token, s", "computed prompt tokens")
        for each, was, now in zip(names, seen[name], figures, strict=True):
            yield Figure(f"20 agents, {name}", each, was, now)


def agent_load(agents: Agents) -> Prompts:
    """Return the turns of `benchmarks.workloads.agent_turns`, whose answers are zeros here."""
    draw, count = np.random.default_rng(2), agents.count
    texts = [draw.integers(1, _TOKENS, size=agents.begun).tolist() for _ in range(count)]
    prompts: list[list[int]] = []
    dues: list[Due] = []
    for turn in range(agents.turns):
        for agent in range(count):
            texts[agent] = texts[agent] + draw.integers(1, _TOKENS, size=agents.added).tolist()
            prompts.append(texts[agent])
            dues.append(Due(0.0, (len(dues) - count,) if turn else ()))
            texts[agent] = texts[agent] + [0] * agents.answer
    return Prompts(dues, prompts, [agents.answer] * len(prompts))


def pair_figures() -> Iterator[Figure]:
    """Simulate sixteen steady answers beside eight streams of long prompts: on two whole engines,
    of which one is simulated with half of the load, and divided."""
    found = predictor()
    form = resized(
        found.form, 192_000, max_num_seqs=25, max_model_len=9216, max_num_batched_tokens=8192
    )
    form = replace(form, max_step_seconds=0.0)
    whole = simulate(fleet(found, form, 1), stream_load(8, 4))
    pair = Pair(1, LOOPBACK_BYTES_PER_SECOND)
    divided = simulate(replace(fleet(found, form, 2), pair=pair), stream_load(16, 8))
    yield from _stream_figures("whole", whole, 2, (0.8634, 7.4272, 7.7273, 245.12, 0.9065))
    yield from _stream_figures("divided", divided, 1, (2.3085, 8.9628, 9.9936, 48.376, 0.7102))


def stream_load(steady: int, streams: int) -> Prompts:
    """Return steady answers, and closed loops of prompts of 8,192 and answers of 1,024 tokens."""
    draw = np.random.default_rng(5)
    dues, prompts, outputs = [Due()] * steady, [], [_STEADY_ANSWER] * steady
    prompts += [draw.integers(1, _TOKENS, size=64).tolist() for _ in range(steady)]
    for place in range(streams * _ROUNDS):
        dues.append(Due(0.0, (len(dues) - streams,) if place >= streams else ()))
        prompts.append(draw.integers(1, _TOKENS, size=8192).tolist())
        outputs.append(1024)
    return Prompts(dues, prompts, outputs)


def _stream_figures(
    name: str, outcome: Outcome, engines: int, seen: tuple[float, ...]
) -> Iterator[Figure]:
    long = [each for each in outcome.served if each is not None and each.output_tokens == 1024]
    gaps = 1e3 * outcome.gap_seconds
    figures = (
        float(np.median([each.ttft for each in long])),
        float(np.percentile(gaps, 50)),
        float(np.percentile(gaps, 99)),
        float(gaps.max()),
        engines * len(long) / max(each.last for each in long),
    )
    names = ("first token p50, s", "gap p50, ms", "gap p99, ms", "longest gap, ms", "requests/s")
    for each, was, now in zip(names, seen, figures, strict=True):
        yield Figure(f"long prompts beside answers, {name}", each, was, now)


def predictor() -> Predictor:
    return Predictor.of(ModelFacts.from_hf_config(config_of(SHAPE)), CARD, Tables.packaged())


def resized(form: EngineForm, cache_tokens: int, **limits: int) -> EngineForm:
    """Return a form with another cache and other limits, which shares prefixes."""
    budget = replace(form.budget, num_blocks=cache_tokens // _BLOCK)
    return replace(form, budget=budget, limits=replace(form.limits, prefix_caching=True, **limits))


def fleet(found: Predictor, form: EngineForm, engines: int) -> Fleet:
    launches = launches_of(form, found.timer)
    host = found.timer.rates.host_bytes_per_second
    return Fleet(form, found.timer.seconds, engines, launches=launches, host_bytes_per_second=host)


def main() -> int:
    print("| run | figure | seen | simulated | off by |")
    print("|---|---|---:|---:|---:|")
    for each in (*agent_figures(Agents()), *pair_figures()):
        print(
            f"| {each.run} | {each.name} | {each.seen:,.4g} | {each.simulated:,.4g} | "
            f"{each.error:+.0%} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
