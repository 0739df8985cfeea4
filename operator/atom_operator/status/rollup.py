"""The whole status from the decision, the applied and the observed state. Pure; called once per
reconcile.

Ready is the summary: the latest spec is accepted, it is rolled out completely or its rollout waits
for its time, and every replica serves. Available reports whether any pod serves at all, whatever
its revision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain.profile import Profile
from atom_operator.status.adapters import adapter_status, adapters_ready, without_adapters
from atom_operator.status.bounds import bounded
from atom_operator.status.by_hand import edited, paused, scaled_to_zero
from atom_operator.status.canary import canary_progressing, canary_status
from atom_operator.status.capacity import capacity_matched, capacity_status
from atom_operator.status.conditions import Verdict, stamp
from atom_operator.status.devices_healthy import devices_verdict
from atom_operator.status.inputs import StatusInputs
from atom_operator.status.integrations_ready import (
    callers_meet,
    capacity_limited,
    integrations_ready,
)
from atom_operator.status.kstatus import kstatus_verdicts
from atom_operator.status.loading import model_loaded
from atom_operator.status.pods.ended_pods import ended_verdict
from atom_operator.status.pods.failing_pods import failing_verdict
from atom_operator.status.pods.scheduled import scheduled
from atom_operator.status.pods.silent_nodes import silent_verdict
from atom_operator.status.preparing import model_not_there, waits
from atom_operator.status.roles.role_conditions import (
    pair_progress,
    pair_status,
    pair_verdicts,
    prefill_pods_that_end,
)
from atom_operator.status.sleep import sleep_status
from atom_operator.status.slo.slo_met import slo_met
from atom_operator.status.slo.steps_as_predicted import steps_as_predicted
from atom_operator.status.slo.steps_status import steps_status
from atom_operator.status.speculation import speculation_status
from atom_operator.status.steady import steady
from atom_operator.status.suspended import suspended_verdict

_TRY_AGAIN = (
    "A change of the spec is tried again; to try the same pods, set an annotation in "
    "spec.template.metadata.annotations"
)

_KEPT = (
    ", rendered by another version of the operator; the next change of the spec that concerns "
    "pods renders them anew"
)


def roll_up(situation: StatusInputs, previous: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Build the status to write; unknown fields are absent."""
    deployment = situation.deployment
    told = list(_told(list(_verdicts(situation)), situation, previous))
    status: dict[str, Any] = {
        "observedGeneration": situation.subject.generation,
        "replicas": deployment.replicas,
        "readyReplicas": deployment.ready,
        "serving": f"{deployment.ready}/{deployment.desired}",
        "selector": situation.subject.selector,
        "conditions": stamp(
            told, previous.get("conditions") or (), situation.subject.generation, now
        ),
    }
    if situation.observed.deployment is not None:
        status["url"] = situation.subject.url
    if deployment.revision:
        status["revision"] = deployment.revision
    if deployment.notes.rollout is not None:
        status["rollout"] = {
            "strategy": deployment.notes.rollout.strategy.value,
            "reason": deployment.notes.rollout.reason,
            "updated": deployment.updated,
            "ready": deployment.ready,
        }
        if deployment.notes.rollback is not None:
            status["rollout"]["failedRevision"] = deployment.notes.rollback.failed
        if ending := prefill_pods_that_end(situation, now):
            status["rollout"]["ending"] = ending
        if waits := situation.rollout_waits or situation.defaults_wait:
            status["rollout"]["waits"] = waits
    capacity = capacity_status(situation.capacity_in_force, situation.engines.measured)
    if capacity is not None:
        status["capacity"] = capacity
    return bounded(status | _of_features(situation, previous))


