"""Decode steps with adapters beside those of the base: one shape, random weights and adapters.

    python -m benchmarks.engines.lora --shape qwen3-8b --rank 16 --adapters 8 --rows 1 64

Two engines after each other, of the base and of the base with adapters of all its matrices; the
second also without any in use. Rows have the adapters in turn. The last line is one JSON object,
shares of the base's speed in it. Then an adapter's file is loaded while a row streams: seconds, and
the longest gap between two of its tokens. Offline: no server, no tokenizer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.control import LoadLora
from atom.model_engine.front.loras.adapter_digests import adapter_digest
from atom.model_engine.lora_loading import LoraLoading
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.sizing import ModelFacts
from atom.sizing.weights.layer_matrices import projections
from benchmarks.engines.decode_steps import begin_decodes, decode_step_seconds
from benchmarks.engines.offline_engine import OfflineEngine, free_memory
from benchmarks.workloads.shapes import add_model_arguments, model_folder


def write_adapter(folder: Path, facts: ModelFacts, rank: int, seed: int) -> Path:
    """Write a PEFT adapter of all linear layers, with random values."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(seed)
    tensors, names = {}, set()
    for number in range(facts.num_layers):
        layer = facts.layer(number)
        for matrix in projections(layer, facts.hidden_size, facts.experts_block):
            if matrix.copies > 1 or matrix.name.endswith("gate"):
                continue  # experts' and routers' keep theirs
            names.add(matrix.name.rpartition(".")[2])
            module = f"base_model.model.model.layers.{number}.{matrix.name}"
            for side, shape in (("A", (rank, matrix.columns)), ("B", (matrix.rows, rank))):
                values = torch.randn(shape, generator=draw) * 0.02
                tensors[f"{module}.lora_{side}.weight"] = values.bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(names)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def decode_ms(engine: OfflineEngine, rows: int, adapters: int) -> float:
    """Milliseconds per step of `rows` decodes, which have `adapters` adapters in turn; none for
    0."""
    sampling = SamplingParams(temperature=0.6, ignore_eos=True)
    begin_decodes(engine, rows, sampling, [request_of(n) for n in range(1, adapters + 1)])
    return decode_step_seconds(engine) * 1e3


def request_of(number: int) -> LoRARequest:
    return LoRARequest(f"adapter-{number}", number)


def load_beside_a_stream(engine: OfflineEngine, folder: Path, number: int) -> dict[str, float]:
    """Read an adapter's file and use it, while a row of the base streams."""
    loading = LoraLoading(engine.executor, set(), adapter_digest)
    told: list[str | None] = []
    draw = np.random.default_rng(2)
    params = SamplingParams(temperature=0.0, max_tokens=600, ignore_eos=True)
    engine.add(engine.random_prompt(100, draw), params)
    for _ in range(50):
        engine.step()
    gaps, last = [], time.perf_counter()
    begun = last
    loading.load(LoadLora(number, str(folder)), told.append)
    loaded = 0.0
    while engine.has_work():
        if loading.has_work:
            loading.turn(engine.scheduler, engine.pipeline.open_requests())
        if told and not loaded:
            loaded = time.perf_counter() - begun
        result = engine.step()
        if result is not None and len(result.token_ids):
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()
    loading.close()
    assert told == [None], told
    return {"load_s": loaded, "longest_gap_ms": max(gaps) * 1e3}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    options: dict[str, Any] = {
        "load_dummy": True,
        "max_model_len": 2048,
        "max_num_seqs": max(args.rows),
        "enable_prefix_caching": False,
    }
    path = model_folder(args, folder)
    base = OfflineEngine(str(path), **options)
    facts = base.config.model.facts
    decode_ms(base, max(args.rows), 0)  # warm
    of_base = {rows: decode_ms(base, rows, 0) for rows in args.rows}
    base.close()
    del base
    free_memory()
    paths = [write_adapter(folder / f"a{n}", facts, args.rank, n) for n in range(args.adapters + 1)]
    modules = tuple(
        LoraModule(name=f"adapter-{n}", path=str(p)) for n, p in enumerate(paths[:-1], 1)
    )
    lora = LoraConfig(
        modules=modules,
        max_loras=args.adapters,
        max_rank=args.rank,
        max_cpu_loras=args.adapters + 1,
        may_load=True,
    )
    engine = OfflineEngine(str(path), lora=lora, **options)
    decode_ms(engine, max(args.rows), args.adapters)  # warm
    rows = {}
    for count in args.rows:
        without = decode_ms(engine, count, 0)
        with_adapters = decode_ms(engine, count, min(args.adapters, count))
        rows[count] = {
            "base_ms": of_base[count],
            "unused_ms": without,
            "adapters_ms": with_adapters,
            "unused_share": of_base[count] / without,
            "adapters_share": of_base[count] / with_adapters,
        }
        print(count, {name: round(value, 3) for name, value in rows[count].items()}, flush=True)
    result = {"rows": rows, "start_s": engine.start_seconds}
    result["load"] = load_beside_a_stream(engine, paths[-1], args.adapters + 1)
    engine.close()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(args, Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
