"""Rules that the CRD's schema cannot express, one function per rule; each names field and remedy.

Pure: typed spec in, problems out. Called by reconcile; CEL holds the rules that the API server can
check by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from atom.sizing import (
    ModelFacts,
    draft_problems,
    tensor_parallel_problems,
    valid_tensor_parallel_sizes,
)
from atom.sizing.engine_support import DRAFT_CHECKPOINT_METHODS
from atom_operator import constants
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.object_metadata import ObjectsSpec
from atom_operator.constants import Reason
from atom_operator.domain import EngineOptions, FieldProblem
from atom_operator.validation.adapters import (
    adapters_can_be_found,
    adapters_have_room,
    lora_goes_with_the_rest,
)
from atom_operator.validation.canary import canary_has_a_route
from atom_operator.validation.disaggregation import roles_go_with_the_rest
from atom_operator.validation.engine_flags import arguments_named, flags_are_free
from atom_operator.validation.idle_sleep import pods_can_sleep
from atom_operator.validation.rollout import window_has_a_zone
from atom_operator.validation.template_shape import key_problems, shape_problems

_LABEL = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_DOMAIN = re.compile(
    r"^(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
)
_MOST_DEVICES = 8  # of one pod
Rule = Callable[[AtomDeploymentSpec], Iterator[FieldProblem]]

_OWNED_LABELS = (
    constants.LABEL_DEPLOYMENT,
    constants.LABEL_NAME,
    constants.LABEL_INSTANCE,
    constants.LABEL_MANAGED_BY,
)


def validate(spec: AtomDeploymentSpec) -> tuple[FieldProblem, ...]:
    """List every problem of the spec; empty when it is accepted."""
    return tuple(problem for rule in _RULES for problem in rule(spec))


def validate_against_model(
    options: EngineOptions, facts: ModelFacts | None
) -> tuple[FieldProblem, ...]:
    """Apply the rules that need the model's shape; empty while it is unknown."""
    if facts is None:
        return ()
    return (
        *_model_len_is_known(options, facts),
        *_tensor_size_divides(options, facts),
        *_experts_exist(options, facts),
        *_adapters_of_experts(options, facts),
        *_drafts_go_with_the_model(options, facts),
    )


def _model_len_is_known(options: EngineOptions, facts: ModelFacts) -> Iterator[FieldProblem]:
    length, longest = options.model.max_model_len, facts.longest_context
    if length is not None and length > longest:
        yield FieldProblem(
            "spec.engine.maxModelLen",
            f"{length} is more than the model's {longest} positions; set at most {longest}",
        )


def _tensor_size_divides(options: EngineOptions, facts: ModelFacts) -> Iterator[FieldProblem]:
    experts = options.expert_parallel
    problems = tensor_parallel_problems(
        facts, options.tensor_parallel, options.nodes, expert_parallel=experts
    )
    if problems:
        sizes = valid_tensor_parallel_sizes(facts, options.nodes, expert_parallel=experts)
        valid = ", ".join(map(str, sizes))
        yield FieldProblem(
            "spec.parallelism.tensor",
            f"{'; '.join(problems)}; this model can be split over {valid} devices",
            Reason.IMPOSSIBLE_PARALLELISM,
        )


def _has_experts(facts: ModelFacts) -> bool:
    return any(alike.layer.mlp.experts for alike in facts.layer_counts)


def _adapters_of_experts(options: EngineOptions, facts: ModelFacts) -> Iterator[FieldProblem]:
    lora = options.lora
    if lora is not None and lora.experts and not _has_experts(facts):
        yield FieldProblem(
            "spec.engine.lora.experts", "this model has no experts to adapt; leave it out"
        )


def _experts_exist(options: EngineOptions, facts: ModelFacts) -> Iterator[FieldProblem]:
    if options.expert_parallel and not _has_experts(facts):
        yield FieldProblem(
            "spec.parallelism.expert",
            "this model has no experts to spread; leave it out",
            Reason.IMPOSSIBLE_PARALLELISM,
        )


