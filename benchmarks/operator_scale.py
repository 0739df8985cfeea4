"""What the operator costs with many AtomDeployments, and how fast it is then.

    python -m benchmarks.operator_scale [--deployments N] [--autoscaled A] [--seconds S] …

Needs the embedded cluster (`python -m devcluster up`). AMD nodes and engine pods are simulated by
kwok; the operator is a process of its own, for one namespace: once while everything is created, and
anew for what comes after, so that a start with everything there is measured too. Rest is measured
while the resync goes round, which begins a period after a start. Everything made is removed at the
end. The CPU time and memory are the operator's own; engines do not answer, which is the worst case
for it.
Prints a table; the last line is one JSON object. tests/operator/live/test_scale.py judges them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from atom_operator.cluster.api_connection import configuration_of_kubeconfig
from atom_operator.cluster.errors import RefusedError
from benchmarks.fleet.claims_and_routes import route_crds_installed
from benchmarks.fleet.scale_objects import Fleet, crd_installed
from benchmarks.fleet.simulated_nodes import GPUS_PER_NODE, simulated_nodes
from devcluster.api import Api
from devcluster.health import api_of
from devcluster.settings import REPOSITORY, Settings, read_settings

_START_SECONDS = 60.0
_CONVERGE_SECONDS_EACH = 2.0  # a bound, not a target
_LEAST_CONVERGE_SECONDS = 60.0
_END_SECONDS = 20.0
_SPARE_NODES = 4
_SAMPLE = re.compile(r"^atom_operator_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@contextlib.contextmanager
def operator(
    settings: Settings, namespace: str, log: Path, args: argparse.Namespace
) -> Iterator[tuple[psutil.Process, str]]:
    """Yield (process, address of its metrics) of an operator for one namespace."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    variables = {
        **os.environ,
        "KUBECONFIG": str(settings.kubeconfig),
        "PYTHONPATH": f"{REPOSITORY}/operator{os.pathsep}{REPOSITORY}/engine",
        "ATOM_OPERATOR_HEALTH_PORT": "0",
        "ATOM_OPERATOR_METRICS_PORT": str(port),
        "ATOM_OPERATOR_RESYNC_SECONDS": str(args.resync_seconds),
        "ATOM_OPERATOR_LOG_LEVEL": "WARNING",
        "ATOM_OPERATOR_MAX_ROLLOUTS": "0",  # a change that waits for its turn has no end to measure
    }
    profiler = ["-m", "cProfile", "-o", str(args.profile)] if args.profile else []
    command = [sys.executable, *profiler, "-m", "atom_operator", "--namespace", namespace]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
    try:
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}/metrics"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Counters:
    """The operator's own metrics at one moment."""

    def __init__(self, text: str) -> None:
        self.requests: Counter[str] = Counter()
        self.reconciles = 0.0
        self.queue_length = 0.0
        for name, labels, value in _SAMPLE.findall(text):
            if name == "api_requests_total":
                found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                self.requests[f"{found['verb']} {found['kind']}"] += int(float(value))
            elif name == "reconciles_total":
                self.reconciles += float(value)
            elif name == "queue_length":
                self.queue_length = float(value)


async def read_counters(address: str) -> Counters:
    """Waits for an operator that is just starting."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return Counters(await asyncio.to_thread(_fetch, address))
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise SystemExit("the operator does not start; see its log above") from None
            await asyncio.sleep(0.5)


def _fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def watch_idle(
    process: psutil.Process, address: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Return what is used and asked while nothing changes."""
    seconds = float(args.seconds)
    before, cpu = await read_counters(address), _cpu_seconds(process)
    most_bytes, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        most_bytes = max(most_bytes, process.memory_info().rss)
        await asyncio.sleep(min(1.0, seconds - elapsed))
    used, elapsed = _cpu_seconds(process) - cpu, time.monotonic() - started
    after = await read_counters(address)
    requests = after.requests - before.requests
    of_each = 60 * sum(requests.values()) / elapsed / args.deployments
    return {
        "steady_mcpu": round(1000 * used / elapsed),
        "steady_rss_mib": round(most_bytes / 2**20),
        "steady_reconciles_per_s": round((after.reconciles - before.reconciles) / elapsed, 2),
        "steady_requests_per_object_and_minute": round(of_each, 3),
        "steady_requests_per_s": {
            what: round(count / elapsed, 2) for what, count in sorted(requests.items())
        },
    }


def _bound(args: argparse.Namespace) -> float:
    """Return the seconds that pods may take until all are ready, on a slow machine too."""
    return max(_LEAST_CONVERGE_SECONDS, int(args.deployments) * _CONVERGE_SECONDS_EACH)


async def measure_creation(
    process: psutil.Process, address: str, fleet: Fleet, args: argparse.Namespace
) -> dict[str, Any]:
    """Measure from nothing to everything ready."""
    await read_counters(address)
    started, cpu = time.monotonic(), _cpu_seconds(process)
    await fleet.create(args.deployments, args.autoscaled, args.routed)
    await fleet.wait_ready(_bound(args))
    return {
        "deployments": args.deployments,
        "autoscaled": args.autoscaled,
        "routed": args.routed,
        "resync_s": args.resync_seconds,
        "create_to_ready_s": round(time.monotonic() - started, 1),
        "create_to_ready_cpu_s": round(_cpu_seconds(process) - cpu, 1),
    }


