"""Takes the facts that the demo model tells from the code of this checkout.

Reads the engine's and the operator's public tables; knows no texts and no model.
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from atom.entrypoints.cli import build_parser
from atom.entrypoints.serve_options import HTTP_PORT
from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.execution import BACKENDS
from atom.sizing.options.flag_values import KV_CACHE_DTYPES
from atom.sizing.options.parallelism import HealthOptions
from atom.sizing.options.scheduling import SchedulerOptions
from atom_operator.api.v1alpha1.accelerator import AcceleratorSpec
from atom_operator.api.v1alpha1.lora import SOURCE_PATTERN
from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.constants import GROUP, SHORT_NAME, VERSION, ConditionType
from tools.demo_model.facts import Fact

ROOT = Path(__file__).resolve().parents[2]


def facts_of_code() -> dict[str, Fact]:
    """Every fact by its name."""
    cache, scheduler = CacheOptions(), SchedulerOptions()
    # Those that run a model; `completion` only prints what completes their flags in a shell.
    commands = [name for name in _subparsers(build_parser()) if name != "completion"]
    return {
        "architectures": _some(a.removesuffix("ForCausalLM") for a in ARCHITECTURES),
        "backends": _some(name for name in BACKENDS if name != "auto"),
        "block_size": _one(cache.block_size),
        "gpu_memory_utilization": _one(cache.gpu_memory_utilization),
        "kv_dtypes": _all(name for name in KV_CACHE_DTYPES if name != "auto"),
        "max_num_batched_tokens": _one(scheduler.max_num_batched_tokens),
        "max_num_seqs": _one(scheduler.max_num_seqs),
        "max_waiting_requests": _one(scheduler.max_waiting_requests),
        "stall_seconds": _one(f"{HealthOptions().stall_seconds:g}"),
        "http_port": _one(HTTP_PORT),
        "subcommands": _some(commands),
        "api_version": _one(f"{GROUP}/{VERSION}"),
        "short_name": _one(SHORT_NAME),
        "model_sources": _all(dict.fromkeys(re.findall(r"\b([a-z]+://)", SOURCE_PATTERN))),
        "accelerators": _all(get_args(AcceleratorSpec.model_fields["type"].annotation)),
        "rollout_strategies": _all(_choices(RolloutSpec, "strategy")),
        "conditions": _some(str(kind) for kind in ConditionType),
        "columns": _some(_columns()),
    }


def _one(value: object) -> Fact:
    return Fact((str(value),))


def _all(values: Iterable[str]) -> Fact:
    return Fact(tuple(values))


def _some(values: Iterable[str]) -> Fact:
    return Fact(tuple(values), complete=False)


def _choices(model: Any, field: str) -> tuple[str, ...]:
    """The values of an optional field of literals."""
    literal, *_ = get_args(model.model_fields[field].annotation)
    return get_args(literal)


def _columns() -> list[str]:
    """The columns of `kubectl get`, as the generated CustomResourceDefinition has them."""
    crd = ROOT / "crds" / "serving.atom.dev_atomdeployments.yaml"
    columns = crd.read_text(encoding="utf-8").partition("additionalPrinterColumns:")[2]
    shown = columns.partition("subresources:")[0].split("- name: ")[1:]
    return [row.split()[0] for row in shown if "priority:" not in row]


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)
