"""Measure the steps of several shapes on this machine's device, and fit their rates."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

import atom
from atom.advisor.launches import Launches, captured_buckets
from atom.advisor.operations import model_work
from atom.advisor.rates import RatesFile
from atom.errors import ConfigError
from atom.sizing import KV_ELEMENTS, KvElement, Sharding
from atom.sizing.cards import Card, Precision, Vendor, card_of_device
from atom.sizing.limits import RunLimits
from atom.utils.device import Device, detect_device
from benchmarks.engines.offline_engine import OfflineEngine, free_memory
from benchmarks.measures.limits import measured_ceilings
from benchmarks.step_rates.fit import TimedStep, fit
from benchmarks.step_rates.rates_table import TableSource, write_table
from benchmarks.step_rates.recorded_steps import RecordedEngine
from benchmarks.workloads.shapes import SHAPES

DEFAULT_SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "qwen3-30b-a3b")
CPU_SHAPES = ("cpu-wide", "cpu-deep", "cpu-heads", "cpu-vocab")
# Small dense shapes that differ in what a step is made of.
_CPU: dict[str, dict[str, int]] = {
    "cpu-wide": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4},
    "cpu-deep": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 10},
    "cpu-heads": {"hidden_size": 256, "num_attention_heads": 16, "num_key_value_heads": 8},
    "cpu-vocab": {"hidden_size": 256, "intermediate_size": 640, "vocab_size": 32000},
}
CPU_CONFIGS = {name: {**SHAPES["tiny-12k"], **changes} for name, changes in _CPU.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps to run on a kind of device: rows of decodes, lengths of prompts, and limits."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    max_model_len: int
    max_num_batched_tokens: int


GPU_PLAN = Plan((1, 8, 64, 256), (64, 1024, 4096), 8192, 16_384)
CPU_PLAN = Plan((1, 4, 16, 32), (16, 128, 512), 1024, 2048)


def measure_rates(path: Path, shapes: Sequence[str], device: str | None) -> RatesFile:
    """Run the shapes and write a table. Raises ConfigError for a shape that is not known."""
    found = detect_device(device or "auto")
    on_cpu = found.torch_device.type == "cpu"
    names = CPU_SHAPES if on_cpu and tuple(shapes) == DEFAULT_SHAPES else tuple(shapes)
    card = card_of(found)
    steps: list[TimedStep] = []
    for name in names:
        before = len(steps)
        steps += timed_steps(name, config_of(name), device, CPU_PLAN if on_cpu else GPU_PLAN)
        print(f"{name}: {len(steps) - before} steps", flush=True)
    source = TableSource(
        found.name,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        {"atom": atom.__version__, "torch": str(torch.__version__)},
        os.getloadavg()[0],
    )
    return write_table(path, card, fit(steps, card), steps, source)


def config_of(name: str) -> dict[str, object]:
    """Return the config.json of a shape. Raises ConfigError."""
    config = CPU_CONFIGS.get(name) or SHAPES.get(name)
    if config is None:
        known = ", ".join([*CPU_CONFIGS, *sorted(SHAPES)])
        raise ConfigError(f"--shapes {name}: is no shape; there are: {known}")
    return dict(config)


def timed_steps(
    name: str, config: dict[str, object], device: str | None, plan: Plan
) -> Iterator[TimedStep]:
    """Yield the steps of one shape, in the order in which they were measured."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        engine = OfflineEngine(
            folder,
            load_dummy=True,
            device=device or "auto",
            max_model_len=plan.max_model_len,
            max_num_seqs=max(plan.rows),
            max_num_batched_tokens=plan.max_num_batched_tokens,
            max_step_seconds=0.0,
            enable_prefix_caching=False,
        )
        element = getattr(torch, engine.report.dtype).itemsize
        kv_bytes = getattr(torch, engine.report.kv_cache_dtype).itemsize
        kv = KV_ELEMENTS["fp8"] if kv_bytes == 1 else KvElement(kv_bytes)
        on_cpu, card = engine.report.on_cpu, card_of_device(engine.report.device)
        facts = replace(engine.config.model.facts, weight_dtype_bytes=element)
        work = model_work(facts, kv, Sharding(1), element_bytes=element if on_cpu else None)
        launches = Launches() if on_cpu else launches_of(engine, card)
        for sample in RecordedEngine(engine).samples(plan.rows, plan.lengths):
            launch = launches.of_step(sample.shape)
            host_seconds = sample.host_seconds if launch.beside else 0.0
            alone = not on_cpu and not len(sample.shape.contexts)
            yield TimedStep(name, work, launch.shape, sample.seconds, host_seconds, alone)
        engine.close()
    del engine
    free_memory()


def launches_of(engine: OfflineEngine, card: Card | None) -> Launches:
    """Return how one rank on a GPU launches its steps; the seconds are only told from 0."""
    scheduler, model = engine.config.scheduler, engine.config.model
    limits = RunLimits(
        block_size=engine.config.cache.block_size,
        max_num_seqs=engine.report.max_num_seqs,
        max_model_len=model.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )
    vendor = Vendor.AMD if card is None else card.vendor
    return Launches(captured_buckets(model.facts, limits, vendor, 1), 0.0, 1.0)


def card_of(found: Device) -> Card:
    """Return the catalogue's card that a device's name has, or describe the device as measured."""
    name, device, memory_bytes = found.name, found.torch_device, found.total_memory_bytes()
    known = card_of_device(name)
    if known is not None:
        return known
    ceilings = measured_ceilings(device, torch.float32 if device.type == "cpu" else torch.bfloat16)
    return Card(
        name="cpu" if device.type == "cpu" else name,
        vendor=Vendor.CPU,
        memory_bytes=min(memory_bytes, psutil.virtual_memory().total),
        bytes_per_second=ceilings.bytes_per_second,
        flops={Precision.WIDE: ceilings.flops_per_second},
    )
