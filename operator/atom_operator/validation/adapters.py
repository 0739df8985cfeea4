"""Rules about spec.adapters and spec.engine.lora: adapters that pods cannot serve, by name.
Pure."""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem
from atom_operator.validation.defaulting import locate_model, resolve_lora, served_name
from atom_operator.validation.engine_flags import arguments_named

# One process and one node hold the list of adapters.
_ONE_PROCESS = "--api-server-count"


def adapters_have_room(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the problems of the list as a whole."""
    adapters, lora = spec.adapters or (), resolve_lora(spec.engine.lora)
    if not adapters:
        return
    if lora is None:  # CEL has this rule too
        yield FieldProblem(
            "spec.adapters",
            "pods have no room for adapters; set spec.engine.lora ({} takes the defaults)",
        )
        return
    if len(adapters) > lora.max_cpu_loras:
        yield FieldProblem(
            "spec.adapters",
            f"{len(adapters)} adapters, and pods have room for {lora.max_cpu_loras}; raise "
            "spec.engine.lora.maxCpuLoras, which replaces the pods",
        )
    names = [item.name for item in adapters]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:  # the API server refuses it too
            yield FieldProblem(f"spec.adapters[{name}]", "stands there twice; give each its own")


def adapters_can_be_found(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the names and sources of single adapters that pods cannot serve."""
    mounted = {*((spec.engine.lora.claims if spec.engine.lora else None) or ())}
    claim = locate_model(spec).claim
    mounted |= {claim} if claim is not None else set()
    own = served_name(spec)
    for item in spec.adapters or ():
        field = f"spec.adapters[{item.name}]"
        if item.name == own:
            yield FieldProblem(
                f"{field}.name", "is the model's own name in the API; give the adapter another"
            )
        scheme, _, rest = item.source.partition("://")
        if ".." in rest.split("/"):
            yield FieldProblem(f"{field}.source", "leads out of its place by ..; write the path")
        if scheme == "pvc" and (asked := rest.partition("/")[0]) not in mounted:
            yield FieldProblem(
                f"{field}.source",
                f"pods do not mount claim {asked}; add it to spec.engine.lora.claims, which "
                "replaces the pods",
            )


def lora_goes_with_the_rest(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the settings that an engine with adapters does not support."""
    field, asked = "spec.engine.lora", spec.parallelism
    if spec.engine.lora is None:
        return
    if asked.expert and (asked.data or 1) > 1:
        yield FieldProblem(
            field,
            "copies that share experts serve no adapters; leave out spec.parallelism.data or "
            "spec.parallelism.expert",
            Reason.UNSUPPORTED_BY_ENGINE,
        )
    if not asked.expert and (asked.nodes or 1) > 1:
        yield FieldProblem(
            field,
            "adapters come and go in replicas of one node only; set spec.parallelism.nodes to 1",
            Reason.UNSUPPORTED_BY_ENGINE,
        )
    for place in arguments_named(spec, _ONE_PROCESS):
        yield FieldProblem(
            place,
            f"{_ONE_PROCESS} makes several HTTP processes, and {field} needs one; leave it out",
            Reason.RESERVED_ARGUMENT,
        )
