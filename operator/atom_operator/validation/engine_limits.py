"""Features that the engine images of a site do not run, as problems of a spec. Pure.

The table is atom.sizing's, by which the engine itself refuses; a site whose images can do more
states so in the operator's chart. Sizes are not judged here: a model may fit that no engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing import (
    ExpertOptions,
    ModelFacts,
    ReproducibleOptions,
    UnknownFamilyError,
    expert_parallel_problem,
    kv_cache_problems,
    reproducible_problems,
    spread_problems,
    unsupported,
    unsupported_architecture,
)
from atom.sizing.engine_support import LOOKED_UP_METHODS
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.option_field import spec_path
from atom_operator.constants import Reason
from atom_operator.domain import Accelerator, EngineOptions, FactsLookup, FieldProblem
from atom_operator.integration_values import EngineFeature, Site
from atom_operator.sizes import size_text

_SAY_SO = "and say so in the operator's chart"
_ANOTHER_IMAGE = f"; or use an engine image that runs it {_SAY_SO} (engine.architectures)"


def validate_engine_runs(
    field: str, facts: ModelFacts | None, site: Site
) -> tuple[FieldProblem, ...]:
    """Return everything about the model that the engine does not compute; nothing while it is
    unknown."""
    found = () if facts is None else unsupported(facts, site.engine_architectures)
    return tuple(_not_run(field, problem.message) for problem in found)


def validate_experts(
    options: EngineOptions, facts: ModelFacts | None, site: Site
) -> tuple[FieldProblem, ...]:
    """Return the devices that the engine does not divide this model's experts over."""
    feature = EngineFeature.EXPERT_PARALLEL
    if facts is None or not options.expert_parallel or feature in site.engine_features:
        return ()
    asked = ExpertOptions(
        tensor_parallel=options.tensor_parallel,
        data_parallel=options.data_parallel,
        nodes=options.nodes,
        redundant=options.redundant_experts,
        speculation=options.speculative.method is not None,
    )
    message = expert_parallel_problem(facts, asked)
    if message is None:
        return ()
    another = f"or use an engine image that can do it {_SAY_SO} (engine.features: {feature.value})"
    return (
        FieldProblem(
            "spec.parallelism.expert", f"{message}, {another}", Reason.UNSUPPORTED_BY_ENGINE
        ),
    )


def validate_kv_cache(options: EngineOptions, facts: ModelFacts | None) -> Iterator[FieldProblem]:
    """Yield why the model's cache has no elements of the type that is asked for."""
    if facts is not None:
        for problem in kv_cache_problems(facts, options.cache.kv_cache_dtype):
            yield FieldProblem("spec.engine.kvCacheDtype", problem, Reason.UNSUPPORTED_BY_ENGINE)


def validate_tier(options: EngineOptions) -> Iterator[FieldProblem]:
    """Yield why the engine has no tier of the KV cache with these options."""
    if not options.serving.host_tier_bytes:
        return
    field = "spec.cache.kv.hostMemory"
    if not options.cache.enable_prefix_caching:
        yield FieldProblem(
            field,
            "a tier keeps blocks that the prefix cache finds, and spec.engine.prefixCaching is "
            "false; leave one of them out",
            Reason.INVALID_SPEC,
        )
    if options.nodes > 1:
        yield FieldProblem(
            field,
            "ranks over several nodes share no memory of a host; leave it out, or use one node",
            Reason.UNSUPPORTED_BY_ENGINE,
        )


def validate_image_memory(
    options: EngineOptions, accelerator: Accelerator
) -> Iterator[FieldProblem]:
    """Yield why a CPU pod has no room for the images of requests: server and engine keep them in
    the memory that neither weights nor KV cache take."""
    memory = accelerator.memory_bytes
    if accelerator.type != "cpu" or memory is None or options.images.image_memory_mib is None:
        return
    share = options.cache.gpu_memory_utilization
    room = int(memory * (1 - share))
    wanted = 2 * options.images.memory_bytes(memory)
    if wanted > room:
        yield FieldProblem(
            spec_path("image_memory_mib"),
            f"images take {size_text(wanted)} of the pod's {size_text(memory)} in server and "
            f"engine, and {spec_path('gpu_memory_utilization')} {share:g} leaves {size_text(room)} "
            "beside weights and KV cache; lower one of the two, or raise spec.accelerator.memory",
        )


def validate_reproducible(
    options: EngineOptions, facts: ModelFacts | None
) -> Iterator[FieldProblem]:
    """Yield the settings that reproducible answers exclude, each with its remedy."""
    if facts is None or not options.execution.reproducible:
        return
    model, execution = options.model, options.execution
    quantises = model.quantization is not None or model.online_quant_config is not None
    asked = ReproducibleOptions(
        quantization="online quantised" if quantises else None,
        names_backends=execution.backend != "auto" or bool(execution.op_backends),
        lora=options.lora is not None,
        expert_parallel=options.expert_parallel,
        kv_cache_dtype=options.cache.kv_cache_dtype,
    )
    for problem in reproducible_problems(facts, asked):
        yield FieldProblem("spec.engine.reproducible", problem, Reason.UNSUPPORTED_BY_ENGINE)


def validate_unknown_family(
    field: str, error: UnknownFamilyError, site: Site
) -> FactsLookup | FieldProblem:
    """Return the lookup of a model without arithmetic, which the engine sizes itself if the site
    runs it; otherwise the problem."""
    if not {"*", error.architecture} & {*site.engine_architectures}:
        refusal = unsupported_architecture(error.architecture, error.nearest)
        return _not_run(field, refusal.message)
    return FactsLookup(
        None,
        Reason.MODEL_NOT_SIZED,
        f"{error}; nothing was planned and the engine sizes itself",
    )


def validate_engine_features(spec: AtomDeploymentSpec, site: Site) -> Iterator[FieldProblem]:
    """Yield the options that this version's engine does not have."""
    asked = spec.engine.speculative
    if (
        asked is None
        or asked.method in LOOKED_UP_METHODS
        or EngineFeature.SPECULATION in site.engine_features
    ):
        return
    for problem in spread_problems(bool(spec.parallelism.expert)):
        yield FieldProblem(
            "spec.engine.speculative",
            f"{problem}; or use an engine image that can do it {_SAY_SO} (engine.features: "
            f"{EngineFeature.SPECULATION.value})",
            Reason.UNSUPPORTED_BY_ENGINE,
        )


def _not_run(field: str, message: str) -> FieldProblem:
    return FieldProblem(field, message + _ANOTHER_IMAGE, Reason.MODEL_NOT_SUPPORTED)