def _of_features(situation: StatusInputs, previous: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the features that the spec asks for, each absent without it."""
    status: dict[str, Any] = {}
    if situation.plan is not None and situation.plan.model.adapters:
        status["adapters"] = adapter_status(situation.plan.model.adapters, situation.engines)
    if situation.plan is None and "canary" in previous:
        status["canary"] = previous["canary"]  # it stays as it is while the spec is refused
    elif situation.canary is not None:
        status["canary"] = canary_status(situation.canary)
    if (pair := pair_status(situation)) is not None:
        status["disaggregation"] = pair
    speculation = speculation_status(
        situation.engines.drafts, situation.deployment.revision, previous
    )
    if speculation is not None:
        status["speculation"] = speculation
    latencies, revision = situation.engines.latencies, situation.deployment.revision
    if (steps := steps_status(latencies, revision, previous)) is not None:
        status["steps"] = steps
    serving = situation.serving
    sleep = sleep_status(situation.engines.sleep, serving.engine if serving else None, previous)
    if sleep is not None:
        status["sleep"] = sleep
    return status


def _verdicts(situation: StatusInputs) -> Iterator[Verdict]:
    yield from (
        _accepted(situation),
        Verdict(
            ConditionType.CAPACITY_FITS,
            situation.capacity.fits,
            situation.capacity.reason,
            situation.capacity.message,
        ),
        scheduled(situation),
        _model_loaded(situation),
        capacity_matched(situation.capacity_in_force.capacity, situation.engines.measured),
        _progressing(situation),
        _available(situation),
        _degraded(situation),
    )
    # Conditions of features that the spec does not ask for are absent.
    asked_for = (
        capacity_limited(situation.run),
        integrations_ready(
            situation.serving,
            situation.report,
            situation.observed.children,
            situation.surveyed.routes,
        ),
        _adapters(situation),
        canary_progressing(situation.canary, situation.report),
        slo_met(situation.plan, situation.serving, situation.engines),
        steps_as_predicted(situation.serving, situation.engines),
        devices_verdict(situation.surveyed.devices),
        suspended_verdict(situation.observed, asked=situation.subject.suspended),
        *pair_verdicts(situation),
    )
    yield from (verdict for verdict in asked_for if verdict is not None)


def _told(
    verdicts: Sequence[Verdict], situation: StatusInputs, previous: Mapping[str, Any]
) -> Iterator[Verdict]:
    """Yield the verdicts to report, Ready last."""
    told = steady(verdicts, situation.observed, previous)
    yield from told
    known = {verdict.type: verdict for verdict in told}
    ready = _ready(situation, known)
    suspended = known.get(ConditionType.SUSPENDED)
    yield from kstatus_verdicts(ready, known[ConditionType.PROGRESSING], suspended)
    yield ready


def _adapters(situation: StatusInputs) -> Verdict | None:
    asked, serving = situation.plan, situation.serving
    if (
        asked is not None
        and asked.model.adapters
        and serving is not None
        and serving.engine.lora is None
    ):
        return without_adapters(situation.waits)
    adapters = asked.model.adapters if asked is not None else ()
    return adapters_ready(adapters, situation.observed, situation.engines)


def _model_loaded(situation: StatusInputs) -> Verdict:
    if situation.waiting is not None:
        return model_not_there(situation.waiting)
    desired = situation.deployment.desired
    return model_loaded(situation.observed.pods, situation.engines, desired=desired)


def _accepted(situation: StatusInputs) -> Verdict:
    kind = ConditionType.ACCEPTED
    if situation.problems:
        message = "; ".join(str(problem) for problem in situation.problems)
        return Verdict(kind, "False", situation.problems[0].reason, message)
    plan = situation.plan
    warnings = "".join(f"; {text}" for text in (plan.spec.warnings if plan else ()))
    valid = f"the spec is valid{_over_profile(plan.pods.profile if plan else None)}"
    if situation.overlay:
        paths = ", ".join(situation.overlay)
        message = f"{valid}; spec.template overlays {paths}{warnings}"
        return Verdict(kind, "True", Reason.OVERLAY_IN_EFFECT, message)
    return Verdict(kind, "True", Reason.VALID, f"{valid}{warnings}")


def _over_profile(profile: Profile | None) -> str:
    """Name the profile below the spec, and the fields that it gave."""
    if profile is None:
        return ""
    return f" over AtomProfile {profile.name} ({profile.summary})"


def _progressing(situation: StatusInputs) -> Verdict:
    kind, deployment = ConditionType.PROGRESSING, situation.deployment
    if situation.held_back:
        serving = "what runs goes on" if situation.observed.deployment else "nothing is started"
        blocking = "CapacityFits" if situation.plan else "Accepted"
        return Verdict(kind, "False", Reason.HELD_BACK, f"see {blocking}; {serving}")
    for refusal in situation.report.refused:
        child = f"{refusal.child.kind.kind} {refusal.child.name}"
        return Verdict(kind, "False", refusal.reason, f"{child}: {refusal.message}")
    for failure in situation.report.failed:
        child = f"{failure.child.kind.kind} {failure.child.name}"
        message = f"{child} could not be written yet and is tried again: {failure.message}"
        return Verdict(kind, "True", Reason.ROLLING_OUT, message)
    if situation.waiting is not None:
        return waits(situation.waiting, serving=situation.observed.deployment is not None)
    if situation.observed.deployment is None:
        return Verdict(kind, "True", Reason.ROLLING_OUT, "the Deployment is being created")
    if (halfway := pair_progress(situation)) is not None:
        return halfway
    if situation.rollout_waits is not None:
        message = f"a rollout waits: {situation.rollout_waits}"
        return Verdict(kind, "True", Reason.ROLLOUT_WAITS, message)
    if deployment.complete and deployment.notes.rollback is not None:
        message = f"revision {deployment.revision} runs again; see Degraded"
        return Verdict(kind, "False", Reason.ROLLED_BACK, message)
    if deployment.complete:
        return _complete(situation)
    if deployment.progress.refused_message:
        return Verdict(kind, "False", Reason.PODS_REFUSED, deployment.progress.refused_message)
    if deployment.progress.stalled_message and deployment.progress.up_to_date:
        return Verdict(kind, "False", Reason.DEADLINE_EXCEEDED, deployment.progress.stalled_message)
    if situation.rolled_out:
        return _complete(situation)
    if (stopped := paused(deployment, situation.subject.name)) is not None:
        return Verdict(kind, "False", Reason.PAUSED, stopped)
    message = (
        f"{deployment.updated} of {deployment.desired} replicas have the new revision, "
        f"{deployment.ready} are ready, {deployment.replicas} exist{edited(deployment)}"
        f"{_kept(situation)}"
    )
    return Verdict(kind, "True", Reason.ROLLING_OUT, message)


def _complete(situation: StatusInputs) -> Verdict:
    """Report that no rollout is running, with notes for the next one."""
    deployment, plan = situation.deployment, situation.plan
    message = f"{deployment.desired} of {deployment.desired} replicas are rolled out"
    if not deployment.complete:
        message = f"{message}, {deployment.ready} are ready"
    message = f"{message}{edited(deployment)}{_kept(situation)}"
    if (stopped := paused(deployment, situation.subject.name)) is not None:
        message = f"{message}; {stopped}"
    if plan is not None and plan.rollout.keeps_rendering:
        message = f"{message}{_KEPT}"
    if situation.defaults_wait:
        message = f"{message}; {situation.defaults_wait}"
    return Verdict(ConditionType.PROGRESSING, "False", Reason.COMPLETE, message)


def _kept(situation: StatusInputs) -> str:
    """Return why there are more replicas than asked for."""
    keeps = situation.run.scale.keeps if situation.run is not None else None
    return f"; {keeps}" if keeps else ""


def _available(situation: StatusInputs) -> Verdict:
    kind, deployment = ConditionType.AVAILABLE, situation.deployment
    ready = max(deployment.ready, *(state.ready for state in situation.workloads))
    # Here too: another fault may be the one that Degraded names.
    silent = silent_verdict(situation.observed, deployment)
    more = f"; {silent.message}" if silent is not None else ""
    if ready:
        return Verdict(kind, "True", Reason.SERVING, f"{ready} replicas serve{more}")
    if situation.subject.suspended:
        return Verdict(kind, "False", Reason.SUSPENDED, "spec.suspend is true")
    if situation.observed.deployment is not None and deployment.desired == 0:
        return Verdict(kind, "False", Reason.SCALED_TO_ZERO, "there are to be 0 replicas")
    return Verdict(kind, "False", Reason.NOTHING_READY, f"no replica serves{more}")


def _degraded(situation: StatusInputs) -> Verdict:
    """True with the most important cause, and with the client that contests the number of replicas,
    which hides behind no other cause."""
    found, contested = _failure(situation), situation.deployment.others.contested
    if contested is None:
        return found
    if found.status == "False":
        return Verdict(found.type, "True", Reason.REPLICAS_CONTESTED, contested)
    return replace(found, message=f"{found.message}; {contested}")


def _failure(situation: StatusInputs) -> Verdict:
    kind, running = ConditionType.DEGRADED, situation.deployment
    for refusal in situation.report.refused:
        return Verdict(kind, "True", refusal.reason, refusal.message)
    if situation.waiting is not None and situation.waiting.failed:
        return Verdict(kind, "True", situation.waiting.reason, situation.waiting.message)
    failing = failing_verdict(situation.observed, running)
    rollback = running.notes.rollback
    if rollback is not None:
        text = (
            f"revision {rollback.failed} could not become ready, so "
            f"{running.revision} runs again: {rollback.cause}. {_TRY_AGAIN}"
        )
        # A restarted pod may fail as well, by another fault.
        more = f"; {failing.message}" if failing is not None and not running.complete else ""
        return Verdict(kind, "True", Reason.ROLLED_BACK, f"{text}{more}")
    if message := running.progress.refused_message:
        return Verdict(kind, "True", Reason.PODS_REFUSED, message)
    if failing is not None:
        return _beside_silence(failing, situation)
    for explain in (silent_verdict, ended_verdict):
        explained = explain(situation.observed, running)
        if explained is not None:
            return explained
    stalled = running.progress.stalled_message
    if stalled and running.progress.up_to_date and not running.complete:
        return Verdict(kind, "True", Reason.DEADLINE_EXCEEDED, stalled)
    return Verdict(kind, "False", Reason.AS_EXPECTED, "no pod is failing")


def _beside_silence(failing: Verdict, situation: StatusInputs) -> Verdict:
    """Name silent nodes beside the faults of pods: mending one starts no pod on the other. The
    fault of a group is kept while it is made again, longer than its node may be silent."""
    running = situation.deployment
    silent = silent_verdict(situation.observed, running) if not running.in_groups else None
    if silent is None:
        return failing
    return replace(failing, message=f"{failing.message}; {silent.message}")


def _waits_well(situation: StatusInputs, progressing: Verdict) -> bool:
    """Return whether only the time of a rollout has not come yet, by its window or its turn: the
    earlier request is complete meanwhile, and no user has to act. One that was rolled back is not
    complete: what failed is told until its successor begins."""
    waits, rollback = situation.waits, situation.deployment.notes.rollback
    is_told = progressing.reason is Reason.ROLLOUT_WAITS
    if not is_told or waits is None or waits.is_refused or rollback is not None:
        return False
    return situation.is_whole


def _ready(situation: StatusInputs, others: Mapping[ConditionType, Verdict]) -> Verdict:
    """Judge Ready: True, or the most important obstacle."""
    kind, deployment = ConditionType.READY, situation.deployment
    accepted, fits = others[ConditionType.ACCEPTED], others[ConditionType.CAPACITY_FITS]
    for blocking in (accepted, fits):
        if blocking.status == "False":
            return Verdict(kind, "False", blocking.reason, blocking.message)
    if situation.subject.suspended and not situation.report.refused:
        return Verdict(kind, "False", Reason.SUSPENDED, others[ConditionType.SUSPENDED].message)
    progressing = others[ConditionType.PROGRESSING]
    missing = deployment.ready < deployment.desired
    waits = _waits_well(situation, progressing)
    if missing or not (waits or progressing.reason is Reason.COMPLETE):
        degraded, scheduled = others[ConditionType.DEGRADED], others[ConditionType.SCHEDULED]
        cause = progressing
        if degraded.status == "True":
            cause = degraded
        elif scheduled.status == "False":
            cause = scheduled
        elif waits or progressing.reason is Reason.COMPLETE:
            message = (
                f"{deployment.ready} of {deployment.desired} replicas are ready{_kept(situation)}"
            )
            return Verdict(kind, "False", Reason.REPLICAS_NOT_READY, message)
        elif progressing.reason is Reason.ROLLOUT_WAITS and not situation.is_whole:
            message = (
                f"{deployment.updated} of {deployment.desired} replicas have revision "
                f"{deployment.revision}, which rolls out before; {progressing.message}"
            )
            return Verdict(kind, "False", Reason.ROLLING_OUT, message)
        return Verdict(kind, "False", cause.reason, cause.message)
    prefill = others.get(ConditionType.PREFILL_READY)
    if prefill is not None and prefill.status == "False":
        message = f"{deployment.ready} decode pods serve, and compute prompts: {prefill.message}"
        return Verdict(kind, "False", prefill.reason, message)
    if deployment.others.contested is not None:
        return Verdict(kind, "False", Reason.REPLICAS_CONTESTED, deployment.others.contested)
    if (taken := scaled_to_zero(deployment, situation.run)) is not None:
        return Verdict(kind, "False", Reason.SCALED_TO_ZERO, taken)
    route = situation.serving.integrations.http_route if situation.serving else None
    met = callers_meet(route, situation.observed.children, situation.surveyed.routes)
    if met is not None:
        message = f"{deployment.ready} replicas serve, but not who comes by a Gateway: {met}"
        return Verdict(kind, "False", Reason.ROUTE_NOT_READY, message)
    adapters = others.get(ConditionType.ADAPTERS_READY)
    if adapters is not None and adapters.reason is Reason.ADAPTER_REFUSED:
        message = f"{deployment.ready} replicas serve, but not every adapter: {adapters.message}"
        return Verdict(kind, "False", Reason.ADAPTER_REFUSED, message)
    if waits:
        message = f"{deployment.ready} replicas serve; {progressing.message}"
        return Verdict(kind, "True", Reason.ROLLOUT_WAITS, message)
    if deployment.desired == 0:
        return Verdict(kind, "True", Reason.SCALED_TO_ZERO, "there are 0 replicas, as asked")
    return Verdict(kind, "True", Reason.SERVING, f"{deployment.ready} replicas serve")
