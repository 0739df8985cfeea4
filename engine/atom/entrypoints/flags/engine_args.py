"""Command-line flags of the engine: argparse → EngineOptions → Config.

Torch-free, so that the operator's tests can parse the arguments it renders. Both spellings of a
flag work: --max-model-len and --max_model_len.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atom.config import KV_CACHE_DTYPES, Config, EngineOptions, build_config
from atom.entrypoints.flags.client_weights import read_client_weights
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.flags.flag_values import (
    DTYPES,
    context_length,
    dtype,
    is_dummy,
    json_object,
    kv_cache_dtype,
    token_count,
)
from atom.entrypoints.flags.upstream_switches import (
    EAGER_VARIABLE,
    PROFILER_VARIABLE,
    REPRODUCIBLE_VARIABLE,
    is_switched_on,
    warn_of_switches,
)
from atom.eplb_config import eplb_config
from atom.errors import ConfigError
from atom.kv_events_config import kv_events_config
from atom.lora_config import DEFAULT_RANK, LoraConfig, LoraFlags, lora_config
from atom.sizing.engine_support import SUPPORTED_DRAFT_METHODS
from atom.sizing.quantization.online import ONLINE_NAMES
from atom.speculative_config import speculative_config

logger = logging.getLogger(__name__)

DEVICES = ("auto", "cpu", "cuda", "rocm")
BACKENDS = ("auto", "triton", "native_cpu", "torch_cpu", "torch_ref")
RUNNERS = ("auto", "generate", "pooling")
CONVERSIONS = ("auto", "none", "embed", "classify")
POLICIES = ("mixed", "prefill_first")
ROUTING_POLICIES = ("least_tokens", "round_robin")
EXPERT_TRANSPORTS = ("torch", "mori")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag of EngineOptions, with its default."""
    if isinstance(parser, FlagParser):
        parser.takes_model = True
    _add_model_flags(parser.add_argument_group("model"))
    _add_scheduling_flags(parser.add_argument_group("scheduling and KV cache"))
    _add_speculation_flags(parser.add_argument_group("speculation"))
    _add_lora_flags(parser.add_argument_group("LoRA adapters"))
    _add_device_flags(parser.add_argument_group("device"))
    _add_parallel_flags(parser.add_argument_group("parallelism"))


def _default(name: str) -> Any:
    return next(field.default for field in dataclasses.fields(EngineOptions) if field.name == name)


