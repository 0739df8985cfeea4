"""Engine configuration: options as given → one frozen `Config` that every part reads.

`EngineOptions` has the options in parts, as `atom.sizing.options` declares them; `build_config`
opens the checkpoint, resolves every "auto" that needs no device, and checks the whole before a
process starts. Torch-free. What start-up finds out later (KV blocks, device) is reported in
`EngineReport`, never written back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from atom.checkpoint import (
    Checkpoint,
    find_checkpoint,
    open_checkpoint,
)
from atom.config_checks import check_options, check_pooling
from atom.config_values import (
    CacheConfig,
    Config,
    EngineOptions,
    GenerationDefaults,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    extended,
)
from atom.end_tokens import end_token_ids, ids_that_exist
from atom.errors import ConfigError, ModelError
from atom.generation_config.document import read_generation_config
from atom.generation_config.sampling_defaults import generation_defaults
from atom.lora_checkpoint import adapters_to_serve
from atom.model_source.tokenizer_ids import tokens_that_differ
from atom.pooling_config import PoolingConfig, as_causal_model, pooling_config
from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.drafting import draft_problems, spread_problems
from atom.sizing.engine_support import (
    fallback_notice,
    kv_cache_problems,
    unsupported,
    unsupported_architecture,
)
from atom.sizing.errors import ModelFactsError, UnknownFamilyError
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.beside_encoder import encoder_problems
from atom.sizing.options.beside_fallback import fallback_problems
from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.execution import ExecutionOptions, SleepOptions
from atom.sizing.options.parallelism import NodePlace, RoutingPolicy
from atom.sizing.options.scheduling import SchedulingPolicy
from atom.sizing.parallelism import (
    ExpertOptions,
    expert_parallel_problem,
    tensor_parallel_problems,
    valid_tensor_parallel_sizes,
)
from atom.sizing.quantization.modelopt import METHOD as MODELOPT
from atom.sizing.quantization.online import ONLINE, online_scheme, read_online_config
from atom.sizing.reproducibility import reproducible_problems
from atom.sizing.text_part import text_part

__all__ = [
    "CacheConfig",
    "Config",
    "EngineOptions",
    "ExecutionOptions",
    "GenerationDefaults",
    "ModelConfig",
    "NodePlace",
    "ParallelConfig",
    "RoutingPolicy",
    "SchedulerConfig",
    "SchedulingPolicy",
    "SleepOptions",
    "build_config",
]

logger = logging.getLogger(__name__)


def build_config(options: EngineOptions, *, weights: bool = True) -> Config:
    """Open the model and check the options together. weights: whether they are downloaded, where
    the model is. Raises `ConfigError` or `ModelError`."""
    check_options(options)
    checkpoint = options.checkpoint
    path = find_checkpoint(checkpoint.model, checkpoint.revision, weights=weights)
    model = _model_config(options, open_checkpoint(path))
    _check_ranks(model.facts, options)
    _refuse("kv_cache_dtype", kv_cache_problems(model.facts, options.cache.kv_cache_dtype))
    execution, speculative = options.execution, options.speculative
    _refuse("kv_transfer_config", options.transfer_problems(model))
    asked = options.beside_encoder(model.max_model_len)
    _refuse(model.facts.architecture, (said for _, said in encoder_problems(model.facts, asked)))
    beside = fallback_problems(model.facts, options.beside_fallback(model))
    _refuse(model.facts.architecture, (said for _, said in beside))
    if execution.reproducible:
        _refuse("reproducible", reproducible_problems(model.facts, options.beside_reproducible()))
    return Config(
        model=model,
        cache=extended(
            CacheConfig,
            _cache_options(options, model),
            kv_events=options.kv_events,
            kv_transfer=options.kv_transfer,
        ),
        scheduler=extended(
            SchedulerConfig,
            options.scheduler,
            num_speculative_tokens=speculative.num_tokens if speculative else 0,
            max_loras=options.lora.max_loras if options.lora else 0,
            divides_prompts=not model.facts.is_encoder,
        ),
        parallel=extended(
            ParallelConfig, options.parallel, balance=options.balance, nodes=options.nodes
        ),
        # A prompt that is pooled has no decode steps, and graphs of prompts draw tokens. Nothing
        # proves that a class of transformers may be captured.
        execution=replace(
            execution,
            enforce_eager=execution.enforce_eager
            or model.pooling is not None
            or model.facts.is_fallback,
        ),
        seed=options.model.seed,
        speculative=speculative,
        draft=_proposing_model(options, model),
        lora=adapters_to_serve(
            options.lora,
            has_experts=any(alike.layer.mlp.experts for alike in model.facts.layer_counts),
            shares_experts=options.parallel.dp_attention,
            nodes=options.nodes.count,
        ),
        images=options.images,
        sleep=options.sleep,
        health=options.health,
        tier=options.tier,
    )


def _cache_options(options: EngineOptions, model: ModelConfig) -> CacheOptions:
    """Return the options of the cache: a token of an encoder depends on the tokens after it, so no
    prefix is shared."""
    if not model.facts.is_encoder:
        return options.cache
    return replace(options.cache, enable_prefix_caching=False)


def _proposing_model(options: EngineOptions, model: ModelConfig) -> ModelConfig | None:
    """Return the draft checkpoint, if a separate one drafts tokens. Raises `ConfigError` if it does
    not match the model."""
    asked = options.speculative
    if asked is None:
        return None
    if not asked.by_layers:
        return None
    _refuse("speculation", spread_problems(options.parallel.expert_parallel))
    name = asked.draft_model
    if name is None:
        _refuse("speculation", draft_problems(asked.method, model.facts, None))
        return None
    checkpoint = open_checkpoint(find_checkpoint(name))
    try:
        facts = ModelFacts.from_hf_config(checkpoint.config)
    except (UnknownFamilyError, ModelFactsError) as error:
        raise ModelError(f"{checkpoint.config_place}: {error}") from error
    problems = draft_problems(asked.method, model.facts, facts)
    _refuse(f"speculation: {checkpoint.path}", problems)
    if asked.method == "draft_model":
        differing = tokens_that_differ(model.tokenizer_path, checkpoint.path)
        _refuse(f"speculation: {checkpoint.path}", differing)
    _check_ranks(facts, options)
    return replace(
        model,
        path=checkpoint.path,
        served_name=name,
        architecture=facts.architecture,
        hf_config=text_part(checkpoint.config),
        facts=facts,
        vocab_size=facts.vocab_size,
    )


def _refuse(what: str, problems: Iterable[str]) -> None:
    found = "; ".join(problems)
    if found:
        raise ConfigError(f"{what}: {found}")


def _check_ranks(facts: ModelFacts, options: EngineOptions) -> None:
    """Raise `ConfigError` if so many ranks cannot share the model, with the sizes that can."""
    size, nodes = options.parallel.tensor_parallel_size, options.nodes.count
    experts = options.parallel.expert_parallel
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


def _check_experts(facts: ModelFacts, options: EngineOptions) -> None:
    """Raise `ConfigError` if the ranks cannot hold whole experts."""
    ranks = options.parallel.data_parallel_size
    if (ranks > 1) != options.parallel.dp_attention:
        remedy = (
            "add --enable-dp-attention, by which ranks of data parallelism share experts, or leave "
            "out --enable-expert-parallel"
            if ranks > 1
            else "ask for 2 ranks or more, or leave out --enable-dp-attention"
        )
        raise ConfigError(f"enable_expert_parallel with data_parallel_size {ranks}: {remedy}")
    asked = ExpertOptions(
        tensor_parallel=options.parallel.tensor_parallel_size,
        data_parallel=ranks,
        nodes=options.nodes.count,
        redundant=options.balance.redundant if options.balance is not None else 0,
        speculation=options.speculative is not None,
    )
    refusal = expert_parallel_problem(facts, asked)
    if refusal is not None:
        raise ConfigError(f"enable_expert_parallel: {refusal}")


def _model_config(options: EngineOptions, checkpoint: Checkpoint) -> ModelConfig:
    pooling = pooling_config(checkpoint, options.model.runner, options.model.convert)
    if pooling is not None:
        checkpoint = _pooled_checkpoint(checkpoint, options)
    # Encoders are not proven to give the same numbers again: such a server takes texts alone.
    images = options.images.reads_images and pooling is None and not options.execution.reproducible
    facts = _quantised(_model_facts(checkpoint, images=images), options, checkpoint)
    given = options.checkpoint
    tokenizer_path = (
        checkpoint.path if given.tokenizer is None else find_checkpoint(given.tokenizer)
    )
    if pooling is not None and pooling.kind == "embed":
        facts = replace(facts, tie_word_embeddings=True)  # a head of its own is not used
    name = given.served_model_name or given.model.rstrip("/")
    return ModelConfig(
        path=checkpoint.path,
        served_name=name,
        architecture=facts.architecture,
        hf_config=text_part(checkpoint.config),
        facts=facts,
        dtype=options.model.dtype,
        max_model_len=_context_length(options.model.max_model_len, facts, pooling),
        vocab_size=facts.vocab_size * facts.segments,
        eos_token_ids=ids_that_exist(end_token_ids(checkpoint), facts, checkpoint),
        generation=generation_defaults(read_generation_config(options.checkpoint, checkpoint)),
        load_dummy=options.model.load_dummy,
        tokenizer_path=tokenizer_path,
        pooling=pooling,
        max_images=0 if facts.vision is None else options.images.max_images,
        max_image_run=options.scheduler.max_num_batched_tokens,
    )


def _pooled_checkpoint(checkpoint: Checkpoint, options: EngineOptions) -> Checkpoint:
    """Return a pooling model's checkpoint with the name of the generating architecture."""
    check_pooling(options)
    known = frozenset(ARCHITECTURES)
    return replace(checkpoint, config=as_causal_model(checkpoint.config, known))


