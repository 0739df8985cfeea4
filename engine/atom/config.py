"""Engine configuration: options as given → one frozen `Config` that every part reads.

`EngineOptions` has a field per command-line flag; `build_config` opens the checkpoint, resolves
every "auto" that needs no device, and checks the whole before a process starts. Torch-free. What
start-up finds out later (KV blocks, device) is reported in `EngineReport`, never written back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from atom.checkpoint import (
    GENERATION_FILE,
    Checkpoint,
    find_checkpoint,
    open_checkpoint,
    read_json,
)
from atom.config_values import (
    GENERATION_FIELDS,
    KV_CACHE_DTYPES,
    LEAST_STALL_SECONDS,
    CacheConfig,
    Config,
    EngineOptions,
    ExpertTransport,
    GenerationDefaults,
    ModelConfig,
    NodePlace,
    ParallelConfig,
    RoutingPolicy,
    SchedulerConfig,
    SchedulingPolicy,
    SleepConfig,
)
from atom.end_tokens import end_token_ids
from atom.errors import ConfigError, ModelError, RequestError
from atom.lora_checkpoint import adapters_to_serve
from atom.pooling_config import as_causal_model, pooling_config
from atom.sampling_params import SamplingParams
from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.drafting import (
    eagle3_problems,
    mtp_problems,
    spread_problems,
)
from atom.sizing.engine_support import (
    kv_cache_problems,
    unsupported,
    unsupported_architecture,
)
from atom.sizing.errors import ModelFactsError, UnknownFamilyError
from atom.sizing.model_facts import ModelFacts
from atom.sizing.parallelism import (
    ExpertOptions,
    expert_parallel_problem,
    tensor_parallel_problems,
    valid_tensor_parallel_sizes,
)
from atom.sizing.quantization.online import ONLINE, online_scheme, read_online_config
from atom.sizing.reproducibility import reproducible_problems
from atom.sizing.text_part import text_part

__all__ = [
    "KV_CACHE_DTYPES",
    "LEAST_STALL_SECONDS",
    "CacheConfig",
    "Config",
    "EngineOptions",
    "ExpertTransport",
    "GenerationDefaults",
    "ModelConfig",
    "NodePlace",
    "ParallelConfig",
    "RoutingPolicy",
    "SchedulerConfig",
    "SchedulingPolicy",
    "build_config",
    "check_kv_cache_dtype",
]

logger = logging.getLogger(__name__)


def build_config(options: EngineOptions, *, weights: bool = True) -> Config:
    """Open the model and check the options together. weights: whether they are downloaded, where
    the model is. Raises `ConfigError` or `ModelError`."""
    _check_options(options)
    path = find_checkpoint(options.model, options.revision, weights=weights)
    model = _model_config(options, open_checkpoint(path))
    _check_ranks(model.facts, options)
    _refuse("kv_cache_dtype", kv_cache_problems(model.facts, options.kv_cache_dtype))
    if options.reproducible:
        _refuse("reproducible", reproducible_problems(model.facts, options.beside_reproducible()))
    return Config(
        model=model,
        cache=_cache_config(options),
        scheduler=SchedulerConfig(
            policy=options.scheduling_policy,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            delay_factor=options.scheduler_delay_factor,
            max_step_seconds=options.max_step_seconds,
            max_waiting_requests=options.max_waiting_requests,
            fairness=options.fairness,
            client_weights=options.client_weights,
            num_speculative_tokens=options.speculative.num_tokens if options.speculative else 0,
            max_loras=options.lora.max_loras if options.lora else 0,
        ),
        parallel=ParallelConfig(
            tensor_parallel_size=options.tensor_parallel_size,
            data_parallel_size=options.data_parallel_size,
            data_parallel_routing=options.data_parallel_routing,
            stall_seconds=options.stall_seconds,
            expert_parallel=options.enable_expert_parallel,
            expert_exchange=options.expert_exchange,
            balance=options.balance,
            nodes=NodePlace.of(options),
        ),
        device=options.device,
        backend=options.backend,
        op_backends=dict(options.op_backends),
        reproducible=options.reproducible,
        # A prompt that is pooled has no decode steps, and graphs of prompts draw tokens.
        enforce_eager=options.enforce_eager or model.pooling is not None,
        seed=options.seed,
        torch_profiler_dir=options.torch_profiler_dir,
        speculative=options.speculative,
        draft=_proposing_model(options, model),
        lora=adapters_to_serve(
            options.lora,
            has_experts=any(alike.layer.mlp.experts for alike in model.facts.layer_counts),
            shares_experts=options.enable_dp_attention,
            nodes=options.nnodes,
        ),
        sleep=SleepConfig.of(options),
    )


def _check_options(options: EngineOptions) -> None:
    _at_least("max_num_seqs", options.max_num_seqs, 1)
    _at_least("max_num_batched_tokens", options.max_num_batched_tokens, options.max_num_seqs)
    _at_least("long_prefill_token_threshold", options.long_prefill_token_threshold, 0)
    for name in ("scheduler_delay_factor", "max_step_seconds", "max_waiting_requests"):
        _at_least(name, getattr(options, name), 0)
    if options.num_kv_blocks is not None:
        _at_least("num_kv_blocks", options.num_kv_blocks, 1)
    if options.max_model_len is not None:
        _at_least("max_model_len", options.max_model_len, 1)
    if options.block_size != 1 and (options.block_size < 16 or options.block_size % 16):
        raise ConfigError(f"block_size must be 1 or a multiple of 16, got {options.block_size}")
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        raise ConfigError(
            f"gpu_memory_utilization must be in (0, 1], got {options.gpu_memory_utilization}"
        )
    check_kv_cache_dtype(options.kv_cache_dtype)
    if options.scheduler_delay_factor and options.scheduling_policy != "prefill_first":
        logger.warning(
            "scheduler_delay_factor %g has no effect with the policy %s, which keeps no prompt "
            "waiting; use --scheduling-policy prefill_first, or leave it out",
            *(options.scheduler_delay_factor, options.scheduling_policy),
        )
    _at_least("data_parallel_size", options.data_parallel_size, 1)
    _at_least("stall_seconds", options.stall_seconds, LEAST_STALL_SECONDS)
    _at_least("tensor_parallel_size", options.tensor_parallel_size, 1)
    _check_nodes(options)


def _check_nodes(options: EngineOptions) -> None:
    nodes, size = options.nnodes, options.tensor_parallel_size
    _at_least("nnodes", nodes, 1)
    if not 0 <= options.node_rank < nodes:
        raise ConfigError(f"node_rank must be within 0 to nnodes - 1, got {options.node_rank}")
    if not 1 <= options.master_port <= 65535:
        raise ConfigError(f"master_port must be within 1 to 65535, got {options.master_port}")
    if options.data_parallel_size > 1 and options.enable_expert_parallel:
        return  # these ranks are divided over nodes: see `_check_experts`
    if size % nodes:
        raise ConfigError(
            f"tensor_parallel_size {size} over {nodes} nodes: give a multiple of {nodes}, so that "
            "every node has as many ranks"
        )
    if nodes > 1 and options.data_parallel_size > 1:
        raise ConfigError(
            "data_parallel_size: several copies of the model over several nodes are several "
            "servers; start one for each with data_parallel_size 1, or let the ranks share experts "
            "by --enable-dp-attention and --enable-expert-parallel"
        )


def _proposing_model(options: EngineOptions, model: ModelConfig) -> ModelConfig | None:
    """Return the draft checkpoint, if a separate one drafts tokens. Raises `ConfigError` if it does
    not match the model."""
    asked = options.speculative
    if asked is None:
        return None
    if not asked.by_layers:
        return None
    _refuse("speculation", spread_problems(options.enable_expert_parallel))
    name = asked.draft_model
    if name is None:
        _refuse("speculation", mtp_problems(model.facts))
        return None
    checkpoint = open_checkpoint(find_checkpoint(name))
    try:
        facts = ModelFacts.from_hf_config(checkpoint.config)
    except (UnknownFamilyError, ModelFactsError) as error:
        raise ModelError(f"{checkpoint.config_place}: {error}") from error
    _refuse(f"speculation: {checkpoint.path}", eagle3_problems(model.facts, facts))
    _check_ranks(facts, options)
    return replace(
        model,
        path=checkpoint.path,
        served_name=name,
        architecture=facts.architecture,
        hf_config=checkpoint.config,
        facts=facts,
        vocab_size=facts.vocab_size,
    )


def _cache_config(options: EngineOptions) -> CacheConfig:
    if options.kv_events is not None and not options.enable_prefix_caching:
        raise ConfigError("kv_events tells of cached blocks, and prefix caching is off; drop one")
    return CacheConfig(
        block_size=options.block_size,
        num_kv_blocks=options.num_kv_blocks,
        gpu_memory_utilization=options.gpu_memory_utilization,
        kv_cache_dtype=options.kv_cache_dtype,
        enable_prefix_caching=options.enable_prefix_caching,
        kv_events=options.kv_events,
    )


def _refuse(what: str, problems: Iterable[str]) -> None:
    found = "; ".join(problems)
    if found:
        raise ConfigError(f"{what}: {found}")


def _check_ranks(facts: ModelFacts, options: EngineOptions) -> None:
    """Raise `ConfigError` if so many ranks cannot share the model, with the sizes that can."""
    size, nodes = options.tensor_parallel_size, options.nnodes
    experts = options.enable_expert_parallel
    problems = tensor_parallel_problems(facts, size, nodes, expert_parallel=experts)
    if problems:
        valid = valid_tensor_parallel_sizes(facts, nodes, expert_parallel=experts)
        sizes = ", ".join(map(str, valid))
        raise ConfigError(
            f"tensor_parallel_size {size}: {'; '.join(problems)}; sizes that divide this model"
            f"{f' over {nodes} nodes' if nodes > 1 else ''}: {sizes}"
        )
    if experts:
        _check_experts(facts, options)
    elif options.enable_dp_attention:
        raise ConfigError(
            "enable_dp_attention is for ranks that share experts; add --enable-expert-parallel, or "
            "leave it out for ranks with whole models"
        )
    if options.expert_exchange != "torch":
        _check_exchange(options)
    if options.balance is not None and not (experts and options.enable_dp_attention):
        raise ConfigError(
            "enable_eplb moves experts between ranks that share them; add --data-parallel-size, "
            "--enable-dp-attention and --enable-expert-parallel, or leave it out"
        )


def _check_experts(facts: ModelFacts, options: EngineOptions) -> None:
    """Raise `ConfigError` if the ranks cannot hold whole experts."""
    ranks = options.data_parallel_size
    if (ranks > 1) != options.enable_dp_attention:
        remedy = (
            "add --enable-dp-attention, by which ranks of data parallelism share experts, or leave "
            "out --enable-expert-parallel"
            if ranks > 1
            else "ask for 2 ranks or more, or leave out --enable-dp-attention"
        )
        raise ConfigError(f"enable_expert_parallel with data_parallel_size {ranks}: {remedy}")
    asked = ExpertOptions(
        tensor_parallel=options.tensor_parallel_size,
        data_parallel=ranks,
        nodes=options.nnodes,
        redundant=options.balance.redundant if options.balance is not None else 0,
        speculation=options.speculative is not None,
    )
    refusal = expert_parallel_problem(facts, asked)
    if refusal is not None:
        raise ConfigError(f"enable_expert_parallel: {refusal}")


def _check_exchange(options: EngineOptions) -> None:
    """Raise `ConfigError` if the requested library cannot exchange tokens with their experts."""
    name, near = options.expert_exchange, options.data_parallel_size // options.nnodes
    if not options.enable_dp_attention:
        raise ConfigError(
            f"expert_exchange {name} is for ranks with tokens of their own; add "
            "--enable-dp-attention, or leave it out"
        )
    if near.bit_count() != 1:
        raise ConfigError(
            f"expert_exchange {name} is for 1, 2, 4 or 8 ranks of a node, and not for {near}; use "
            "another --data-parallel-size, or --expert-exchange torch"
        )


def check_kv_cache_dtype(name: str) -> None:
    """Raise `ConfigError` for a dtype in which this version does not cache keys and values."""
    if name not in KV_CACHE_DTYPES:
        raise ConfigError(
            f"unknown kv_cache_dtype {name!r}; use auto, the model's own type, or one of "
            f"{', '.join(KV_CACHE_DTYPES[1:])}"
        )


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise ConfigError(f"{name} must be at least {least:g}, got {value}")


def _model_config(options: EngineOptions, checkpoint: Checkpoint) -> ModelConfig:
    pooling = pooling_config(checkpoint, options.runner, options.convert)
    if pooling is not None:
        checkpoint = _pooled_checkpoint(checkpoint, options)
    facts = _quantised(_model_facts(checkpoint), options, checkpoint)
    tokenizer_path = (
        checkpoint.path if options.tokenizer is None else find_checkpoint(options.tokenizer)
    )
    if pooling is not None and pooling.kind == "embed":
        facts = replace(facts, tie_word_embeddings=True)  # a head of its own is not used
    name = options.served_model_name or options.model.rstrip("/")
    return ModelConfig(
        path=checkpoint.path,
        served_name=name,
        architecture=facts.architecture,
        hf_config=text_part(checkpoint.config),
        facts=facts,
        dtype=options.dtype,
        max_model_len=_context_length(options.max_model_len, facts),
        vocab_size=facts.vocab_size,
        eos_token_ids=_ids_that_exist(end_token_ids(checkpoint), facts, checkpoint),
        generation=_generation_defaults(_generation_config(options, checkpoint)),
        load_dummy=options.load_dummy,
        tokenizer_path=tokenizer_path,
        pooling=pooling,
    )


def _pooled_checkpoint(checkpoint: Checkpoint, options: EngineOptions) -> Checkpoint:
    """Return a pooling model's checkpoint with the name of the generating architecture."""
    if options.speculative is not None:
        raise ConfigError(
            "speculation drafts tokens, and a pooling model gives none; leave it out, or use "
            "--runner generate"
        )
    known = frozenset(ARCHITECTURES)
    return replace(checkpoint, config=as_causal_model(checkpoint.config, known))