async def measure_start(
    process: psutil.Process, address: str, args: argparse.Namespace
) -> dict[str, Any]:
    """A start of the operator where everything is there already, until its queue is empty."""
    started = time.monotonic()
    while True:
        counters = await read_counters(address)
        if counters.reconciles >= args.deployments and not counters.queue_length:
            break
        await asyncio.sleep(0.5)
    return {
        "start_s": round(time.monotonic() - started, 1),
        "start_cpu_s": round(_cpu_seconds(process), 1),
        "start_requests": dict(sorted(counters.requests.items())),
    }


async def measure_changes(
    process: psutil.Process, address: str, fleet: Fleet, args: argparse.Namespace
) -> dict[str, Any]:
    """One change after the other, each of another AtomDeployment."""
    before, cpu = await read_counters(address), _cpu_seconds(process)
    latencies = [await fleet.change(number) for number in range(args.changes)]
    if not latencies:
        return {}
    after = await read_counters(address)
    return {
        "changes": len(latencies),
        "change_p50_s": round(float(np.percentile(latencies, 50)), 3),
        "change_p99_s": round(float(np.percentile(latencies, 99)), 3),
        "change_worst_s": round(max(latencies), 3),
        "cpu_ms_per_change": round(1000 * (_cpu_seconds(process) - cpu) / len(latencies)),
        "reconciles_per_change": round((after.reconciles - before.reconciles) / len(latencies), 1),
    }


async def _settled(address: str, seconds: float) -> None:
    """The queue is empty, and what the last writes announced has arrived."""
    deadline = time.monotonic() + 4 * seconds
    await asyncio.sleep(seconds)
    while time.monotonic() < deadline:
        if not (await read_counters(address)).queue_length:
            return
        await asyncio.sleep(1)


def _print_table(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{name}: {sum(value.values()):g}")
            for what, count in value.items():
                print(f"    {what:<32}{count:>8g}")
        else:
            print(f"{name:<28}{value:>12}")


def _require_alone(api: Api) -> None:
    """An installed operator would reconcile our objects too."""
    path = "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io/name=atom-operator"
    for item in api.get(path)["items"]:
        if item["spec"].get("replicas"):
            name = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            raise SystemExit(f"an operator is installed ({name}): scale it to 0 meanwhile")


async def _run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = read_settings(os.environ)
    try:
        config = await configuration_of_kubeconfig(str(settings.kubeconfig))
    except RefusedError as error:
        raise SystemExit(f"{error}; python -m devcluster up") from error
    api = api_of(settings, config.host)
    _require_alone(api)
    nodes = args.deployments // GPUS_PER_NODE + 1 + _SPARE_NODES
    log = folder / "operator.log"
    routes = route_crds_installed(settings, api) if args.routed else contextlib.nullcontext()
    simulated = simulated_nodes(settings, api, nodes, folder / "kwok.log")
    with crd_installed(api), routes, simulated:
        async with Fleet.in_new_namespace(settings, api, routes=bool(args.routed)) as fleet:
            figures: dict[str, Any] = {}
            try:
                with operator(settings, fleet.namespace, log, args) as first:
                    _report(figures, await measure_creation(*first, fleet, args))
                    await _settled(first[1], args.settle_seconds)
                with operator(settings, fleet.namespace, log, args) as second:
                    resync = time.monotonic() + args.resync_seconds
                    _report(figures, await measure_start(*second, args))
                    await _settled(second[1], args.settle_seconds)
                    _report(figures, await measure_changes(*second, fleet, args))
                    await fleet.wait_complete(_bound(args))  # a rollout is no rest
                    left = max(args.settle_seconds, resync - time.monotonic())
                    await _settled(second[1], left)
                    _report(figures, await watch_idle(*second, args))
            except TimeoutError:
                print((folder / "kwok.log").read_text()[-2000:], file=sys.stderr)
                raise
            finally:
                print(log.read_text()[-1500:], file=sys.stderr)
    return figures


def _report(figures: dict[str, Any], more: dict[str, Any]) -> None:
    """Report what is known so far: a run that ends early has not been in vain."""
    figures.update(more)
    print(more, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deployments", type=int, default=100)
    parser.add_argument("--autoscaled", type=int, default=0, help="so many of them, by an HPA")
    parser.add_argument(
        "--routed", type=int, default=0, help="so many of them with a claim and a route"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of steady state")
    parser.add_argument(
        "--settle-seconds", type=float, default=20.0, help="before changes and rest"
    )
    parser.add_argument("--changes", type=int, default=100, help="one after the other")
    parser.add_argument(
        "--resync-seconds",
        type=float,
        default=300.0,
        help="the operator's; N per 0.3 N seconds is the rate of 1,000 per 300",
    )
    parser.add_argument("--profile", type=Path, help="write the operator's cProfile there")
    args = parser.parse_args(arguments)
    args.changes = min(args.changes, args.deployments)
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_run(args, Path(folder)))
    _print_table(figures)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
