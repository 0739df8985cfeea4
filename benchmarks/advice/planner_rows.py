"""The H200 rows of llm-d-planner's wheel, and the same questions asked of this advisor.

    python -m benchmarks.advice.planner_rows

The wheel (llm-d-planner 0.3.3) has estimates for these loads, made by models' sizes. Its command
that estimates other models needs a package that is on no registry. Nothing here was measured, so
the table compares answers and no errors. Prints Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from atom.advisor.candidates import launches_of
from atom.advisor.load import parse_load
from atom.advisor.operations import model_work
from atom.advisor.rates import Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Fleet, Server, simulate
from atom.advisor.slo import Metric, figures_of, parse_slo
from atom.advisor.step_time import StepTimer
from atom.sizing.cards import CARDS
from atom.sizing.errors import DoesNotFitError
from atom.sizing.options.scheduling import SchedulerOptions
from atom_operator.plan.model_facts import facts_from_catalogue

CARD = CARDS["H200"]


class Row(NamedTuple):
    """A row of the wheel. rate: requests per second; ttft_ms, itl_ms: means."""

    source: str
    cards: int
    prompt: int
    answer: int
    rate: float
    ttft_ms: int
    itl_ms: int


ROWS = (
    Row("hf://google/gemma-3-12b-it", 1, 512, 256, 2.9, 51, 11),
    Row("hf://google/gemma-3-27b-it", 2, 512, 256, 4.2, 39, 8),
    Row("hf://Qwen/Qwen3-32B", 2, 1024, 1024, 2.4, 113, 17),
    Row("hf://ByteDance-Seed/Seed-OSS-36B-Instruct", 2, 512, 256, 3.0, 72, 14),
    Row("hf://zai-org/GLM-4.5-Air", 1, 512, 256, 2.7, 61, 14),
    Row("hf://MiniMaxAI/MiniMax-M2", 8, 10240, 1536, 0.3, 836, 21),
    Row("hf://Qwen/Qwen3-235B-A22B-Thinking-2507", 8, 10240, 1536, 0.3, 433, 13),
)


def answer(row: Row, tables: Tables) -> str:
    """Return this advisor's answer: first token and gap at the median in milliseconds with their
    error, or why there is none."""
    facts = facts_from_catalogue(row.source).facts
    if facts is None:
        return "not in the catalogue"
    division, rates = Division(facts, CARD, row.cards), tables.rates(CARD, row.cards)
    load = parse_load(f"rate={row.rate}/s,in={row.prompt},out={row.answer}")
    try:
        form = plan_form(division, SchedulerOptions().max_num_seqs, load.longest)
    except DoesNotFitError as error:
        return f"does not fit: needs {error.needed_bytes / 1e9:,.0f} GB a card"
    timer = StepTimer(model_work(facts, division.kv, division.sharding), CARD, rates)
    server = Server(rates.seconds.request, rates.seconds.token)
    fleet = Fleet(form, timer.seconds, server=server, launches=launches_of(form, timer))
    requests, pods = load.share(1, 1.0)
    outcome = simulate(fleet, requests)
    found = figures_of(outcome, parse_slo("ttft=60s@p50"), requests.prompt_tokens, pods)
    ttft, itl = (1e3 * found.at(metric, 50) for metric in (Metric.TTFT, Metric.ITL))
    return f"{ttft:,.0f}, {itl:.1f} (±{rates.error:.0%})"


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    tables = Tables.packaged()
    yield "| model | cards | in, out | requests/s | llm-d-planner: first token, gap, ms | here |"
    yield "|---|---:|---|---:|---|---|"
    for row in ROWS:
        name = row.source.rpartition("/")[2]
        asked = f"{row.prompt}, {row.answer} | {row.rate}"
        theirs = f"{row.ttft_ms}, {row.itl_ms}"
        yield f"| {name} | {row.cards} | {asked} | {theirs} | {answer(row, tables)} |"


def main() -> int:
    for line in table():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