def _model_facts(checkpoint: Checkpoint) -> ModelFacts:
    """Read the shape of a model, which this version must support."""
    place = checkpoint.config_place
    try:
        facts = ModelFacts.from_hf_config(checkpoint.config)
    except UnknownFamilyError as error:
        refusal = unsupported_architecture(error.architecture, error.nearest)
        raise ModelError(f"{place}: {refusal.message}") from error
    except ModelFactsError as error:
        raise ModelError(f"{place}: {error}") from error
    refusals = unsupported(facts)
    if refusals:
        raise ModelError(f"{place}: {'; '.join(refusal.message for refusal in refusals)}")
    if facts.wrapper:
        logger.info(
            "%s: of %s the text model alone is served, as %s: prompts are text, and what reads "
            "images is not loaded", checkpoint.path, facts.wrapper, facts.architecture,
        )  # fmt: skip
    return facts


def _quantised(facts: ModelFacts, options: EngineOptions, checkpoint: Checkpoint) -> ModelFacts:
    """Return the facts of a plain checkpoint with its matrices in the format of `options`."""
    method, by_layer = options.quantization, options.online_quant_config
    if method is None and by_layer is None:
        return facts
    if method is not None and by_layer is not None:
        raise ConfigError(
            "quantization and online_quant_config both say how matrices are stored; give one of "
            "them: online_quant_config's global_quant_config is the other's value"
        )
    if facts.quantization is not None:
        if method is not None and _same_method(method, checkpoint):
            return facts
        raise ConfigError(
            f"quantization {method or by_layer}: {checkpoint.path} is quantised already, as "
            f"{facts.quantization}; leave the option out, or use the plain checkpoint"
        )
    if method is not None and method not in ONLINE:
        raise ConfigError(
            f"quantization {method}: {checkpoint.path} is a plain checkpoint, which is stored as "
            f"{', '.join(ONLINE)}; use one of these, or a checkpoint that is quantised so"
        )
    try:
        stored = facts.stored_as(
            read_online_config(by_layer or {}) if method is None else online_scheme(method)
        )
    except ModelFactsError as error:
        raise ConfigError(str(error)) from error
    refusals = unsupported(stored)
    if refusals:
        raise ConfigError("; ".join(refusal.message for refusal in refusals))
    return stored


