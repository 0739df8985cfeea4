"""What a drafter takes for a step, and drafts that hold with a probability that is made up."""

from __future__ import annotations

import time
from typing import Any

import torch

from atom.model_engine.model_runner import ModelRunner
from atom.model_ops.drafts import Drafts
from atom.model_ops.slots import SlotTensors
from benchmarks.offline_engine import OfflineEngine

_CALLS = 50


def measure_drafter(engine: OfflineEngine, rows: int, drafts: int) -> dict[str, Any]:
    """Microseconds for drafts of so many rows, of what the slots hold since the last requests. The
    cache is not to be used afterwards: drafting writes to blocks that these no longer own."""
    steps = _runner(engine)._steps
    state: SlotTensors = steps.slots.device
    slots = torch.arange(rows, device=state.last_token.device)
    wanted = torch.full_like(slots, drafts)

    @torch.inference_mode()
    def draft() -> None:
        steps._drafter.draft(slots, wanted, drafts)  # type: ignore[attr-defined]

    found: dict[str, Any] = {"drafter_rows": rows, "drafter_launched_us": _launched_us(draft)}
    if slots.is_cuda:
        found["drafter_device_us"] = _replayed_us(draft)
    return found


def make_up_acceptance(engine: OfflineEngine, probability: float) -> None:
    """Have each draft hold with this probability, whatever was drafted and drawn."""
    ops: Any = _runner(engine)._steps._ops
    accept, generator = ops.accept_drafts, None

    def made_up(
        slots: torch.Tensor, token_ids: torch.Tensor, drafts: Drafts, state: SlotTensors
    ) -> torch.Tensor:
        nonlocal generator
        generator = generator or torch.Generator(slots.device).manual_seed(0)
        drawn = token_ids[:, :-1]
        holds = torch.rand(drawn.shape, generator=generator, device=slots.device) < probability
        told = torch.where(holds, drawn, drawn ^ 1)
        counts: torch.Tensor = accept(slots, token_ids, Drafts(told, drafts.counts), state)
        return counts

    ops.accept_drafts = made_up


def _runner(engine: OfflineEngine) -> ModelRunner:
    runner = getattr(engine.executor, "runner", None)
    assert isinstance(runner, ModelRunner), "the drafter of one device in this process is measured"
    return runner


def _launched_us(draft: Any) -> float:
    for _ in range(3):
        draft()
    _synchronize()
    started = time.perf_counter()
    for _ in range(_CALLS):
        draft()
    _synchronize()
    return round((time.perf_counter() - started) / _CALLS * 1e6, 1)


def _replayed_us(draft: Any) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draft()
    graph.replay()
    began, ended = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    began.record()
    for _ in range(_CALLS):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    milliseconds: float = began.elapsed_time(ended)
    return round(milliseconds / _CALLS * 1e3, 1)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
