"""The self-check of a start on this machine: which operations it holds, how long it takes.

    python -m benchmarks.engines.self_check --shape qwen3-8b qwen3-30b-a3b [--layers 4]

Each checkpoint has random weights and few layers. A line for each start; ends with status 1 if a
kernel differs from the reference.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from atom.errors import ConfigError
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads.checkpoints import WRITTEN_SHAPES, write_checkpoint


def checked_start(shape: str, layers: int | None, options: dict[str, Any]) -> bool:
    """Start an engine with the check; returns whether its kernels agree with the reference."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(shape, Path(folder), layers)
        started = time.perf_counter()
        try:
            with closing(OfflineEngine(str(model), self_check="on", **options)):
                print(f"{shape}: started in {time.perf_counter() - started:.1f} s", flush=True)
        except ConfigError as error:
            print(f"{shape}: {error}", flush=True)
            return False
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description="The self-check of a start.")
    parser.add_argument("--shape", nargs="+", choices=WRITTEN_SHAPES, default=["qwen3-8b"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--quantization", help="quantise the weights when they load")
    args = parser.parse_args()
    logging.basicConfig(level="INFO", stream=sys.stdout, format="  %(message)s")
    options = {"device": args.device, "kv_cache_dtype": args.kv_cache_dtype, "max_model_len": 4096}
    if args.quantization:
        options["quantization"] = args.quantization
    agreed = [checked_start(shape, args.layers, options) for shape in args.shape]
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