def _same_method(method: str, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint names this method itself, by vLLM's names of its kernels too."""
    named: Any = text_part(checkpoint.config).get("quantization_config")
    own = str((named or {}).get("quant_method") or "").replace("_", "-")
    return bool(own) and method.replace("_", "-").removesuffix("-marlin") == own


def _context_length(asked: int | None, facts: ModelFacts) -> int:
    """Return the requested context length, or by default the one in config.json. Raises
    `ConfigError` if the request exceeds the model's longest context, YaRN included."""
    if asked is None:
        return facts.max_position_embeddings
    limit = facts.longest_context
    if asked > limit:
        raise ConfigError(
            f"max_model_len {asked} exceeds the model's longest context {limit}; "
            f"use at most {limit}"
        )
    return asked


def _ids_that_exist(
    end_ids: tuple[int, ...], facts: ModelFacts, checkpoint: Checkpoint
) -> tuple[int, ...]:
    """Drop end tokens that the model cannot generate; the log names them."""
    impossible = [end for end in end_ids if not 0 <= end < facts.vocab_size]
    if impossible:
        logger.warning(
            "%s: eos_token_id %s is outside the vocabulary (vocab_size %d in config.json) and ends "
            "no answer; correct eos_token_id in generation_config.json and config.json, or the "
            "tokenizer's eos_token",
            checkpoint.path, ", ".join(map(str, impossible[:16])), facts.vocab_size,
        )  # fmt: skip
    return tuple(end for end in end_ids if 0 <= end < facts.vocab_size)


def _generation_config(options: EngineOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the generation settings. Raises `ConfigError` for a missing file or an unknown field."""
    source, found = options.generation_config, checkpoint.generation_config
    if source == "vllm":
        found = {}
    elif source != "auto":
        file = Path(source).expanduser() / GENERATION_FILE
        if not file.is_file():
            raise ConfigError(
                f"generation_config {source}: there is no {file}; give auto, vllm for none, or a "
                f"folder with that file"
            )
        found = read_json(file)
    override = dict(options.override_generation_config or {})
    unknown = sorted(override.keys() - {*GENERATION_FIELDS, "do_sample"})
    if unknown:
        raise ConfigError(
            f"override_generation_config: {', '.join(unknown)} is no sampling default here; use "
            f"{', '.join(GENERATION_FIELDS)}"
        )
    return found | ({"do_sample": True} if override else {}) | override


def _generation_defaults(config: dict[str, Any]) -> GenerationDefaults:
    # Hugging Face's greedy: its other sampling fields are then without effect.
    greedy = not config.get("do_sample", True)
    asked = config | {"temperature": 0.0} if greedy else config
    names = ("temperature", "repetition_penalty") if greedy else GENERATION_FIELDS
    return GenerationDefaults(**{name: _sampling_default(name, asked.get(name)) for name in names})


def _sampling_default(name: str, value: Any) -> Any:
    """Return the value; None, with a line in the log, if every request with it would be refused."""
    if value is None:
        return None
    try:
        sound = msgspec.convert({name: value}, GenerationDefaults)
        SamplingParams(**{name: getattr(sound, name)})
    except (msgspec.ValidationError, RequestError) as error:
        logger.warning("generation_config.json: %s; the model's %s is not used", error, name)
        return None
    return value