def _model_facts(checkpoint: Checkpoint, *, images: bool) -> ModelFacts:
    """Read the shape of a model, which this version must support, and with `images` that of its
    image encoder."""
    place = checkpoint.config_place
    try:
        facts = ModelFacts.from_hf_config(checkpoint.config, images=images)
    except UnknownFamilyError as error:
        refusal = unsupported_architecture(error.architecture, error.nearest)
        raise ModelError(f"{place}: {refusal.message}") from error
    except ModelFactsError as error:
        raise ModelError(f"{place}: {error}") from error
    refusals = unsupported(facts)
    if refusals:
        raise ModelError(f"{place}: {'; '.join(refusal.message for refusal in refusals)}")
    if notice := fallback_notice(facts):
        logger.warning("%s: %s", checkpoint.path, notice)
    if facts.checkpoint.wrapper and facts.vision is None:
        logger.info(
            "%s: of %s the text model alone is served, as %s: prompts are text, and what reads "
            "images is not loaded", checkpoint.path, facts.checkpoint.wrapper, facts.architecture,
        )  # fmt: skip
    return facts


def _quantised(facts: ModelFacts, options: EngineOptions, checkpoint: Checkpoint) -> ModelFacts:
    """Return the facts of a plain checkpoint with its matrices in the format of `options`."""
    method, by_layer = options.model.quantization, options.model.online_quant_config
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
    section: Any = text_part(checkpoint.config).get("quantization_config")
    own = str((section or {}).get("quant_method") or "").replace("_", "-")
    named = method.replace("_", "-").removesuffix("-marlin")
    if own.startswith(MODELOPT):  # vLLM's modelopt_fp4, modelopt_mxfp8 and modelopt_mixed
        named, own = named.partition("-")[0], MODELOPT
    return bool(own) and named == own


def _context_length(asked: int | None, facts: ModelFacts, pooling: PoolingConfig | None) -> int:
    """Return the requested context length, or by default the one in sentence-transformers' files or
    config.json. Raises `ConfigError` if the request exceeds the model's longest context, YaRN
    included."""
    if asked is None:
        longest = facts.max_position_embeddings
        trained = None if pooling is None else pooling.max_tokens
        return longest if trained is None else min(longest, trained)
    limit = facts.longest_context
    if asked > limit:
        raise ConfigError(
            f"max_model_len {asked} exceeds the model's longest context {limit}; "
            f"use at most {limit}"
        )
    return asked