def _add_model_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--model",
        default=None,
        help="checkpoint folder, GGUF file, hub id such as Qwen/Qwen3-0.6B, or "
        "s3://bucket/prefix; also without the flag's name",
    )
    add(
        "--config",
        default=None,
        metavar="FILE",
        help="YAML file with flags, as flag: value; flags of the command line take precedence",
    )
    add("--revision", default=None, help="branch, tag or commit of a hub id")
    add(
        "--download-dir",
        default=None,
        metavar="FOLDER",
        help="where models of the hub are kept (default: the hub's cache, $HF_HUB_CACHE)",
    )
    add(
        "--tokenizer",
        default=None,
        metavar="FOLDER",
        help="folder or hub id of another tokenizer, with its chat template (default: the model's)",
    )
    add(
        "--generation-config",
        default=_default("generation_config"),
        metavar="{auto,vllm,FOLDER}",
        help="whose generation_config.json gives sampling defaults: auto, the model's; vllm, none; "
        "or a folder's",
    )
    add(
        "--override-generation-config",
        type=json_object,
        default=None,
        metavar="JSON",
        help='sampling defaults over those, such as {"temperature": 0.6, "top_p": 0.95}',
    )
    add(
        "--served-model-name",
        nargs="+",
        default=None,
        metavar="NAME",
        help="names in the API; answers have the first (default: that of --model)",
    )
    add(
        "--runner",
        choices=RUNNERS,
        default=_default("runner"),
        help="generate: tokens; pooling: embeddings or scores; auto: pooling if the model has "
        "sentence-transformers' modules.json",
    )
    add(
        "--convert",
        choices=CONVERSIONS,
        default=_default("convert"),
        help="of a pooling model: embed, the last token's hidden state; classify, the share of yes "
        "between yes and no (rerankers); auto: as the model's files say, else embed",
    )
    add(
        "--dtype",
        type=dtype,
        default=_default("dtype"),
        metavar=f"{{{','.join(DTYPES)}}}",
        help="type of weights and activations",
    )
    add(
        "--quantization",
        default=None,
        metavar="METHOD",
        help="store a plain checkpoint's matrices so as they are loaded: fp8 in blocks of 128 x "
        "128, int8 by output, mxfp4 in groups of 32; or the method of a quantised checkpoint "
        "(default: as the checkpoint has them)",
    )
    add(
        "--online-quant-config",
        type=json_object,
        default=None,
        metavar="JSON",
        help="the same by layer: global_quant_config names the format of all matrices, "
        "layer_quant_config others by glob patterns of module names, exclude_layer what stays "
        f"plain; formats: {', '.join(ONLINE_NAMES)}",
    )
    add(
        "--max-model-len",
        type=context_length,
        default=None,
        metavar="N",
        help="most tokens of prompt and answer together, such as 32768 or 32k (default: auto, the "
        "model's own)",
    )
    add(
        "--load-dummy",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="random weights, for benchmarks: needs config.json only",
    )
    add(
        "--load-format",
        dest="load_dummy",
        type=is_dummy,
        default=argparse.SUPPRESS,
        metavar="{auto,dummy}",
        help="dummy is --load-dummy, auto reads safetensors or a GGUF file",
    )
    add("--seed", type=int, default=_default("seed"), help="seed of requests that bring none")


def _add_scheduling_flags(group: Any) -> None:
    add = group.add_argument

    def add_number(name: str, help_text: str, kind: Callable[[str], float] = int) -> None:
        flag = "--" + name.replace("_", "-")
        metavar = "NUMBER" if kind is float else "N"
        add(flag, type=kind, default=_default(name), metavar=metavar, help=help_text)

    add_number("max_num_seqs", "most requests that generate at once")
    add_number(
        "max_num_batched_tokens", "most tokens per step, prompts and answers together", token_count
    )
    add_number("long_prefill_token_threshold", "most prompt tokens of one request per step; 0: any")
    add(
        "--scheduling-policy",
        choices=POLICIES,
        default=_default("scheduling_policy"),
        help="mixed: chunked prompts together with answers; prefill_first: prompts before answers",
    )
    add_number("scheduler_delay_factor", "prefill_first: wait to batch prompts; 0 never", float)
    add_number("max_step_seconds", "mixed: of a step with prompts and answers; 0: no bound", float)
    add_number(
        "max_waiting_requests", "most requests without a token yet; more get HTTP 429; 0: no bound"
    )
    add(
        "--fairness",
        choices=("clients", "off"),
        default=_default("fairness"),
        help="clients: waiting clients are served by equal shares of tokens; off: first come, "
        "first served",
    )
    add(
        "--fairness-weights",
        type=Path,
        default=None,
        metavar="FILE",
        help='JSON file of clients that get more or less than others, such as {"header:team-a": 4}',
    )
    add_number("block_size", "tokens per KV block")
    add("--num-kv-blocks", type=int, default=None, help="KV blocks (default: what memory allows)")
    add_number("gpu_memory_utilization", "share of the device's memory to use", float)
    add(
        "--kv-cache-dtype",
        type=kv_cache_dtype,
        default=_default("kv_cache_dtype"),
        metavar=f"{{{','.join(KV_CACHE_DTYPES)}}}",
        help="type of the KV cache; auto is the model's",
    )
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=_default("enable_prefix_caching"),
        help="reuse the KV cache of equal prompt beginnings",
    )
    add(
        "--kv-events-config",
        default=None,
        metavar="JSON",
        help="report the cached blocks to routers over ZMQ, such as "
        '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": '
        '"tcp://*:5558"}, without an endpoint for this machine alone; also topic, '
        "buffer_steps, hwm and max_queue_size",
    )


