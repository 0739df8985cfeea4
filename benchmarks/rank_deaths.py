"""How long a group of ranks outlives one of its processes: until the server knows why, and until
nothing of it is left.

    python -m benchmarks.rank_deaths [--kills 10] [--ranks 2] [--device cpu|auto]

Ranks of each kind, on the CPU over gloo or on a GPU each, are killed while they compute. The server
does nothing about it: the group ends by itself. Prints a line for each kind; the last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from atom.config import EngineOptions, build_config
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import CoreEvent, CoreFailed
from atom.model_engine.wire.engine_protocol import EngineReport, StreamBody
from atom.sampling_params import SamplingParams

_KINDS = ("shared experts", "a divided copy")
_MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 384, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "max_position_embeddings": 8192,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4, 8))
    parser.add_argument("--device", choices=("cpu", "auto"), default="cpu")
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MIXTURE))
        for kind in _KINDS:
            options = _options(folder, kind, args)
            times = [_kill(options, seed) for seed in range(args.kills)]
            told, gone = (sorted(column) for column in zip(*times, strict=True))
            found[kind] = {"told_seconds": told, "gone_seconds": gone}
            print(f"{kind}: told after {told[-1]:.2f} s at most, gone after {gone[-1]:.2f} s")
    print(json.dumps(found))
    return 0


def _options(model: str, kind: str, args: argparse.Namespace) -> EngineOptions:
    ranks: dict[str, Any] = {"tensor_parallel_size": args.ranks}
    if kind != "a divided copy":
        ranks = {
            "data_parallel_size": args.ranks,
            "enable_dp_attention": True,
            "enable_expert_parallel": True,
        }
    return EngineOptions.of(
        model=model,
        device=args.device,
        load_dummy=True,
        num_kv_blocks=600,
        max_num_seqs=4,
        **ranks,
    )


def _kill(options: EngineOptions, seed: int) -> tuple[float, float]:
    """Seconds from the death of a rank to CoreFailed, and to the end of the last process."""
    draw, events = random.Random(seed), queue.SimpleQueue[CoreEvent]()
    manager = CoreManager(build_config(options), events.put)
    try:
        manager.start()
        _next(events, EngineReport)
        manager.add_requests([_request(number) for number in range(1, 5)])
        for _ in range(draw.randint(1, 100)):
            _next(events, StreamBody)
        ranks = [process for pid in manager.process_ids for process in _family(pid)]
        victim = draw.choice(ranks)
        died = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        _next(events, CoreFailed)
        told = time.monotonic() - died
        psutil.wait_procs(ranks)
        return told, time.monotonic() - died
    finally:
        manager.shutdown()


def _family(pid: int) -> list[psutil.Process]:
    core = psutil.Process(pid)
    return [core, *core.children(recursive=True)]


def _request(number: int) -> Request:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=8000)
    return Request(
        id=number, prompt_token_ids=[5, 6, number], params=params, max_total_tokens=8003,
        arrive_time=0.0,
    )  # fmt: skip


def _next(events: queue.SimpleQueue[CoreEvent], kind: type[Any]) -> None:
    while not isinstance(event := events.get(), kind):
        assert not isinstance(event, CoreFailed), event.message


if __name__ == "__main__":
    sys.exit(main())
