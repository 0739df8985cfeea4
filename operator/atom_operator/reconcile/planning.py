"""From a spec to its Plan, or to its problems. Pure.

The caller reads the cluster's facts (a ConfigMap, nodes) and passes them in. Called by reconcile
with the cluster's answers, and by `atom_operator plan` with files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeGuard

from atom.sizing import ModelFactsError, UnknownFamilyError
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.cache import AUTO_SIZE
from atom_operator.children.engine_container import engine_line
from atom_operator.children.naming import prefill_name
from atom_operator.children.template_guard import template_problems
from atom_operator.constants import Reason
from atom_operator.domain import (
    Accelerator,
    Capacity,
    EngineOptions,
    Evidence,
    FactsLookup,
    FieldProblem,
    InspectedConfig,
    Manifest,
    ObjectKey,
    Owner,
    Plan,
    ScalePlan,
    SpecPlan,
)
from atom_operator.domain.canary import Canary
from atom_operator.domain.devices import DevicePicture
from atom_operator.domain.origin import Default, Origin
from atom_operator.domain.profile import Profile
from atom_operator.integration_values import ANY_ENGINE, Site
from atom_operator.kinds import OPTIONAL_KINDS, Kind
from atom_operator.plan.accelerators import choose_accelerator
from atom_operator.plan.inventory import memory_per_device
from atom_operator.plan.model_facts import (
    facts_from_catalogue,
    facts_from_config,
    facts_from_text,
)
from atom_operator.plan.pair_pays import PairVerdict, judge_pair
from atom_operator.plan.plan import Findings, build_plan
from atom_operator.plan.resolve_integrations import first_replicas, resolve_integrations
from atom_operator.plan.spec_digest import spec_digest
from atom_operator.plan.tier_size import sized_tier
from atom_operator.validation.canary import canary_warnings
from atom_operator.validation.defaulting import locate_adapters, locate_model, resolve_options
from atom_operator.validation.disaggregation import name_problems, validate_transfer
from atom_operator.validation.encoders import validate_encoder
from atom_operator.validation.engine_arguments import argument_warnings
from atom_operator.validation.engine_limits import (
    validate_engine_features,
    validate_engine_runs,
    validate_experts,
    validate_image_memory,
    validate_kv_cache,
    validate_reproducible,
    validate_tier,
    validate_unknown_family,
)
from atom_operator.validation.fallbacks import fallback_warnings, validate_fallback
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import decode_pods, prefill_pods
from atom_operator.validation.rules import validate, validate_against_model
from atom_operator.validation.surroundings import validate_surroundings

_PREFILL = "spec.disaggregation.prefill"
_DEFAULT_IMAGE = "the operator's default image"
_INSPECTION = "the model's own config.json"


@dataclass(frozen=True, slots=True)
class ModelKnown:
    """Hold the knowledge of the model and of its engines beside the spec."""

    config_text: str | None = None  # the target of spec.model.configRef, if it exists
    inspected: InspectedConfig | None = None  # the result of an earlier inspection
    measured: Capacity | None = None  # by an engine of this AtomDeployment, if there is no plan
    learned: tuple[Evidence, ...] = ()  # the engines' measurements, ours first


@dataclass(frozen=True, slots=True)
class SpecLayers:
    """Hold the AtomProfile that has been laid below the spec, and the spec without it."""

    profile: Profile | None = None
    own: AtomDeploymentSpec | None = None
    default: Default | None = None  # the profile as a whole


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Hold the inputs of a plan beside the spec."""

    images: Mapping[
        Literal["amd", "cpu"], str
    ]  # the operator's default engine images, by accelerator type
    nodes: Iterable[Manifest] = ()  # of the cluster, as far as they can be read
    served: frozenset[Kind] | None = None  # of the optional kinds; None if no cluster is known
    devices: DevicePicture | None = None  # that claims are given, where the spec asks for one
    site: Site = field(default_factory=Site)
    known: ModelKnown = ModelKnown()
    layers: SpecLayers = SpecLayers()
    canary: Canary | None = None
    image_volumes: bool = True  # whether the API server takes them; asked if it matters


# An operator and a site that have everything: an error even there is the object's own fault.
ANYWHERE = Surroundings(images={"amd": "any", "cpu": "any"}, site=ANY_ENGINE)