def _add_speculation_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--speculative-config",
        default=None,
        metavar="JSON",
        help='propose tokens and verify them together, such as {"method": "ngram", '
        '"num_speculative_tokens": 5}; also model, prompt_lookup_min, prompt_lookup_max and '
        "adaptive. "
        "Changes no token",
    )
    add(
        "--method",
        default=None,
        metavar=f"{{{','.join(SUPPORTED_DRAFT_METHODS)}}}",
        help="who drafts: ngram, the text so far; mtp, the checkpoint's own draft layer; eagle3, a "
        "draft model",
    )
    add("--draft-model", default=None, help="folder or hub id of what drafts for method eagle3")
    add("--num-speculative-tokens", type=int, default=None, help="most drafts of a row and step")


def _add_lora_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--enable-lora",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="serve LoRA adapters of the model: a request chooses one by its model",
    )
    add(
        "--lora-modules",
        nargs="+",
        default=None,
        metavar="NAME=PATH",
        help="adapters by name, each a folder that PEFT has written or a hub id; also as JSON, "
        'such as {"name": "sql", "path": "/adapters/sql"}',
    )
    add(
        "--max-loras", type=int, default=None, metavar="N",
        help="most adapters on the device, and so in a step (default: 1)",
    )  # fmt: skip
    add(
        "--max-lora-rank", type=int, default=None, metavar="N",
        help=f"highest rank of an adapter's matrices (default: {DEFAULT_RANK})",
    )  # fmt: skip
    add(
        "--max-cpu-loras", type=int, default=None, metavar="N",
        help="most adapters in the host's memory (default: --max-loras, or as many as "
        "--lora-modules names)",
    )  # fmt: skip
    add(
        "--lora-experts",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="make room for adapters of experts' matrices too, of a model that has experts",
    )
    add(
        "--allow-runtime-lora-updating",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let POST /v1/load_lora_adapter and /v1/unload_lora_adapter change the adapters",
    )


def _add_device_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--enable-sleep-mode",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let POST /sleep give the device's memory back until POST /wake_up",
    )
    add(
        "--sleep-queue",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="hold requests that come while the server sleeps; else they are refused with 503",
    )
    add(
        "--sleep-idle-seconds",
        type=float,
        default=None,
        metavar="SECONDS",
        help="sleep at level 1 after so long without a request, until one comes; it is held and "
        "wakes the server up (default: never)",
    )
    add("--device", choices=DEVICES, default=_default("device"), help="device of the model")
    add(
        "--backend", choices=BACKENDS, default=_default("backend"), help="implementation of the ops"
    )
    add(
        "--op-backend",
        action="append",
        default=[],
        metavar="OP=NAME",
        help="another implementation for one op; may be given several times",
    )
    add(
        "--reproducible",
        action=argparse.BooleanOptionalAction,
        default=is_switched_on(os.environ, REPRODUCIBLE_VARIABLE),
        help="the same tokens and log-probabilities whatever else is served: kernels that compute "
        f"each row apart; what cannot hold is refused (also by ${REPRODUCIBLE_VARIABLE}=1)",
    )
    add(
        "--torch-profiler-dir",
        default=os.environ.get(PROFILER_VARIABLE),
        help=f"folder for traces of the running engine (default: ${PROFILER_VARIABLE}, else none)",
    )
    add(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        default=is_switched_on(os.environ, EAGER_VARIABLE),
        help=f"never record steps as device graphs (also by ${EAGER_VARIABLE}=1)",
    )


