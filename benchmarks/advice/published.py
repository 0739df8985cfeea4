"""Published figures of AMD cards beside predictions by peaks and assumed shares alone.

    python -m benchmarks.advice.published

No figure was used to choose the shares. Clients send in closed loops, as the figures' benchmark
does (random prompts, no prefix cache, ten requests of each client; four here). Prints a Markdown
table with the source of each figure; the last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atom.advisor.candidates import launches_of
from atom.advisor.operations import model_work
from atom.advisor.rates import ASSUMED
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Fleet, Server, simulate
from atom.advisor.slo import Figures, Metric, figures_of, parse_slo
from atom.advisor.step_time import StepTimer
from atom.sizing import KV_ELEMENTS, ModelFacts, online_scheme
from atom.sizing.cards import CARDS
from atom_operator.plan.model_facts import catalogue_config
from benchmarks.advice.loads import EqualLoad

_REQUESTS_A_CLIENT = 4
_R1 = "hf://deepseek-ai/DeepSeek-V3"  # whose shape DeepSeek-R1 has
_KIMI = "hf://moonshotai/Kimi-K2-Instruct-0905"  # whose shape Kimi-K2-Thinking has
_OSS = "hf://openai/gpt-oss-120b"
_ATOM = "ROCm/ATOM, recipes"
_PAGES = "ROCm/ATOM, gh-pages kernel dashboard, 2026-04-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A run with its figures: output tokens per second of all cards, and milliseconds a token after
    the first; None where it was not published. fp8_cache: the KV cache's elements."""

    name: str
    source: str
    card: str
    ranks: int
    lengths: tuple[int, int]
    clients: int
    output_rate: float | None
    tpot_ms: float | None
    page: str
    mxfp4: bool = False
    fp8_cache: bool = True


def _run(name: str, source: str, card: str, ranks: int, **more: Any) -> Published:
    return Published(name=name, source=source, card=card, ranks=ranks, **more)


def published() -> Iterator[Published]:
    """Yield the runs."""
    kilo = (1024, 1024)
    for clients, rate, tpot in ((128, 4274.0, 28.8), (256, 6039.0, 40.8)):
        yield _run(
            "DeepSeek-R1 FP8", _R1, "MI300X", 8, lengths=(922, 922), clients=clients,
            output_rate=rate, tpot_ms=tpot, page=_ATOM,
        )  # fmt: skip
    yield _run(
        "DeepSeek-R1 FP8", _R1, "MI355X", 8, lengths=kilo, clients=16,
        output_rate=1019.0, tpot_ms=15.3, page=_PAGES,
    )  # fmt: skip
    yield _run(
        "gpt-oss-120b", _OSS, "MI355X", 1, lengths=kilo, clients=16,
        output_rate=2219.0, tpot_ms=6.78, page=_PAGES,
    )  # fmt: skip
    for clients, total in ((16, 5758.0), (64, 13567.0), (128, 19235.0)):
        yield _run(
            "gpt-oss-120b", _OSS, "MI355X", 1, lengths=kilo, clients=clients,
            output_rate=total / 2, tpot_ms=None, page="InferenceX#1412, half of all tokens",
        )  # fmt: skip
    for clients, rate in (
        (4, 329.18), (8, 592.0), (16, 1000.21), (32, 1632.74), (64, 2444.08), (128, 3349.54)
    ):  # fmt: skip
        yield _run(
            "Kimi-K2-Thinking MXFP4", _KIMI, "MI355X", 4, lengths=kilo, clients=clients,
            output_rate=rate, tpot_ms=None, page=_ATOM, mxfp4=True,
        )  # fmt: skip
    for fp8, rate in ((False, 1210.0), (True, 1444.0)):
        yield _run(
            "Qwen3-14B-FP8", "hf://Qwen/Qwen3-14B-FP8", "MI325X", 1, lengths=(8192, 1024),
            clients=64, output_rate=rate, tpot_ms=None, page="ROCm/ATOM#1766", fp8_cache=fp8,
        )  # fmt: skip


def predict(run: Published) -> Figures:
    """Simulate a run by peaks and assumed shares."""
    config: Mapping[str, Any] = catalogue_config(run.source) or {}
    if run.mxfp4:
        config = {key: value for key, value in config.items() if key != "quantization_config"}
    facts = ModelFacts.from_hf_config(config)
    if run.mxfp4:
        facts = facts.stored_as(online_scheme("mxfp4"))
    card = CARDS[run.card]
    division = Division(facts, card, run.ranks)
    form = plan_form(division, max(8, run.clients), sum(run.lengths))
    form = replace(form, limits=replace(form.limits, prefix_caching=False))
    kv = KV_ELEMENTS["fp8"] if run.fp8_cache else division.kv
    timer = StepTimer(model_work(facts, kv, division.sharding), card, ASSUMED)
    load = EqualLoad.in_loops(_REQUESTS_A_CLIENT * run.clients, run.clients, run.lengths)
    server = Server(ASSUMED.seconds.request, ASSUMED.seconds.token)
    launches = launches_of(form, timer)
    outcome = simulate(Fleet(form, timer.seconds, server=server, launches=launches), load)
    return figures_of(outcome, parse_slo("ttft=60s@p90"), load.prompt_tokens, 1)


def main() -> int:
    print("| run | card | clients | figure | published | predicted | off by | source |")
    print("|---|---|---:|---|---:|---:|---:|---|")
    errors = []
    for run in published():
        figures = predict(run)
        tpot = 1e3 * float(figures.values[Metric.TPOT].mean())
        pairs = (
            ("out tok/s", run.output_rate, figures.token_rate),
            ("ms a token", run.tpot_ms, tpot),
        )
        for name, stated, found in pairs:
            if stated is not None:
                errors.append(found / stated - 1)
                print(
                    f"| {run.name}, {run.ranks} cards | {run.card} | {run.clients} | {name} | "
                    f"{stated:,.4g} | {found:,.4g} | {found / stated - 1:+.0%} | {run.page} |",
                    flush=True,
                )
    within = sum(abs(each) <= 0.3 for each in errors)
    print(f"\n{within} of {len(errors)} are within 30 %.")
    print(json.dumps({"figures": len(errors), "within_30_percent": within, "errors": errors}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
