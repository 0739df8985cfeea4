"""`atom advise`, and `kubectl atom advise`: what to buy for a load, and how to run it.

The command reads files and, for a model of the hub, its config.json; the answer is computed by
`atom.advisor`. This module only declares the flags; torch-free.
"""

from __future__ import annotations

import argparse
from typing import Any

OUTPUTS = ("table", "json", "yaml", "html")
QUANTIZATIONS = ("auto", "none", "fp8", "mxfp4")
USUAL_CARDS = "MI300X,MI325X,MI350X,MI355X"
USUAL_DEVICES = 64


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
    _add_trace_units(parser)
    add("--cards", default=USUAL_CARDS, metavar="CARD,…", help=f"default: {USUAL_CARDS}")
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
    add(
        "--rates",
        metavar="DIR",
        help="folder of further tables of rates (python -m benchmarks.gpu --rates FILE)",
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


def _devices(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def run_advise(args: argparse.Namespace) -> Any:
    """Run `atom advise`, whose models of the hub come from the hub."""
    from atom.entrypoints.advise.command import run
    from atom.entrypoints.inspect_model import read_config

    return run(args, lambda name: read_config(name, None))