def _drafts_go_with_the_model(options: EngineOptions, facts: ModelFacts) -> Iterator[FieldProblem]:
    field, asked = "spec.engine.speculative", options.speculative
    if asked.method == "mtp":
        for problem in draft_problems(asked.method, facts, None):
            yield FieldProblem(field, problem)
    if asked.method in DRAFT_CHECKPOINT_METHODS and asked.facts is not None:
        for problem in draft_problems(asked.method, facts, asked.facts):
            yield FieldProblem(f"{field}.draftModel", problem)


def _copies_have_their_devices(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    # CEL has this rule too; here it also holds for objects stored before the rule existed.
    asked = spec.parallelism
    copies, tensor, nodes = asked.data or 1, asked.tensor or 1, asked.nodes or 1
    if copies == 1:
        return
    field, remedy = "spec.parallelism.data", "leave it out and raise spec.replicas instead"
    if spec.accelerator.type == "cpu" and not asked.expert:
        yield FieldProblem(field, f"{copies} copies in a pod are for GPUs; {remedy}")
    if nodes > 1 and not asked.expert:
        share = "or set spec.parallelism.expert for a mixture of experts, which they then share"
        yield FieldProblem(
            field, f"{copies} copies in a pod need it on one node; {remedy}, {share}"
        )
    if copies * tensor > _MOST_DEVICES * nodes:
        most = _MOST_DEVICES * nodes // tensor
        yield FieldProblem(
            field,
            f"{copies} copies on {tensor} devices each are more than the {_MOST_DEVICES} of "
            f"{'a node' if nodes == 1 else f'each of {nodes} nodes'}; set at most {most} and raise "
            "spec.replicas",
            Reason.IMPOSSIBLE_PARALLELISM,
        )


def _batch_holds_every_sequence(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    # CEL has this rule too; here it also holds for objects stored before the rule existed.
    batched, sequences = spec.engine.max_num_batched_tokens, spec.engine.max_num_seqs
    if batched is not None and sequences is not None and batched < sequences:
        yield FieldProblem(
            "spec.engine.maxNumBatchedTokens",
            f"{batched} is less than maxNumSeqs={sequences}; set at least {sequences}",
        )


def _draft_model_goes_with_method(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    asked = spec.engine.speculative
    if asked is None:
        return
    field = "spec.engine.speculative.draftModel"
    by_checkpoint = asked.method in DRAFT_CHECKPOINT_METHODS
    if by_checkpoint and asked.draft_model is None:
        yield FieldProblem(field, f"method {asked.method} needs a draft model; name it, or use mtp")
    if not by_checkpoint and (asked.draft_model or asked.draft_config is not None):
        yield FieldProblem(
            field,
            f"method {asked.method} drafts without a draft model; leave it out, or use "
            f"{' or '.join(DRAFT_CHECKPOINT_METHODS)}",
        )


def _overlays_are_pod_templates(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    yield from overlay_problems(spec)


def overlay_problems(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the problems of each overlay of a pod template that the spec has."""
    change = spec.canary.change.template if spec.canary is not None else None
    overlays = {
        "spec.template": spec.template,
        "spec.jobs.template": spec.jobs.template,
        "spec.canary.change.template": change,
        "spec.frontend.template": spec.frontend.template if spec.frontend else None,
        "spec.gateway.pickerTemplate": spec.gateway.picker_template if spec.gateway else None,
        **_role_templates(spec),
    }
    for place, overlay in overlays.items():
        yield from template_problems(overlay or {}, place)
        yield from key_problems(overlay or {}, place)


def _role_templates(spec: AtomDeploymentSpec) -> dict[str, Mapping[str, Any] | None]:
    divided = spec.disaggregation
    if divided is None:
        return {}
    roles = {"prefill": divided.prefill, "decode": divided.decode}
    return {
        f"spec.disaggregation.{name}.template": role.template if role is not None else None
        for name, role in roles.items()
    }


def template_problems(template: Mapping[str, Any], place: str) -> Iterator[FieldProblem]:
    """Yield the parts that no overlay of a pod template may have: values of another type than their
    field's, and labels that the operator sets. `place`: the field that holds the overlay."""
    yield from shape_problems(template, place)
    metadata: Any = template.get("metadata", {})
    labels: Any = metadata.get("labels", {}) if isinstance(metadata, Mapping) else {}
    for label in _OWNED_LABELS:
        if isinstance(labels, Mapping) and label in labels:
            yield FieldProblem(
                f"{place}.metadata.labels[{label}]",
                "the operator selects pods by it; use a label of your own",
            )


def _words_are_labels(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    yield from object_metadata_problems(spec.objects)


def object_metadata_problems(asked: ObjectsSpec | None) -> Iterator[FieldProblem]:
    """Yield the labels and annotations that are none, or that the operator sets itself."""
    if asked is None:
        return
    parts = {
        "spec.objects": asked,
        "spec.objects.service": asked.service,
        "spec.objects.serviceAccount": asked.service_account,
        "spec.objects.job": asked.job,
        "spec.objects.podDisruptionBudget": asked.pod_disruption_budget,
    }
    for path, words in parts.items():
        for key, value in ((words.labels if words else None) or {}).items():
            yield from _label_problems(f"{path}.labels[{key}]", key, value)
        for key in (words.annotations if words else None) or {}:
            yield from _label_problems(f"{path}.annotations[{key}]", key, "")


def _label_problems(path: str, key: str, value: str) -> Iterator[FieldProblem]:
    prefix, _, name = key.rpartition("/")
    if prefix == constants.GROUP or key in _OWNED_LABELS:
        yield FieldProblem(path, "the operator sets it; use one of your own")
    elif not (_LABEL.match(name) and (not prefix or _DOMAIN.match(prefix)) and "//" not in key):
        yield FieldProblem(path, "is no name such as team or example.org/team; rename it")
    if value and not _LABEL.match(value):
        yield FieldProblem(
            path, f"{value!r} is no label; use at most 63 of A-Z, a-z, 0-9, '-', '_', '.'"
        )


def _api_key_is_said_once(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    if spec.engine.api_key_secret_ref is None:
        return
    for place in arguments_named(spec, "--api-key-file"):
        yield FieldProblem(
            place,
            "--api-key-file belongs to spec.engine.apiKeySecretRef, which is set; leave it out",
            Reason.RESERVED_ARGUMENT,
        )


def _prefixes_can_be_known(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    if spec.gateway is None or not spec.gateway.prefix_aware:
        return
    field = "spec.gateway.prefixAware"
    if spec.gateway.inference_pool is not None:  # CEL has this rule too
        yield FieldProblem(field, "runs a picker of its own; leave spec.gateway.inferencePool out")
    if spec.engine.prefix_caching is False:
        yield FieldProblem(
            field, "nothing is cached while spec.engine.prefixCaching is false; leave one out"
        )
    for place in arguments_named(spec, "--kv-events-config"):
        yield FieldProblem(
            place,
            f"--kv-events-config belongs to {field}, which is set; leave it out",
            Reason.RESERVED_ARGUMENT,
        )


def _frontend_chooses_pods(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    gateway = spec.gateway
    if spec.frontend is None or gateway is None or spec.disaggregation is not None:
        return  # with disaggregation the frontend may be implied, and the rule is another
    pools = {"inferencePool": gateway.inference_pool, "prefixAware": gateway.prefix_aware}
    for name, asked in pools.items():
        if asked:
            yield FieldProblem(
                "spec.frontend",
                f"chooses the pod of each request, and so does spec.gateway.{name}, past which "
                "it would hold no connection; leave one of the two out",
            )


def _one_process_hands_over(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    asked = {"spec.rollout.handover": spec.rollout.handover, "spec.frontend": spec.frontend}
    field = next((name for name, value in asked.items() if value), None)
    if field is None:
        return
    for place in arguments_named(spec, "--api-server-count"):
        yield FieldProblem(
            place,
            f"--api-server-count makes several HTTP processes, and {field} needs one; leave one of "
            "the two out",
            Reason.RESERVED_ARGUMENT,
        )


_RULES: tuple[Rule, ...] = (
    roles_go_with_the_rest,
    _frontend_chooses_pods,
    canary_has_a_route,
    window_has_a_zone,
    adapters_have_room,
    adapters_can_be_found,
    lora_goes_with_the_rest,
    _prefixes_can_be_known,
    _words_are_labels,
    _api_key_is_said_once,
    _one_process_hands_over,
    flags_are_free,
    pods_can_sleep,
    _copies_have_their_devices,
    _batch_holds_every_sequence,
    _draft_model_goes_with_method,
    _overlays_are_pod_templates,
)
