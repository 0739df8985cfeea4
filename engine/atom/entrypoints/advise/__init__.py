"""`atom advise`, and `kubectl atom advise`: what to buy for a load, and how to run it.

The command reads files and, for a model of the hub, its config.json; the answer is computed by
`atom.advisor`. This module only declares the flags; torch-free.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from atom.sizing.engine_support import SUPPORTED_DRAFT_METHODS
from atom.sizing.options.drafting import USUAL_DRAFTS_TEXT

OUTPUTS = ("table", "json", "yaml", "html")
QUANTIZATIONS = ("auto", "none", "fp8", "mxfp4")
USUAL_CARDS = "MI300X,MI325X,MI350X,MI355X"
USUAL_DEVICES = 64
USUAL_METRICS_SECONDS = 60.0
USUAL_DISK_GIGABYTES = 3.0


def add_advise_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `advise`."""
    add = parser.add_argument
    add(
        "--model",
        action="append",
        required=True,
        metavar="MODEL",
        help="hf://Org/Name, or a file with its config.json; several are alternatives",
    )
    add(
        "--slo",
        required=True,
        metavar="TARGETS",
        help="such as ttft=2s,itl=50ms@p90; of ttft, itl, tpot and e2el",
    )
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument(
        "--load",
        metavar="LOAD",
        help="such as rate=3/s,in=4000,out=500,prefix=0.6; also prefixes=8 (common beginnings) and "
        "spread=0.2 (lengths differ by so much)",
    )
    load.add_argument(
        "--trace", metavar="FILE", help="a timed trace as atom bench serve replays it"
    )
    load.add_argument(
        "--from-metrics",
        metavar="URL",
        help="a running server, ours or vLLM's, whose counters are read twice; or two saved "
        "readings, BEFORE,AFTER",
    )
    add(
        "--metrics-seconds",
        type=float,
        default=USUAL_METRICS_SECONDS,
        metavar="SECONDS",
        help=f"time between both readings; default: {USUAL_METRICS_SECONDS:g}",
    )
    _add_trace_units(parser)
    add(
        "--cards",
        default=USUAL_CARDS,
        metavar="CARD,…",
        help=f"also parts, such as MI300X:cpx_nps4; default: {USUAL_CARDS}",
    )
    add(
        "--prices",
        metavar="FILE",
        help="YAML or JSON of the price of a device and hour, such as {MI300X: 2.5}",
    )
    add(
        "--max-devices",
        type=_devices,
        default=USUAL_DEVICES,
        metavar="N",
        help=f"most devices in all; default: {USUAL_DEVICES}",
    )
    add(
        "--quant",
        choices=QUANTIZATIONS,
        default="auto",
        help="formats of plain checkpoints: auto tries their own and fp8; default: auto",
    )
    _add_tiers(parser)
    _add_extras(parser)
    add(
        "--disaggregate",
        choices=("auto", "none"),
        default="none",
        help="auto: also compare prefill and decode in separate pods; default: none",
    )
    add(
        "--link-gigabits",
        type=_above_zero,
        default=100.0,
        metavar="GBIT",
        help="per second, from a prefill pod to decode pods; default: 100",
    )
    add(
        "--rates",
        metavar="DIR",
        help="folder of further tables of rates (python -m benchmarks.gpu --rates FILE)",
    )
    add(
        "--learned",
        metavar="FILE",
        help="AtomDeployments that run, whose measured steps correct the prediction: kubectl get "
        "atomdeployments -A -o json > FILE",
    )
    _add_answer(parser)


def _add_answer(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--one-fewer",
        action="store_true",
        help="also predict the load on one device fewer than the chosen form has; a page of "
        "-o html always has it",
    )
    add(
        "--measured",
        type=Path,
        metavar="FILE",
        help="draw the goodput of this file, of atom bench serve --save-result, beside the "
        "predicted one (-o html)",
    )
    add("-o", "--output", choices=OUTPUTS, default="table", help="default: table")


def _add_trace_units(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timed-trace-chunk-hash-size",
        type=_devices,
        default=16,
        metavar="N",
        help="tokens of one of hash_ids; 512 in Mooncake's traces",
    )
    parser.add_argument(
        "--timed-trace-sec-multiplier",
        type=float,
        default=1.0,
        metavar="NUMBER",
        help="seconds of one unit of a trace's times; 0.001 for Mooncake's milliseconds",
    )


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--kv-offloading-size",
        type=_above_zero,
        nargs="+",
        default=[],
        metavar="GIB",
        help="also compare forms whose KV cache goes on in so much of the host's memory, of each "
        "copy of the model; several sizes are alternatives; default: none",
    )
    add(
        "--kv-disk-size",
        type=_above_zero,
        nargs="+",
        default=[],
        metavar="GIB",
        help="also compare forms with so many files behind the host's memory, of each copy; "
        "several sizes are alternatives; default: none",
    )
    add(
        "--disk-gigabytes",
        type=_above_zero,
        default=USUAL_DISK_GIGABYTES,
        metavar="GB",
        help="per second, that a node's disk reads and writes files with; default: "
        f"{USUAL_DISK_GIGABYTES:g}",
    )


def _add_extras(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--method",
        choices=SUPPORTED_DRAFT_METHODS,
        nargs="+",
        default=[],
        help="also compare forms that draft tokens; several methods are alternatives; default: "
        "none",
    )
    add(
        "--num-speculative-tokens",
        type=_devices,
        metavar="N",
        help=f"most drafts of a row and step; default: that of the API, {USUAL_DRAFTS_TEXT}",
    )
    add(
        "--acceptance",
        type=float,
        metavar="SHARE",
        help="chance of a draft whose predecessors were accepted; default: that of the server of "
        "--from-metrics",
    )
    add(
        "--draft-model",
        metavar="MODEL",
        help="of methods eagle3 and draft_model: hf://Org/Name, or a file with its config.json",
    )
    add(
        "--lora",
        metavar="N:RANK",
        help="every form serves N adapters of up to this rank, which requests name equally often",
    )
    add(
        "--images",
        metavar="N:WIDTHxHEIGHT",
        help="every prompt has N images of this size, whose tokens are among the prompt's; their "
        "encoder takes its time",
    )
    add(
        "--max-loras",
        type=_devices,
        nargs="+",
        default=[],
        metavar="N",
        help="adapters on the device, and so in a step; several numbers are alternatives; default: "
        "4, or all if they are fewer",
    )


def _devices(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def run_advise(args: argparse.Namespace) -> Any:
    """Run `atom advise`, whose models of the hub come from the hub."""
    from atom.entrypoints.advise.command import run
    from atom.entrypoints.inspect_model import read_config

    return run(args, lambda name: read_config(name, None))
