"""What a server costs that has nothing to do: CPU time and wake-ups of all its processes.

    python -m benchmarks.idle [--seconds N] [--data-parallel-size N] [--api-server-count M]

Starts a server on a tiny random model, lets it answer once, and then looks on (Linux: /proc).
Prints a table per process; the last line is one JSON object. `core_share` is what must stay under
one hundredth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines.server_process import started_server
from benchmarks.workloads.shapes import write_shape

_OPTIONS = {
    "load_dummy": True,
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "num_kv_blocks": 200,
}
SETTLE_SECONDS = 2.0  # what the answered request leaves behind is not idling


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts what one process used since its start. wake_ups: how often a thread of it slept and
    was woken."""

    cpu_seconds: float
    wake_ups: int


def usage_of(process_id: int) -> Usage:
    nanoseconds = wake_ups = 0
    for task in Path(f"/proc/{process_id}/task").iterdir():
        nanoseconds += int((task / "schedstat").read_text().split()[0])
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                wake_ups += int(line.split()[1])
    return Usage(nanoseconds / 1e9, wake_ups)


def processes_of(root: int) -> list[int]:
    """The process and all below it."""
    found, unseen = [], [root]
    while unseen:
        process_id = unseen.pop()
        found.append(process_id)
        for task in Path(f"/proc/{process_id}/task").iterdir():
            unseen += map(int, (task / "children").read_text().split())
    return found


def _answer_once(address: str) -> None:
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True}).encode()
    request = urllib.request.Request(
        f"{address}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 8


def kind_of(process_id: int, root: int) -> str:
    words = Path(f"/proc/{process_id}/cmdline").read_text().split("\0")
    kinds = {"atom.model_engine.core_main": "engine", "atom.entrypoints.server.api_process": "API"}
    found = [kind for module, kind in kinds.items() if module in words]
    return "server" if process_id == root else found[0] if found else "other"


def measure(seconds: float, flags: Sequence[str] = ()) -> dict[str, Usage]:
    """Return what each process used while it was watched."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = write_shape("tiny", Path(folder_name))
        with started_server(
            folder, _OPTIONS, *flags, environment={"OMP_NUM_THREADS": "1"}
        ) as server:
            root = server.process_id
            _answer_once(server.address)
            time.sleep(SETTLE_SECONDS)
            before = {process_id: usage_of(process_id) for process_id in processes_of(root)}
            time.sleep(seconds)
            used = {}
            for process_id, start in before.items():
                end = usage_of(process_id)
                used[f"{kind_of(process_id, root)} ({process_id})"] = Usage(
                    end.cpu_seconds - start.cpu_seconds, end.wake_ups - start.wake_ups
                )
            return used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to look on")
    parser.add_argument("--data-parallel-size", type=int, default=1, help="engine processes")
    parser.add_argument("--api-server-count", type=int, default=1, help="HTTP processes")
    args = parser.parse_args()
    seconds = args.seconds
    flags = ["--data-parallel-size", str(args.data_parallel_size)]
    flags += ["--api-server-count", str(args.api_server_count)]
    used = measure(seconds, flags)
    print(f"{'process':<20}{'CPU ms':>10}{'core share':>12}{'wake-ups/s':>12}")
    for name, usage in used.items():
        share = usage.cpu_seconds / seconds
        print(
            f"{name:<20}{usage.cpu_seconds * 1e3:>10.1f}{share:>12.2%}"
            f"{usage.wake_ups / seconds:>12.1f}"
        )
    summary = {
        "core_share": sum(usage.cpu_seconds for usage in used.values()) / seconds,
        "wake_ups_per_s": sum(usage.wake_ups for usage in used.values()) / seconds,
        "seconds": seconds,
        "processes": len(used),
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
