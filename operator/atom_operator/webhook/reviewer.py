"""Reviewer: one AtomDeployment under admission → a verdict, in time and whatever happens.

Decides by the reconciler's own Decider, so that the warnings match the operator's actions. It
refuses only faults of the object alone, and never those that depend on other objects, on nodes or
on the operator's settings: those become warnings here and conditions later. An error of ours or of
the cluster lets the object pass. Called by the webhook's server, in every replica.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from atom_operator.canary_spec import canary_spec, change_problems
from atom_operator.children.naming import prefill_name
from atom_operator.children.workload import pod_template
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.observe import observe
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import ANNOTATION_REVISION, PROFILE_KIND, Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ChildKey,
    EngineView,
    FieldProblem,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    Supply,
    runs_engines,
)
from atom_operator.kinds import Kind
from atom_operator.preview import Preview, essentials, everything
from atom_operator.reconcile.decider import Decider, Decision
from atom_operator.reconcile.known_plans import KnownPlans
from atom_operator.reconcile.planning import (
    ANYWHERE,
    Surroundings,
    canary_plan_problems,
    consider,
    plan_spec,
)
from atom_operator.reconcile.profiles.find_profile import optional_kinds
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import prefill_pods
from atom_operator.webhook.admission_review import ReviewRequest, Verdict
from atom_operator.webhook.profile_reviewer import ProfileReviewer

_logger = logging.getLogger(__name__)
# kubectl waits for us: the answer comes within a second, complete or not.
ANSWER_SECONDS = 0.7
# Reads that came too late still fill the caches for the next review; more would only pile up.
_LATE_READS = 4


class Reviewer:
    """Reviews AtomDeployments and AtomProfiles; `decider` is the reconciler's."""

    def __init__(
        self, port: ClusterPort, decider: Decider, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._port = port
        self._decider = decider
        self._answer_seconds = answer_seconds
        self._profiles = ProfileReviewer(port, decider.settings, answer_seconds=answer_seconds)
        self._late: set[asyncio.Task[Preview]] = set()

    async def review(self, request: ReviewRequest) -> Verdict:
        """Review an object. Never raises for errors of the cluster."""
        if not request.changes_spec or request.new["metadata"].get("deletionTimestamp"):
            return Verdict()
        if request.kind == PROFILE_KIND:
            return await self._profiles.review(request)
        faults = faults_of(request.key, request.new)
        stored = faults_of(request.key, request.old) if request.old else ()
        # What is wrong already may stay, or no user could change anything else in the object.
        fresh = [fault for fault in faults if fault not in stored]
        if fresh:
            return Verdict(refusal="; ".join(map(str, fresh)))
        preview, late = await self._preview(request)
        if unshareable := _claim_of_canary(request, preview):
            return Verdict(refusal=str(unshareable))
        return Verdict((*late, *(everything if request.dry_run else essentials)(preview)))

    async def close(self) -> None:
        """Drop the reads that no review waits for any more."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _preview(self, request: ReviewRequest) -> tuple[Preview, tuple[str, ...]]:
        """Preview the decision, with a note on its gaps if the cluster did not answer."""
        reading = asyncio.create_task(self._look(request))
        try:
            done, _ = await asyncio.wait([reading], timeout=self._answer_seconds)
        except asyncio.CancelledError:
            reading.cancel()
            raise
        if done:
            try:
                return reading.result(), ()
            except ClusterError as error:
                _logger.warning("review of %s/%s: %s", *request.key, error)
        else:
            self._let_finish(reading)
        settings = self._decider.settings
        around = Surroundings(settings.engine_images, site=settings.site)
        alone = Preview(_alone(request.key, request.new, around))
        return alone, ("the cluster did not answer in time: nodes are not considered",)

    def _let_finish(self, reading: asyncio.Task[Preview]) -> None:
        if len(self._late) >= _LATE_READS:
            reading.cancel()
            return
        self._late.add(reading)
        reading.add_done_callback(self._finished)

    def _finished(self, reading: asyncio.Task[Preview]) -> None:
        self._late.discard(reading)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            _logger.warning("a review that came too late: %s", error)

    async def _look(self, request: ReviewRequest) -> Preview:
        key, uid = request.key, str(request.new["metadata"].get("uid") or "")
        # What runs may be of a kind that only the stored object asks for.
        kinds: set[Kind] = set()
        for manifest in (request.new, request.old or {}):
            raw, settings = manifest.get("spec") or {}, self._decider.settings
            kinds |= await optional_kinds(self._port, key.namespace, raw, settings)
        observed = await observe(self._port, key, uid, tuple(kinds))
        decision = await self._decide(key, request.new, observed)
        if decision.plan is None:
            return Preview(decision.problems, elsewhere=self._elsewhere(key, request.new))
        before = await self._decide(key, request.old, observed) if request.old else None
        canary = await self._look_at_canary(key, request.new, decision)
        prefill = await self._look_at_prefill(decision.plan, observed)
        return Preview(
            after=decision.plan,
            before=before.plan if before else None,
            revision=_revision(decision),
            running=observed.deployment,
            supply=await self._supply(decision, decision.plan),
            waiting=decision.waiting.message if decision.waiting else None,
            canary=canary,
            prefill=prefill,
            follows=decision.waits.words if decision.waits and decision.waits.is_pair else None,
        )

    async def _look_at_canary(
        self, key: ObjectKey, new: Manifest, decision: Decision
    ) -> Preview | None:
        """Preview a canary that is asked for, which is one like any other, at its largest share."""
        asked = decision.canary.canary if decision.canary else None
        raw = new.get("spec") or {}
        spec = parse_spec(raw)
        if asked is None or asked.spec is None or isinstance(spec, tuple) or spec.canary is None:
            return None
        name = ObjectKey(key.namespace, asked.name)
        wanted = canary_spec(raw, spec)
        manifest: Manifest = {"metadata": {**name._asdict(), "uid": ""}, "spec": wanted}
        found = await self._decide(name, manifest, Observed({}, None, ()))
        if found.plan is None:
            return Preview(found.problems)
        return Preview(found.plan, supply=await self._supply(found, found.plan))

    async def _look_at_prefill(self, plan: Plan, observed: Observed) -> Preview | None:
        """Preview the pods that compute prompts for those of `plan`."""
        wanted = prefill_pods(plan)
        if wanted is None:
            return None
        key = ObjectKey(plan.identity.key.namespace, prefill_name(plan.identity.key))
        child = observed.children.get(ChildKey(ATOM_DEPLOYMENT, key.name))
        uid = str(child["metadata"].get("uid") or "") if child is not None else ""
        seen = Observed({}, None, ())
        if child is not None:
            kinds = await optional_kinds(self._port, key.namespace, wanted, self._decider.settings)
            seen = await observe(self._port, key, uid, tuple(kinds))
        manifest: Manifest = {"metadata": {**key._asdict(), "uid": uid}, "spec": wanted}
        found = await self._decide(key, manifest, seen)
        if found.plan is None:
            return Preview(found.problems)
        before = await self._decide(key, child, seen) if child is not None else None
        return Preview(
            after=found.plan,
            before=before.plan if before is not None else None,
            revision=_revision(found),
            running=seen.deployment,
            supply=await self._supply(found, found.plan),
        )

    async def _supply(self, decision: Decision, plan: Plan) -> Supply | None:
        """Return the nodes' supply for the pods of `plan`; read if the decision did not need it."""
        if decision.supply is not None or not plan.capacity.may_start:
            return decision.supply
        return await self._decider.supply(plan, pod_template(plan))

    def _elsewhere(self, key: ObjectKey, manifest: Manifest) -> Plan | None:
        """Return the plan that only this site's engines do not run, from the object itself."""
        spec = parse_spec(manifest.get("spec") or {})
        if isinstance(spec, tuple):
            return None
        settings = self._decider.settings
        around = Surroundings(settings.engine_images, site=settings.site)
        return consider(Owner(key, ""), spec, around).plan

    async def _decide(self, key: ObjectKey, manifest: Manifest, observed: Observed) -> Decision:
        # A reviewed object may never be stored, so that no reconcile would forget its plans.
        decider = replace(self._decider, plans=KnownPlans())
        return await decider.decide(key, _with_uid(manifest), observed, EngineView())


def faults_of(key: ObjectKey, manifest: Manifest) -> tuple[FieldProblem, ...]:
    """Return the faults of the object itself, independent of its surroundings.

    A spec that this version cannot parse is not one: the CRD may be newer than this replica.
    """
    spec = parse_spec(manifest.get("spec") or {})
    if isinstance(spec, tuple):
        return ()
    result = _alone(key, manifest, ANYWHERE)
    faults = result if isinstance(result, tuple) else ()
    if spec.canary is None:
        return faults
    raw = manifest.get("spec") or {}
    wanted = canary_spec(raw, spec)
    of_canary = change_problems(key, spec, wanted)
    if faults or of_canary:
        return tuple(dict.fromkeys((*faults, *of_canary)))
    return canary_plan_problems(key, wanted)


def _claim_of_canary(request: ReviewRequest, preview: Preview) -> FieldProblem | None:
    """Return why a new canary cannot mount the other pods' claims. One that is stored already may
    stay, or no user could change another field of the object."""
    before = ((request.old or {}).get("spec") or {}).get("canary")
    if before == (request.new.get("spec") or {}).get("canary"):
        return None
    found = preview.after if isinstance(preview.after, tuple) else ()
    of_claims = (each for each in found if each.reason is Reason.CLAIM_NOT_SHAREABLE)
    return next((each for each in of_claims if each.field == "spec.canary"), None)


def _alone(
    key: ObjectKey, manifest: Manifest, around: Surroundings
) -> Plan | tuple[FieldProblem, ...]:
    """Return the plan from the object itself, without a look at the cluster."""
    spec = parse_spec(manifest.get("spec") or {})
    if isinstance(spec, tuple):
        return spec
    return plan_spec(Owner(key, ""), spec, around)


def _with_uid(manifest: Manifest) -> Manifest:
    """Add a uid, which a dry run of a creation may lack."""
    metadata: dict[str, Any] = {"uid": "", **manifest["metadata"]}
    return {**manifest, "metadata": metadata}


def _revision(decision: Decision) -> str | None:
    """Find the revision of the pods that the decision would run."""
    for child, manifest in (decision.desired or {}).items():
        if runs_engines(child, manifest):
            return (manifest["metadata"].get("annotations") or {}).get(ANNOTATION_REVISION)
    return None
