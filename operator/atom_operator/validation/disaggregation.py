"""Rules of spec.disaggregation: what cannot be beside pods that compute prompts for others. Pure.

Rules about the engine are the engine's own (atom.sizing), so that a pair is refused at admission if
and only if its engines would refuse to start.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing.engine_support import LAYER_METHODS
from atom.sizing.options.beside_transfer import BesideTransfer, transfer_problems
from atom_operator import constants
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.disaggregation import DisaggregationSpec, RoleSpec
from atom_operator.constants import Reason
from atom_operator.domain import EngineOptions, FieldProblem, ObjectKey

FIELD = "spec.disaggregation"
_POOLING = ("embed", "classify")  # values of --convert
_LONGEST_SUFFIX = {False: "-prefill", True: "-canary-prefill"}  # whether there is a canary


def roles_go_with_the_rest(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the settings that exclude separate pods for prompts and answers, with the remedy."""
    divided = spec.disaggregation
    if divided is None:
        return
    yield from _routes(spec)
    if spec.model.config_ref is not None:
        yield FieldProblem(
            "spec.model.configRef",
            f"its ConfigMap would change the pods of both roles of {FIELD} at once; give the "
            "config.json in spec.model.config",
        )
    if divided.prefill is not None:
        yield from _numbers(spec, divided)
        yield from _sums(spec, divided.prefill, divided.decode)


def _routes(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    gateway = spec.gateway
    pools = {
        "inferencePool": gateway is not None and gateway.inference_pool is not None,
        "prefixAware": gateway is not None and bool(gateway.prefix_aware),
    }
    for name, asked in pools.items():
        if asked:
            yield FieldProblem(
                f"spec.gateway.{name}",
                f"an endpoint picker chooses one pod for a request, and the frontends of {FIELD} "
                "send its two parts; leave it out (llm-d's sidecar is not rendered in this "
                "version)",
                Reason.UNSUPPORTED_BY_ENGINE,
            )


def _numbers(spec: AtomDeploymentSpec, divided: DisaggregationSpec) -> Iterator[FieldProblem]:
    """Yield the targets of autoscalers that measure nothing in a role, and methods that differ."""
    decode, prefill = divided.decode, divided.prefill
    assert prefill is not None
    if prefill.autoscaling is None:
        return
    scaling = spec.autoscaling  # of the decode pods, with their own fields
    field, asked = f"{FIELD}.prefill.autoscaling", prefill.autoscaling
    methods = {each.method for each in (asked, scaling) if each is not None} - {None, "Auto"}
    if len(methods) > 1:
        where = "decode.autoscaling" if decode and decode.autoscaling else "spec.autoscaling"
        yield FieldProblem(
            f"{field}.method",
            f"{asked.method} differs from that of {where}; scale both roles by one method",
        )
    measures = {
        "targetConcurrency": asked.target_concurrency,
        "targetKvUsagePercent": asked.target_kv_usage_percent,
    }
    for name, value in measures.items():
        if value is not None:
            yield FieldProblem(
                f"{field}.{name}",
                "a prefill pod keeps pages until they are read, so this does not measure its load; "
                "set targetWaitingRequests",
            )


def _sums(
    spec: AtomDeploymentSpec, prefill: RoleSpec, decode: RoleSpec | None
) -> Iterator[FieldProblem]:
    """Yield the fields by which reproducible engines of the two roles sum up in orders that differ:
    they would exchange no page (atom.sizing.reproducibility)."""
    if not spec.engine.reproducible or spec.accelerator.type == "cpu":
        return
    parallelism = spec.parallelism.tensor or 1, _tensor(prefill), _tensor(decode)
    products = spec.accelerator.product, _product(prefill), _product(decode)
    for field, (whole, of_prefill, of_decode) in (
        ("parallelism.tensor", parallelism),
        ("accelerator.product", products),
    ):
        asked, own = of_prefill or whole, of_decode or whole
        if asked != own:
            yield FieldProblem(
                f"{FIELD}.prefill.{field}",
                f"{asked} differs from {own} of the decode pods, and their reproducible engines "
                "would sum up in another order; give both roles one "
                f"{field.partition('.')[2]}, or drop spec.engine.reproducible",
                Reason.UNSUPPORTED_BY_ENGINE,
            )


def _tensor(role: RoleSpec | None) -> int | None:
    return role.parallelism.tensor if role is not None and role.parallelism is not None else None


def _product(role: RoleSpec | None) -> str | None:
    return role.accelerator.product if role is not None and role.accelerator is not None else None


def validate_transfer(options: EngineOptions, field: str = FIELD) -> Iterator[FieldProblem]:
    """Yield why the engine does not exchange KV pages with these options, in its own words."""
    if options.serving.transfer is None:
        return
    model = options.model
    beside = BesideTransfer(
        prefix_caching=options.cache.enable_prefix_caching,
        pools=model.runner == "pooling" or model.convert in _POOLING,
        tensor_parallel=options.tensor_parallel,
        nodes=options.nodes,
        shares_experts=options.shares_experts,
        by_layers=options.speculative.method in LAYER_METHODS,
        may_sleep=options.serving.may_sleep,
    )
    for problem in transfer_problems(beside):
        yield FieldProblem(field, problem, Reason.UNSUPPORTED_BY_ENGINE)


def name_problems(key: ObjectKey, spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield why the AtomDeployments of a pair cannot have their names."""
    divided = spec.disaggregation
    if divided is None:
        return
    if divided.prefill_for is not None:
        if key.name != f"{divided.prefill_for}{_LONGEST_SUFFIX[False]}":
            yield FieldProblem(
                f"{FIELD}.prefillFor",
                "belongs to the operator, which creates prefill pods for spec.disaggregation."
                f"prefill of {divided.prefill_for}; set prefill there",
            )
        return
    longest = f"{key.name}{_LONGEST_SUFFIX[spec.canary is not None]}"
    if len(longest) > constants.MAX_NAME_LENGTH:
        yield FieldProblem(
            FIELD,
            f"its AtomDeployment would be named {longest}, of more than "
            f"{constants.MAX_NAME_LENGTH} characters; give this one a shorter name",
        )