# The site has judged the decode pods of prefill pods, which run the same model in the same image.
_JUDGED: Mapping[str, Any] = {
    "engine_architectures": ANY_ENGINE.engine_architectures,
    "engine_features": ANY_ENGINE.engine_features,
    "engine_tensor_parallel": ANY_ENGINE.engine_tensor_parallel,
}


def is_prefill_spec(spec: AtomDeploymentSpec) -> bool:
    """Return whether a spec is of prefill pods, which the operator writes."""
    return spec.disaggregation is not None and spec.disaggregation.prefill_for is not None


def wants_nodes(spec: AtomDeploymentSpec) -> bool:
    """Return whether nodes may know the device's memory better than the spec, or how much memory
    of theirs a tier of the KV cache may take."""
    kv, is_amd = spec.cache.kv, spec.accelerator.type == "amd"
    is_auto = kv is not None and kv.host_memory == AUTO_SIZE
    return is_amd and (spec.accelerator.memory is None or is_auto)


# Limits that another engine image may lift; sizes can be computed all the same.
_ENGINE_LIMITS = frozenset({Reason.MODEL_NOT_SUPPORTED, Reason.UNSUPPORTED_BY_ENGINE})


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """Hold the plan of the pods that compute prompts for others, and whether both pay."""

    prefill: Plan
    verdict: PairVerdict


@dataclass(frozen=True, slots=True)
class Considered:
    """Hold every problem of a spec, and its plan if only the engine is against it, or nothing.
    pair: None if prompts are not computed apart."""

    problems: tuple[FieldProblem, ...] = ()
    plan: Plan | None = None
    pair: PlannedPair | None = None


def plan_spec(
    owner: Owner, spec: AtomDeploymentSpec, around: Surroundings
) -> Plan | tuple[FieldProblem, ...]:
    """Return the plan of an accepted spec; otherwise every known problem."""
    considered = consider(owner, spec, around)
    if considered.problems or considered.plan is None:
        return considered.problems
    return considered.plan


def consider(owner: Owner, spec: AtomDeploymentSpec, around: Surroundings) -> Considered:
    """Resolve the spec's needs, whether or not this version's engine runs it."""
    asked, spec = spec, decode_pods(spec)
    image = spec.engine.image or around.images.get(spec.accelerator.type)
    if is_prefill_spec(spec):
        around = replace(around, site=replace(around.site, **_JUDGED))
    if image is not None and around.layers.profile is not None:
        around = replace(around, site=around.layers.profile.site_of(image, around.site))
    problems = [
        *name_problems(owner.key, spec),
        *validate(spec),
        *validate_surroundings(spec, around.served, around.site),
        *validate_engine_features(spec, around.site),
    ]
    if image is None:
        problems.append(_no_image(spec))
    lookup = _model_facts(spec, around)
    if isinstance(lookup, FieldProblem):
        problems.append(lookup)
        return Considered(tuple(problems))
    if image is None:
        return Considered(tuple(problems))
    options = _with_draft_facts(spec, resolve_options(spec, image=image))
    if isinstance(options, FieldProblem):
        return Considered((*problems, options))
    problems.extend(validate_engine_runs(_facts_field(spec), lookup.facts, around.site))
    problems.extend(validate_experts(options, lookup.facts, around.site))
    problems.extend(validate_kv_cache(options, lookup.facts))
    problems.extend(validate_reproducible(options, lookup.facts))
    problems.extend(validate_tier(options))
    problems.extend(validate_image_memory(options, choose_accelerator(spec.accelerator)))
    problems.extend(validate_transfer(options))
    problems.extend(validate_encoder(spec, options, lookup.facts))
    problems.extend(validate_fallback(options, lookup.facts))
    problems.extend(validate_against_model(options, lookup.facts))
    if any(problem.reason not in _ENGINE_LIMITS for problem in problems):
        return Considered(tuple(problems))
    plan = _plan(owner, asked, options, lookup, around)
    if found := template_problems(plan, around.site):
        return Considered((*problems, *found))
    prefill = prefill_plan(plan, around)
    if prefill is None:
        return Considered(tuple(problems), plan)
    problems.extend(_prefill_problems(prefill))
    if isinstance(prefill, tuple):
        return Considered(tuple(problems))
    traffic = asked.disaggregation.traffic if asked.disaggregation is not None else None
    verdict = judge_pair(plan, prefill, traffic)
    if verdict.pays is False:
        words = (*plan.spec.warnings, f"spec.disaggregation: {verdict.words}")
        plan = replace(plan, spec=replace(plan.spec, warnings=words))
    return Considered(tuple(problems), plan, PlannedPair(prefill, verdict))


