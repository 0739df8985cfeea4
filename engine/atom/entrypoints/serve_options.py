"""The step from the flags of `atom serve` to ServerOptions, for one model or for several.

Refuses flags that contradict each other. Torch-free and light to import.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from atom.entrypoints.flags.engine_args import options_from_args
from atom.entrypoints.http.access_options import access_options
from atom.entrypoints.http.api_key import read_api_keys, read_key_file
from atom.entrypoints.recording.record_options import record_options
from atom.entrypoints.server_args import mcp_hosts, media_rules, tls_files
from atom.entrypoints.server_parts import (
    ChatOptions,
    ClientOptions,
    LimitOptions,
    ListenOptions,
    ObserveOptions,
    PeerOptions,
)
from atom.entrypoints.stored_batches.batch_options import batch_options
from atom.entrypoints.swap.models_file import check_names, check_shares, read_models_file
from atom.entrypoints.swap.shared_device import Sharing, SharingModel
from atom.entrypoints.swap.swap_policy import SwapRule
from atom.entrypoints.tracing.trace_flags import traces_endpoint
from atom.errors import ConfigError

if TYPE_CHECKING:
    from atom.config import EngineOptions
    from atom.entrypoints.server.server_options import ServerOptions
    from atom.entrypoints.swap.models_process import ServedModel

HTTP_PORT = ListenOptions().port


def sharing_of(args: argparse.Namespace) -> Sharing:
    """Return how the models of --models share the device."""
    rule = SwapRule(args.swap_wait_seconds, args.swap_least_awake_seconds, args.swap_drain_seconds)
    return Sharing(args.gpu_memory_utilization, rule)


def models_of(args: argparse.Namespace) -> list[ServedModel]:
    """Return the models of --models, each with the options of its own line. Raises
    `ConfigError`."""
    from atom.entrypoints.swap.models_process import ServedModel

    file = args.models
    if args.model is not None:
        raise ConfigError(f"--models {file} names the models; leave out {args.model}")
    if args.lora_modules_file is not None or args.api_server_count > 1:
        raise ConfigError(
            "--models: its server has one HTTP process, and adapters that its models' options "
            "name; leave out --api-server-count and --lora-modules-file"
        )
    models, shares = [], []
    for entry in read_models_file(file):
        named = {"model": entry.model, "served-model-name": entry.name}
        own = args.parser.parse_further(
            args.line, {**named, "enable-sleep-mode": True, **entry.options}
        )
        options = server_options(own)
        if options.peers.worker_urls:
            raise ConfigError(
                f"--worker-urls: the models of {file} share a device, and a server with workers "
                "has none; leave it out"
            )
        if options.observe.record.file is not None:
            raise ConfigError(
                f"--record: the requests of {file} are of several models; leave it out, and record "
                f"the server of one model"
            )
        if options.engine.sleep.idle_seconds is not None:
            raise ConfigError(
                f"--sleep-idle-seconds: the models of {file} sleep for each other; leave it out"
            )
        share = options.engine.cache.gpu_memory_utilization
        shares.append((entry, share))
        models.append(ServedModel(SharingModel(entry.name, share, entry.pinned), options))
    check_shares(file, shares, args.gpu_memory_utilization)
    check_names(file, [_names_of(each) for each in models])
    return models


def _names_of(model: ServedModel) -> list[str]:
    """Return all names of requests for this model, or for an adapter of it."""
    options = model.options
    adapters = options.engine.lora.modules if options.engine.lora else ()
    names = options.served_names or (model.sharing.name,)
    return [*dict.fromkeys(names), *(module.name for module in adapters)]


def server_options(args: argparse.Namespace) -> ServerOptions:
    """Return the options of one server. Raises `ConfigError` if flags contradict each other."""
    from atom.entrypoints.server.server_options import ServerOptions

    if args.allow_runtime_lora_updating and args.api_server_count > 1:
        raise ConfigError(
            "--allow-runtime-lora-updating: of several HTTP processes one would know of an adapter "
            "and the others would not; leave out --api-server-count, or give --lora-modules"
        )
    if args.enable_sleep_mode and args.api_server_count > 1:
        raise ConfigError(
            "--enable-sleep-mode: of several HTTP processes one would know that the engine sleeps "
            "and the others would not; leave out --api-server-count"
        )
    if args.handover_url is not None and args.api_server_count > 1:
        raise ConfigError(
            "--handover-url: answers are handed over by servers of one HTTP process; leave out "
            "--api-server-count, or the URL"
        )
    if args.worker_urls:
        check_beside_workers(args)
    engine = options_from_args(args)
    if args.lora_modules_file is not None:
        engine = _with_followed_adapters(args, engine)
    return ServerOptions(
        engine=engine,
        listen=_listen_options(args),
        chat=ChatOptions(
            chat_template=args.chat_template,
            template_kwargs=args.default_chat_template_kwargs,
            tool_call_parser=args.tool_call_parser,
            reasoning_parser=args.reasoning_parser,
            media=media_rules(args),
        ),
        limits=LimitOptions(
            request_timeout_seconds=args.request_timeout_seconds or None,
            reader_timeout_seconds=args.reader_timeout_seconds or None,
            body_memory_bytes=args.body_memory_mib * 2**20,
            responses_store_bytes=args.responses_store_mib * 2**20,
            batches=batch_options(args),
        ),
        peers=PeerOptions(
            handover_url=args.handover_url,
            worker_urls=tuple(args.worker_urls),
            prefill_least_tokens=args.prefill_least_tokens,
        ),
        clients=ClientOptions(
            api_keys=read_api_keys(args.api_key, args.api_key_file, os.environ),
            api_key_file=read_key_file(args.api_key_file),
            fairness_header=args.fairness_header,
        ),
        access=access_options(args, os.environ),
        observe=ObserveOptions(
            otlp_traces_endpoint=traces_endpoint(args.otlp_traces_endpoint, os.environ),
            record=record_options(args),
        ),
        drain_seconds=args.drain_seconds,
        startup_budget_seconds=args.startup_budget_seconds or None,
        lora_modules_file=args.lora_modules_file,
        verbose=args.verbose,
        served_names=tuple(args.served_model_name or ()),
    )


def _listen_options(args: argparse.Namespace) -> ListenOptions:
    return ListenOptions(
        host=args.host,
        port=_http_port(args),
        api_servers=args.api_server_count,
        keep_alive_seconds=args.timeout_keep_alive,
        access_log=not args.disable_access_log,
        tls=tls_files(args),
        root_path=args.root_path,
        allowed_origins=tuple(each for given in args.allowed_origins for each in given),
        console=not args.disable_console,
        mcp_hosts=mcp_hosts(args),
        shows_tokenizer=args.enable_tokenizer_info_endpoint,
    )


def check_beside_workers(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for options that a server without an engine does not support."""
    refused = {
        "--handover-url": args.handover_url is not None,
        "--api-server-count": args.api_server_count > 1,
        "--nnodes": args.nnodes > 1,
        "--enable-sleep-mode": args.enable_sleep_mode,
        "--sleep-idle-seconds": args.sleep_idle_seconds is not None,
        "--kv-transfer-config": args.kv_transfer_config is not None,
        "--allow-runtime-lora-updating": args.allow_runtime_lora_updating,
    }
    given = ", ".join(flag for flag, is_given in refused.items() if is_given)
    if given:
        raise ConfigError(
            f"{given}: a server with --worker-urls has no engine; leave it out here, and give "
            f"it to the workers where they need it"
        )


