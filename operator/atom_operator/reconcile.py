"""The one level-based function: read, decide, apply, observe, report.

The same for a created, changed, resumed or drifted AtomDeployment: it looks at what is there now
and never at what happened. Takes the cluster and the clock as parameters; knows no kopf. Called by
the work queue; a crash anywhere in it is repaired by the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from atom.sizing import ModelFactsError
from atom_operator.admission.defaulting import locate_model, resolve_options
from atom_operator.admission.parsing import parse_spec
from atom_operator.admission.validation import validate, validate_against_model
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children import naming
from atom_operator.children.overlay import OverlayError, overlay_paths
from atom_operator.children.render import render
from atom_operator.children.workload import pod_template, template_revision
from atom_operator.cluster.apply import apply_children
from atom_operator.cluster.engines import EnginePort, ask_engines
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.observe import describe, observe
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    EVENT,
    ApplyReport,
    ChildKey,
    EngineView,
    FactsLookup,
    FieldProblem,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    Supply,
)
from atom_operator.plan.accelerators import choose_accelerator
from atom_operator.plan.inventory import memory_per_device, shortage, survey
from atom_operator.plan.model_facts import (
    facts_from_catalogue,
    facts_from_config,
    facts_from_text,
)
from atom_operator.plan.plan import build_plan
from atom_operator.plan.rollout import RolloutQuestion, choose_rollout, needs_supply
from atom_operator.settings import OperatorSettings
from atom_operator.status.capacity import measured_before
from atom_operator.status.events import event, event_name, happenings
from atom_operator.status.rollup import Situation, roll_up

_logger = logging.getLogger(__name__)
# Nothing announces that a quota was raised, a conflicting object deleted, a ConfigMap of the user's
# created or a node's device freed: look again after a while.
_LOOK_AGAIN_SECONDS = 30.0
# A loading engine tells how far it is only when it is asked.
_LOADING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the queue needs to know: when to look again without an event."""

    requeue_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What should be: a plan and its children, or the problems of the spec."""

    problems: tuple[FieldProblem, ...] = ()
    plan: Plan | None = None
    desired: Mapping[ChildKey, Manifest] | None = None
    overlay: tuple[str, ...] = ()
    supply: Supply | None = None  # read only when something depended on it


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one AtomDeployment at a time to what its spec says."""

    port: ClusterPort
    fleet: FleetReader
    engines: EnginePort
    settings: OperatorSettings
    clock: Callable[[], datetime]

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ClusterError when the cluster did not let it finish."""
        parent = await self.port.get(ATOM_DEPLOYMENT, key.namespace, key.name)
        if parent is None or parent["metadata"].get("deletionTimestamp"):
            return Outcome()  # garbage collection removes the children through their owner
        observed = await observe(self.port, key, parent["metadata"]["uid"])
        decision = await self._decide(key, parent, observed)
        report, observed = await self._carry_out(key, decision, observed)
        known = measured_before(parent.get("status") or {})
        engines = await ask_engines(self.engines, observed, known)
        await self._report(key, parent, decision, report, observed, engines)
        return Outcome(_look_again(decision, report, observed, engines))

    async def _decide(self, key: ObjectKey, parent: Manifest, observed: Observed) -> Decision:
        spec = parse_spec(parent.get("spec") or {})
        if isinstance(spec, tuple):
            return Decision(problems=spec)
        problems = list(validate(spec))
        image = spec.engine.image or self.settings.engine_images.get(spec.accelerator.type)
        if image is None:
            problems.append(_no_image(spec))
        lookup, unusable = await self._model_facts(key, spec)
        problems.extend(unusable)
        if lookup is None or image is None:
            return Decision(problems=tuple(problems))
        options = resolve_options(spec, image=image)
        problems.extend(validate_against_model(options, lookup.facts))
        if problems:
            return Decision(problems=tuple(problems))
        owner = Owner(key, parent["metadata"]["uid"])
        memory = await self._memory_on_nodes(spec)
        plan = build_plan(owner, spec, options, locate_model(spec), lookup, memory)
        return await self._render(plan, spec.rollout.strategy or "Auto", observed)

    async def _memory_on_nodes(self, spec: AtomDeploymentSpec) -> tuple[int, ...]:
        """Memory sizes of the asked devices in the cluster; none when the spec settles it."""
        if spec.accelerator.type == "cpu" or spec.accelerator.memory is not None:
            return ()
        asked = choose_accelerator(spec.accelerator)
        nodes = await self.fleet.nodes()
        return memory_per_device(nodes or (), str(asked.resource_name), asked.device_ids)

    async def _render(self, plan: Plan, asked: str, observed: Observed) -> Decision:
        """The children of a plan, its rollout chosen; none when it is sure not to fit."""
        overlay = overlay_paths(plan.template or {})
        if not plan.may_start:
            return Decision(plan=plan, overlay=overlay)
        try:
            template = pod_template(plan)
        except OverlayError as error:
            return Decision(problems=(FieldProblem("spec.template", str(error)),))
        question = RolloutQuestion(
            asked=asked,
            accelerator=plan.accelerator,
            revision=template_revision(template),
            running=observed.deployment,
            unschedulable=_is_stuck(observed),
            supply=None,
        )
        if needs_supply(question) or question.unschedulable:
            question = replace(question, supply=await self._supply(plan, template["spec"]))
        plan = replace(plan, rollout=choose_rollout(question))
        return Decision(plan=plan, desired=render(plan), overlay=overlay, supply=question.supply)

    async def _supply(self, plan: Plan, pod_spec: Mapping[str, Any]) -> Supply | None:
        resource = plan.accelerator.resource_name
        if resource is None:
            return None
        nodes, pods = await self.fleet.nodes(), await self.fleet.pods()
        if nodes is None or pods is None:
            return None
        return survey(nodes, pods, plan.key, resource, pod_spec)

    async def _model_facts(
        self, key: ObjectKey, spec: AtomDeploymentSpec
    ) -> tuple[FactsLookup | None, tuple[FieldProblem, ...]]:
        reference, field = spec.model.config_ref, "spec.model.config"
        try:
            if spec.model.config is not None:
                return facts_from_config(spec.model.config, field), ()
            if reference is None:
                return facts_from_catalogue(spec.model.source), ()
            field = "spec.model.configRef"
            found = await self.port.get(CONFIG_MAP, key.namespace, reference.name)
            text = ((found or {}).get("data") or {}).get(reference.key)
            origin = f"ConfigMap {reference.name}, key {reference.key}"
            if text is None:
                message = f"{origin} does not exist, so nothing was planned; create it"
                return FactsLookup(None, Reason.MODEL_CONFIG_NOT_FOUND, message), ()
            return facts_from_text(text, origin), ()
        except ModelFactsError as error:
            return None, (FieldProblem(field, str(error), Reason.MODEL_NOT_SUPPORTED),)
        except ValueError as error:
            return None, (FieldProblem(field, str(error)),)

    async def _carry_out(
        self, key: ObjectKey, decision: Decision, observed: Observed
    ) -> tuple[ApplyReport, Observed]:
        if decision.desired is None:
            return ApplyReport(), observed
        report, children = await apply_children(self.port, key, decision.desired, observed.children)
        return report, describe(children, observed.pods)

    async def _report(
        self,
        key: ObjectKey,
        parent: Manifest,
        decision: Decision,
        report: ApplyReport,
        observed: Observed,
        engines: EngineView,
    ) -> None:
        """One write, and none when nothing changed."""
        situation = Situation(
            generation=parent["metadata"].get("generation", 1),
            problems=decision.problems,
            overlay=decision.overlay,
            plan=decision.plan,
            report=report,
            observed=observed,
            selector=",".join(f"{k}={v}" for k, v in naming.selector_labels(key.name).items()),
            url=naming.service_url(key),
            engines=engines,
            shortage=shortage(decision.supply) if decision.supply else None,
        )
        previous: Mapping[str, Any] = parent.get("status") or {}
        status = roll_up(situation, previous, self.clock())
        if status != previous:
            await self.port.apply_status(key, status)
            ready = status["conditions"][-1]
            _logger.info(
                "%s/%s: Ready=%s %s: %s", *key, ready["status"], ready["reason"], ready["message"]
            )
            await self._announce(Owner(key, parent["metadata"]["uid"]), previous, status)

    async def _announce(
        self, owner: Owner, previous: Mapping[str, Any], status: Mapping[str, Any]
    ) -> None:
        """Events for the conditions that flipped; losing one is not worth a failed reconcile."""
        for happening in happenings(previous.get("conditions") or (), status["conditions"]):
            name = event_name(owner, happening)
            try:
                existing = await self.port.get(EVENT, owner.key.namespace, name)
                await self.port.apply(EVENT, event(owner, happening, existing, self.clock()))
            except ClusterError as error:
                _logger.warning("event %s of %s/%s: %s", happening.reason, *owner.key, error)


def _no_image(spec: AtomDeploymentSpec) -> FieldProblem:
    kind = spec.accelerator.type
    return FieldProblem(
        "spec.engine.image",
        f"the operator has no default image for accelerator type {kind}: set it here, or "
        f"defaultEngineImages.{kind} in the operator's chart",
        Reason.NO_ENGINE_IMAGE,
    )


def _is_stuck(observed: Observed) -> bool:
    return any(pod.unschedulable_message for pod in observed.pods)


def _look_again(
    decision: Decision, report: ApplyReport, observed: Observed, engines: EngineView
) -> float | None:
    """Seconds until the next look at what no event announces."""
    if any(not pod.ready and pod.address for pod in observed.pods):
        return _LOADING_SECONDS
    waits_for_config = (
        decision.plan is not None and decision.plan.capacity.reason is Reason.MODEL_CONFIG_NOT_FOUND
    )
    unmeasured = engines.measured is None and any(
        pod.ready and pod.address for pod in observed.pods
    )
    waits = bool(report.refused) or waits_for_config or _is_stuck(observed) or unmeasured
    return _LOOK_AGAIN_SECONDS if waits else None