def _prefill_problems(found: Plan | tuple[FieldProblem, ...]) -> Iterator[FieldProblem]:
    """Yield why the pods that compute prompts for others cannot be started."""
    if isinstance(found, tuple):
        for problem in found:
            yield FieldProblem(_PREFILL, f"makes {problem}", problem.reason)
    elif not found.capacity.may_start:
        words = f"its pods cannot start: {found.capacity.message}"
        yield FieldProblem(_PREFILL, words, found.capacity.reason)


def prefill_plan(plan: Plan, around: Surroundings) -> Plan | tuple[FieldProblem, ...] | None:
    """Return the plan of the pods that compute prompts for those of `plan`, or their problems; None
    if prompts are not computed apart."""
    wanted = prefill_pods(plan)
    if wanted is None:
        return None
    spec = parse_spec(wanted)
    if isinstance(spec, tuple):
        return spec
    key = ObjectKey(plan.identity.key.namespace, prefill_name(plan.identity.key))
    known = ModelKnown(inspected=around.known.inspected, learned=around.known.learned)
    layers = SpecLayers(plan.pods.profile)
    beside = replace(around, known=known, layers=layers, canary=None)
    return plan_spec(Owner(key, ""), spec, beside)


def _plan(
    owner: Owner,
    spec: AtomDeploymentSpec,
    options: EngineOptions,
    lookup: FactsLookup,
    around: Surroundings,
) -> Plan:
    asked, spec = spec, decode_pods(spec)
    chosen = choose_accelerator(spec.accelerator)
    options = sized_tier(options, around.nodes, chosen)
    memory = _memory_of_devices(chosen, around) if wants_nodes(spec) else ()
    findings = Findings(lookup, memory, around.site, around.known.learned)
    plan = build_plan(
        owner, spec, options, locate_model(spec, image_volumes=around.image_volumes), findings
    )
    capacity = plan.capacity.capacity or around.known.measured
    served = frozenset(OPTIONAL_KINDS) if around.served is None else around.served
    inspected, profile = None if lookup.pinned else around.known.inspected, around.layers.profile
    found = replace(
        plan,
        spec=SpecPlan(
            digest=spec_digest(spec, options.serving.image, around.known.config_text, profile),
            asked=asked.model_dump(mode="json", by_alias=True, exclude_unset=True),
            default_image=options.serving.image if spec.engine.image is None else None,
            origin=_origin(spec, options.serving.image, around),
            warnings=plan.spec.warnings,
        ),
        model=replace(plan.model, inspected=inspected, adapters=locate_adapters(spec)),
        pods=replace(plan.pods, profile=profile),
        scale=ScalePlan(first_replicas(spec), suspended=bool(spec.suspend)),
        integrations=resolve_integrations(spec, options, capacity, served, around.site),
        canary=around.canary,
    )
    told = (*argument_warnings(spec, partial(engine_line, found)), *canary_warnings(spec))
    told = (*told, *fallback_warnings(lookup.facts))
    return replace(found, spec=replace(found.spec, warnings=(*found.spec.warnings, *told)))


def _origin(spec: AtomDeploymentSpec, image: str, around: Surroundings) -> Origin:
    """Separate the object's own request for its pods from defaults of many."""
    own = decode_pods(around.layers.own or spec)
    digest = spec_digest(own, own.engine.image or "", around.known.config_text)
    defaults = [] if around.layers.default is None else [around.layers.default]
    if spec.engine.image is None:
        defaults.append(Default(_DEFAULT_IMAGE, image))
    return Origin(f"{digest}@{own.profile or ''}", tuple(defaults))


