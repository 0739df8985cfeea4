"""The one level-based function: read, decide, apply, observe, report.

The same for a created, changed, resumed or drifted AtomDeployment: it looks at what is there now
and never at what happened. Takes the cluster and the clock as parameters; knows no kopf. Called by
the work queue; a crash anywhere in it is repaired by the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from atom_operator.cluster.apply import apply_children
from atom_operator.cluster.observe import describe, observe
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    ApplyReport,
    ChildKey,
    FactsLookup,
    FieldProblem,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
)
from atom_operator.plan.model_facts import (
    facts_from_catalogue,
    facts_from_config,
    facts_from_text,
)
from atom_operator.plan.plan import build_plan
from atom_operator.settings import OperatorSettings
from atom_operator.status.rollup import Situation, roll_up

_logger = logging.getLogger(__name__)
# Nothing announces that a quota was raised, a conflicting object deleted or a ConfigMap of the
# user's created: look again after a while.
_LOOK_AGAIN_SECONDS = 30.0


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


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one AtomDeployment at a time to what its spec says."""

    port: ClusterPort
    settings: OperatorSettings
    clock: Callable[[], datetime]

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ClusterError when the cluster did not let it finish."""
        parent = await self.port.get(ATOM_DEPLOYMENT, key.namespace, key.name)
        if parent is None or parent["metadata"].get("deletionTimestamp"):
            return Outcome()  # garbage collection removes the children through their owner
        decision = await self._decide(key, parent)
        uid = parent["metadata"]["uid"]
        observed = await observe(self.port, key, uid)
        report, observed = await self._carry_out(key, decision, observed)
        await self._report(key, parent, decision, report, observed)
        return Outcome(_LOOK_AGAIN_SECONDS if _may_change_silently(decision, report) else None)

    async def _decide(self, key: ObjectKey, parent: Manifest) -> Decision:
        spec = parse_spec(parent.get("spec") or {})
        if isinstance(spec, tuple):
            return Decision(problems=spec)
        problems = list(validate(spec))
        image = spec.engine.image or self.settings.engine_images.get(spec.accelerator.type)
        if image is None:
            problems.append(_no_image(spec))
        lookup, unusable = await self._model_facts(key, spec)
        problems.extend(unusable)
        if problems or lookup is None or image is None:
            return Decision(problems=tuple(problems))
        options = resolve_options(spec, image=image)
        if problems := list(validate_against_model(options, lookup.facts)):
            return Decision(problems=tuple(problems))
        owner = Owner(key, parent["metadata"]["uid"])
        return _rendered(build_plan(owner, spec, options, locate_model(spec), lookup))

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
        )
        previous: Mapping[str, Any] = parent.get("status") or {}
        status = roll_up(situation, previous, self.clock())
        if status != previous:
            await self.port.apply_status(key, status)
            ready = status["conditions"][-1]
            _logger.info(
                "%s/%s: Ready=%s %s: %s", *key, ready["status"], ready["reason"], ready["message"]
            )


def _rendered(plan: Plan) -> Decision:
    """The children of a plan; none of them when it is sure not to fit."""
    overlay = overlay_paths(plan.template or {})
    if not plan.may_start:
        return Decision(plan=plan, overlay=overlay)
    try:
        return Decision(plan=plan, desired=render(plan), overlay=overlay)
    except OverlayError as error:
        return Decision(problems=(FieldProblem("spec.template", str(error)),))


def _no_image(spec: AtomDeploymentSpec) -> FieldProblem:
    kind = spec.accelerator.type
    return FieldProblem(
        "spec.engine.image",
        f"the operator has no default image for accelerator type {kind}: set it here, or "
        f"defaultEngineImages.{kind} in the operator's chart",
        Reason.NO_ENGINE_IMAGE,
    )


def _may_change_silently(decision: Decision, report: ApplyReport) -> bool:
    waits_for_config = (
        decision.plan is not None and decision.plan.capacity.reason is Reason.MODEL_CONFIG_NOT_FOUND
    )
    return bool(report.refused) or waits_for_config
