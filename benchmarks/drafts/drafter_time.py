"""What a proposer takes for a step, and drafts that hold with a probability that is made up."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch

from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.runner.cuda_graphs.graph_pool import GraphPool
from atom.model_engine.runner.speculation.time_steps import time_steps
from atom.model_ops.backends.noise import exponential_noise, row_keys
from atom.model_ops.backends.pinned_ring import PinnedRing
from atom.model_ops.drafts import Drafts, DrawnRuns
from atom.model_ops.slots import SlotTensors
from atom.speculation.measured_cost import MeasuredCost, Timed
from atom.speculation.proposer import make_drafts
from benchmarks.engines.offline_engine import OfflineEngine

_CALLS = 50
# Tells the noise of whether a draft holds from that of a draw.
_OF_ACCEPTANCE = 0x1B873593


@torch.inference_mode()
def measure_drafter(engine: OfflineEngine, rows: int, drafts: int) -> dict[str, Any]:
    """Microseconds for drafts of so many rows, of what the slots hold since the last requests. The
    cache is not to be used afterwards: drafting writes to blocks that these no longer own."""
    steps = own_runner(engine).steps
    state: SlotTensors = steps.slots.device
    slots = torch.arange(rows, device=state.last_token.device)
    wanted = torch.full_like(slots, drafts)
    # A request may have ended where its context does, which has no room for drafts.
    state.num_computed.clamp_(max=engine.config.model.max_model_len - 1 - drafts)

    def draft() -> None:
        make_drafts(steps._proposer, slots, wanted, drafts)  # type: ignore[attr-defined]

    found: dict[str, Any] = {"drafter_rows": rows, "drafter_launched_us": _launched_us(draft)}
    if slots.is_cuda:
        found["drafter_device_us"] = _replayed_us(draft)
    return found


def make_up_acceptance(engine: OfflineEngine, probability: float) -> None:
    """Let each draft hold with this probability, whatever was drafted and drawn."""
    steps: Any = own_runner(engine).steps
    ops = steps._ops
    accept = ops.accept_drafts

    def made_up(
        drawn: DrawnRuns, drafts: Drafts, state: SlotTensors, ring: PinnedRing | None = None
    ) -> torch.Tensor:
        index = torch.arange(drafts.token_ids.shape[1], device=drawn.slots.device)
        at = (drawn.first.unsqueeze(1) + index).clamp_max(len(drawn.token_ids) - 1)
        # A hash of seed and place, so that a graph that is replayed draws anew.
        places = state.num_computed[drawn.slots].unsqueeze(1) + index
        seeds = (state.sampling.seed[drawn.slots] ^ _OF_ACCEPTANCE).unsqueeze(1).expand_as(places)
        keys = row_keys(seeds.flatten(), places.flatten()).view(places.shape)
        holds = torch.exp(-exponential_noise(keys, index.expand_as(keys))) < probability
        told = torch.where(holds, drawn.token_ids[at], drawn.token_ids[at] ^ 1)
        counts: torch.Tensor = accept(drawn, Drafts(told, drafts.counts), state, ring)
        return counts

    ops.accept_drafts = made_up
    capture_anew(steps)


def capture_anew(steps: Any) -> None:
    """Capture a runner's graphs again, of what it computes now."""
    if steps.graphs is None:
        return
    with torch.inference_mode():
        steps.graphs = None  # before there are others: both take memory
        steps.graphs = steps.build_graphs(GraphPool())
        steps.graphs.capture(lambda share: None)


def drafted_step_cost(engine: OfflineEngine) -> MeasuredCost | None:
    """Return what steps with drafts and without take, timed as at a start that chooses by it; None
    where they are not replayed. For an engine that has served nothing."""
    runner = own_runner(engine)
    graphs = runner.steps.graphs
    if graphs is None or graphs.verify is None:
        return None
    cache = runner._caches.shape(engine.report.num_blocks)
    with torch.inference_mode():
        timed = time_steps(runner.steps, engine.config, cache, graphs.verify.most_tokens)
    return MeasuredCost([Timed(*msgspec.structs.astuple(step)) for step in timed])


def own_runner(engine: OfflineEngine) -> ModelRunner:
    """Take the runner of an engine whose one device runs in this process."""
    runner = getattr(engine.executor, "runner", None)
    assert isinstance(runner, ModelRunner), "the proposer of one device in this process is measured"
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
