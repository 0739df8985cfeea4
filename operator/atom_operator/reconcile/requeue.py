"""Time of the next look for changes that no event announces. Pure; called at the end of a
reconcile."""

from __future__ import annotations

from datetime import datetime

from atom_operator.constants import Reason
from atom_operator.domain import ApplyReport, EngineView, Observed
from atom_operator.domain.canary import CanaryPhase
from atom_operator.plan.canary.steps import seconds_to_look
from atom_operator.plan.rollouts.group_deadline import progress_deadline
from atom_operator.plan.rollouts.own_pods import unschedulable
from atom_operator.reconcile.decider import Decision

# Nothing announces that a quota was raised, a conflicting object deleted, a ConfigMap of the user's
# created or a node's device freed.
_LOOK_AGAIN_SECONDS = 30.0
# Free devices bound an autoscaler; they are read once a minute for all of them together.
_BOUND_SECONDS = 60.0
# A loading engine reports its progress only when it is asked.
_LOADING_SECONDS = 10.0
# Engines report drafts, sleep and latencies only when they are asked.
_FIGURES_SECONDS = 60.0
# This pass reports that the other pods have taken a canary's change, and the next one reads it.
_PROMOTING_SECONDS = 10.0
# An engine that serves and yet does not answer us may never do so (a network policy): asked ever
# more rarely, after as long again as it has been silent.
_MOST_SILENT_SECONDS = 900.0


def requeue_after(
    decision: Decision,
    report: ApplyReport,
    observed: Observed,
    engines: EngineView,
    now: datetime,
) -> float | None:
    """Return the seconds until the next look; None if events announce all changes."""
    if any(not pod.ready and pod.address for pod in observed.pods):
        return _LOADING_SECONDS
    if decision.waiting is not None:
        return _LOOK_AGAIN_SECONDS if decision.waiting.failed else _LOADING_SECONDS
    waits_for_config = (
        decision.plan is not None and decision.plan.capacity.reason is Reason.MODEL_CONFIG_NOT_FOUND
    )
    # A controller that a quota or an admission refuses tries again, ever more rarely.
    running = observed.deployment
    refused = (
        running is not None
        and running.progress.refused_message is not None
        and not running.complete
    )
    held_back = any(pod.placement.gated for pod in observed.pods)
    # Only Events report why a pod has no ResourceClaim, or does not start on its node.
    unclaimed = any(pod.placement.lacks_claim for pod in observed.pods)
    begins = any(pod.placement.scheduled and not pod.ready for pod in observed.pods)
    stuck = unschedulable(observed) is not None or held_back or refused or unclaimed or begins
    sick = bool(decision.afterwards.devices.sick)
    waits = bool(report.refused) or waits_for_config or stuck or sick
    if waits or _depends_on_others(decision, report):
        return _LOOK_AGAIN_SECONDS
    asking = _ask_again(observed, now) if engines.measured is None else None
    plan = decision.serving
    scaled = plan is not None and plan.integrations.autoscaling is not None
    bound = _BOUND_SECONDS if scaled else None
    times = (
        asking,
        bound,
        _adapters_again(decision, engines),
        _figures_again(decision, observed),
        _to_deadline(observed, now),
        _canary_again(decision, now),
        _rollout_again(decision, now),
    )
    return min((seconds for seconds in times if seconds is not None), default=None)


def _canary_again(decision: Decision, now: datetime) -> float | None:
    """Return the seconds until the canary may progress; None if only an event lets it."""
    look = decision.canary
    if look is None or look.canary is None:
        return None
    if look.canary.state.phase is CanaryPhase.PROMOTING:
        return _PROMOTING_SECONDS
    if look.asked is None:
        return None
    return seconds_to_look(look.asked, look.canary.state, now)


def _rollout_again(decision: Decision, now: datetime) -> float | None:
    """Choose when a rollout that waits may begin."""
    if decision.waits is None or decision.waits.in_row:
        return None  # whose turn has come is announced
    until = decision.waits.until
    return _BOUND_SECONDS if until is None else max(0.0, (until - now).total_seconds())


def _figures_again(decision: Decision, observed: Observed) -> float | None:
    """Return the seconds until drafts, sleep and latencies are read again; None if no pod serves
    with any of them."""
    plan = decision.serving
    tells = plan is not None and (
        plan.engine.speculative.method is not None
        or plan.engine.serving.sleep_idle_seconds is not None
        or plan.integrations.slo is not None
    )
    return _FIGURES_SECONDS if tells and any(pod.ready for pod in observed.pods) else None


def _adapters_again(decision: Decision, engines: EngineView) -> float | None:
    """Choose when to ask for adapters again that some pod does not serve yet; None where all do."""
    if decision.plan is None or not engines.adapters:
        return None
    asked = {(each.name, each.path) for each in decision.plan.model.adapters}
    for told in engines.adapters.values():
        if told is None or any(each.state == "refused" for each in told):
            return _LOOK_AGAIN_SECONDS
        if {(each.name, each.path) for each in told if each.state == "loaded"} != asked:
            return _LOADING_SECONDS
    return None


def _to_deadline(observed: Observed, now: datetime) -> float | None:
    """Return the seconds to the deadline of groups, which only we enforce; None without one."""
    deadline = progress_deadline(observed)
    if deadline is None or now >= deadline:
        return None
    return (deadline - now).total_seconds()


def _ask_again(observed: Observed, now: datetime) -> float | None:
    """Return the seconds until serving engines are asked again for missing reports; None if none
    serves."""
    serving = [pod for pod in observed.pods if pod.ready and pod.address]
    if not serving:
        return None
    times = [
        (now - pod.health.ready_since).total_seconds() for pod in serving if pod.health.ready_since
    ]
    return min(max(_LOOK_AGAIN_SECONDS, min(times, default=0.0)), _MOST_SILENT_SECONDS)


def _depends_on_others(decision: Decision, report: ApplyReport) -> bool:
    """Return whether missing objects may appear without an event: CRDs, or an autoscaler with the
    next pass."""
    if any(problem.reason is Reason.API_NOT_SERVED for problem in decision.problems):
        return True
    plan = decision.serving
    if plan is None:
        return bool(report.refused_optional)
    asked = plan.integrations
    comes = asked.autoscaling is not None and plan.scale.owns_replicas
    return comes or bool(asked.missing) or bool(report.refused_optional)