def _add_parallel_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--tensor-parallel-size", "-tp", type=int, default=1,
        help="devices that share a copy of the model, each with a part of it",
    )  # fmt: skip
    add(
        "--data-parallel-size",
        "-dp",
        type=int,
        default=1,
        help="ranks: engine processes with a copy of the model and a KV cache each",
    )
    add(
        "--data-parallel-routing",
        choices=ROUTING_POLICIES,
        default=_default("data_parallel_routing"),
        help="which rank serves a request: the one with the fewest open tokens, or the next",
    )
    add(
        "--enable-expert-parallel",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="ranks have whole experts each, instead of a part of each: those of "
        "--tensor-parallel-size, or with --enable-dp-attention those of --data-parallel-size",
    )
    add(
        "--enable-dp-attention",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="ranks of --data-parallel-size share one model's experts, and have all else each",
    )
    add(
        "--expert-exchange",
        choices=EXPERT_TRANSPORTS,
        default=_default("expert_exchange"),
        help="how the tokens of small steps go to their experts and back: torch's collectives, or "
        "AMD's mori if it is installed",
    )
    add(
        "--enable-eplb",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="move experts between these ranks, so that each has as many tokens",
    )
    add(
        "--eplb-config",
        default=None,
        metavar="JSON",
        help="when, by what, and copies: "
        '{"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0}',
    )
    add(
        "--nnodes", type=int, default=_default("nnodes"),
        help="machines that share a copy of the model, or its experts, with as many devices each",
    )  # fmt: skip
    add(
        "--node-rank", type=int, default=_default("node_rank"),
        help="which of them this is; 0 serves, the others compute for it",
    )  # fmt: skip
    add(
        "--master-addr", default=_default("master_addr"),
        help="name or address of the first machine, by which the others reach it",
    )  # fmt: skip
    add(
        "--master-port", type=int, default=_default("master_port"),
        help="port on which it waits for them",
    )  # fmt: skip
    add(
        "--stall-seconds",
        type=float,
        default=_default("stall_seconds"),
        help="/health and /live fail once a rank has made no progress for so long",
    )


def options_from_args(args: argparse.Namespace) -> EngineOptions:
    """Raises `ConfigError` on a malformed --op-backend, or speculation that there is not. Warns of
    variables without effect."""
    warn_of_switches(os.environ)
    for flag in args.unneeded_flags:
        logger.warning("the flag %s has no effect: %s", flag.flag, flag.note)
    names = [field.name for field in dataclasses.fields(EngineOptions)]
    derived = (
        "op_backends",
        "speculative",
        "balance",
        "served_model_name",
        "client_weights",
        "kv_events",
        "lora",
    )
    values = {name: getattr(args, name) for name in names if name not in derived}
    return EngineOptions(
        **values,
        served_model_name=args.served_model_name[0] if args.served_model_name else None,
        op_backends=_op_backends(args.op_backend),
        client_weights=read_client_weights(args.fairness_weights),
        kv_events=kv_events_config(args.kv_events_config),
        lora=_lora_config(args),
        balance=eplb_config(args.enable_eplb, args.eplb_config),
        speculative=speculative_config(
            args.speculative_config, args.method, args.num_speculative_tokens, args.draft_model
        ),
    )


def _lora_config(args: argparse.Namespace) -> LoraConfig | None:
    return lora_config(
        args.enable_lora,
        LoraFlags(
            modules=args.lora_modules,
            max_loras=args.max_loras,
            max_rank=args.max_lora_rank,
            max_cpu_loras=args.max_cpu_loras,
            may_load=args.allow_runtime_lora_updating,
            experts=args.lora_experts,
            model_names=args.served_model_name or (args.model.rstrip("/"),),
        ),
    )


def config_from_args(args: argparse.Namespace) -> Config:
    """Open the model. Raises `ConfigError` or `ModelError`."""
    return build_config(options_from_args(args))


def _op_backends(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        op, equals, name = pair.partition("=")
        if not (op and equals and name):
            raise ConfigError(f"--op-backend {pair}: must be OP=NAME, such as sample=torch_ref")
        found[op] = name
    return found