def plan_in_force(
    owner: Owner, spec: AtomDeploymentSpec, image: str, around: Surroundings
) -> Plan | None:
    """Return the plan of a spec that was accepted before, despite later objections: `image` runs,
    so it can be run. None if its options cannot be resolved."""
    lookup = _model_facts(spec, around)
    if isinstance(lookup, FieldProblem):
        lookup = FactsLookup(None, lookup.reason, lookup.message)
    pods = decode_pods(spec)
    options = _with_draft_facts(pods, resolve_options(pods, image=image))
    if isinstance(options, FieldProblem):
        return None
    return _plan(owner, spec, options, lookup, around)


def canary_plan_problems(key: ObjectKey, wanted: Mapping[str, Any]) -> tuple[FieldProblem, ...]:
    """Return the problems of a canary's own spec that it has in every cluster and at every site;
    `key` names the AtomDeployment that has the canary."""
    spec = parse_spec(wanted)
    found = spec if isinstance(spec, tuple) else plan_spec(Owner(key, ""), spec, ANYWHERE)
    return tuple(
        FieldProblem("spec.canary.change", f"makes {problem}", problem.reason)
        for problem in (found if isinstance(found, tuple) else ())
    )


def model_key(spec: AtomDeploymentSpec) -> str:
    """Return source and revision: the key of an inspection."""
    return f"{spec.model.source}@{spec.model.revision or ''}"


def _model_facts(spec: AtomDeploymentSpec, around: Surroundings) -> FactsLookup | FieldProblem:
    place = _facts_field(spec)
    try:
        return _read_facts(spec, around)
    except UnknownFamilyError as error:
        return validate_unknown_family(place, error, around.site)
    except ModelFactsError as error:
        return FieldProblem(place, str(error), Reason.MODEL_NOT_SUPPORTED)
    except ValueError as error:
        return FieldProblem(place, str(error))


def _with_draft_facts(
    spec: AtomDeploymentSpec, options: EngineOptions
) -> EngineOptions | FieldProblem:
    """Add the shape of the draft model, where the spec or the catalogue has it."""
    asked = spec.engine.speculative
    if asked is None or asked.draft_model is None:
        return options
    place = "spec.engine.speculative.draftConfig"
    if asked.draft_config is None:
        facts = facts_from_catalogue(asked.draft_model).facts
    else:
        try:
            facts = facts_from_config(asked.draft_config, place).facts
        except ModelFactsError as error:
            return FieldProblem(place, str(error))
    return replace(options, speculative=replace(options.speculative, facts=facts))


def _facts_field(spec: AtomDeploymentSpec) -> str:
    """Return the field that leads to the model's config.json."""
    if spec.model.config is not None:
        return "spec.model.config"
    return "spec.model.source" if spec.model.config_ref is None else "spec.model.configRef"


def _read_facts(spec: AtomDeploymentSpec, around: Surroundings) -> FactsLookup:
    """Raises ModelFactsError, or ValueError for a text that is no JSON object."""
    reference = spec.model.config_ref
    if spec.model.config is not None:
        return facts_from_config(spec.model.config, "spec.model.config")
    if reference is None:
        known = facts_from_catalogue(spec.model.source)
        if known.facts is not None or not _is_of(around.known.inspected, spec):
            return known
        return replace(facts_from_text(around.known.inspected.text, _INSPECTION), pinned=False)
    origin = f"ConfigMap {reference.name}, key {reference.key}"
    if around.known.config_text is None:
        message = f"{origin} does not exist, so nothing was planned; create it"
        return FactsLookup(None, Reason.MODEL_CONFIG_NOT_FOUND, message)
    return facts_from_text(around.known.config_text, origin)


def _is_of(
    inspected: InspectedConfig | None, spec: AtomDeploymentSpec
) -> TypeGuard[InspectedConfig]:
    return inspected is not None and inspected.model == model_key(spec)


def _memory_of_devices(asked: Accelerator, around: Surroundings) -> tuple[int, ...]:
    if asked.claim is not None:
        return around.devices.memory_bytes(asked.claim) if around.devices is not None else ()
    return memory_per_device(around.nodes, str(asked.resource_name), asked.device_ids)


def _no_image(spec: AtomDeploymentSpec) -> FieldProblem:
    kind = spec.accelerator.type
    return FieldProblem(
        "spec.engine.image",
        f"the operator has no default image for accelerator type {kind}: set it here, or "
        f"defaultEngineImages.{kind} in the operator's chart",
        Reason.NO_ENGINE_IMAGE,
    )