def _with_followed_adapters(args: argparse.Namespace, engine: EngineOptions) -> EngineOptions:
    """Enable adapters that follow --lora-modules-file. Raises `ConfigError` if the options forbid
    it."""
    flag = "--lora-modules-file"
    if engine.lora is None:
        raise ConfigError(f"{flag} needs --enable-lora; add it, or leave the file out")
    if engine.lora.modules or engine.lora.may_load:
        raise ConfigError(
            f"{flag} says which adapters there are; leave out --lora-modules and "
            "--allow-runtime-lora-updating, or the file"
        )
    if args.api_server_count > 1 or engine.nodes.count > 1:
        raise ConfigError(
            f"{flag}: adapters come and go in servers of one HTTP process on one node; leave out "
            "--api-server-count and --nnodes, or give --lora-modules"
        )
    return replace(engine, lora=replace(engine.lora, may_load=True))


def _http_port(args: argparse.Namespace) -> int:
    """Raises `ConfigError` where a line written for upstream gives the engine a port too."""
    given = {port for port in (args.port, args.server_port) if port is not None}
    if len(given) > 1:
        raise ConfigError(
            f"--port {args.port} and --server-port {args.server_port} are both the HTTP port here; "
            "give one of them. (Upstream's --port is the engine's own, and this engine needs none.)"
        )
    return given.pop() if given else HTTP_PORT
