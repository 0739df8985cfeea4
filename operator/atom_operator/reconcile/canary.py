"""Observes a canary and decides its next step: the inputs of the policy are read here.

Called by the Decider in every pass; if spec.canary is absent and no canary is left over, nothing is
read. If no time is given (at admission) the canary is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from atom_operator import constants
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.canary_spec import (
    asked_of,
    asks_for_the_same,
    canary_spec,
    change_problems,
    pods_digest,
    promoted_spec,
)
from atom_operator.children import naming
from atom_operator.cluster.engines import EnginePort
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.prometheus import PrometheusPort
from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    POD,
    ChildKey,
    FieldProblem,
    Manifest,
    ObjectKey,
    Observed,
)
from atom_operator.domain.canary import (
    Canary,
    CanaryAnalysis,
    CanaryAsked,
    CanaryPhase,
    CanaryPods,
    CanarySeen,
    CanaryState,
    Judgement,
    OthersSeen,
    PodsSeen,
)
from atom_operator.kinds import AUTOSCALER, HTTP_ROUTE
from atom_operator.plan.canary.analysis import judge
from atom_operator.plan.canary.known_to_gateway import is_known_to_gateways
from atom_operator.plan.canary.size import pods_that_stay
from atom_operator.plan.canary.steps import (
    TAKES_PART,
    needs_others,
    next_state,
    promote,
    replicas_kept,
)
from atom_operator.plan.resolve_integrations import first_replicas
from atom_operator.pods.owned_status import STARTS, condition_of, is_ready, is_reported, refusal
from atom_operator.pods.pod_state import pod_state, time_of
from atom_operator.reconcile.planning import canary_plan_problems
from atom_operator.status.canary import state_of
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import decode_pods

_MOST_ASKED_PODS = 8  # a fair sample of more
# A canary that served and does not come back is given up after this.
_PATIENCE = timedelta(minutes=10)
_HOPELESS = (Reason.DEADLINE_EXCEEDED, Reason.ROLLED_BACK)


# In these it has an AtomDeployment.
HAS_PODS = (*TAKES_PART, CanaryPhase.PROMOTING)


@dataclass(frozen=True, slots=True)
class CanaryReader:
    """Read the inputs of a canary's analysis."""

    port: ClusterPort
    engines: EnginePort
    prometheus: PrometheusPort | None

    async def judge(self, name: ObjectKey, analysis: CanaryAnalysis) -> Judgement:
        """Ask the canary's engines and Prometheus."""
        labels = {constants.LABEL_DEPLOYMENT: name.name}
        found = await self.port.list_labelled(POD, name.namespace, labels)
        pods = [pod for pod in map(pod_state, found) if pod.ready and pod.serves and pod.address]
        counts = [
            metrics.requests if metrics is not None else None
            for pod in pods[:_MOST_ASKED_PODS]
            for metrics in [await self.engines.metrics(str(pod.address))]
        ]
        values: dict[str, float | str] = {}
        for query in analysis.queries:
            if self.prometheus is not None:
                values[query.name] = await self.prometheus.value(query.query)
        return judge(analysis, counts, values)


@dataclass(frozen=True, slots=True)
class CanaryLook:
    """The spec that the other pods are of, and the canary; None for none."""

    spec: Mapping[str, Any]
    canary: Canary | None = None
    asked: CanaryAsked | None = None


async def look_at_canary(
    reader: CanaryReader, key: ObjectKey, parent: Manifest, observed: Observed
) -> CanaryLook | tuple[FieldProblem, ...]:
    """Observe the canary of an AtomDeployment, or return the problems of its request."""
    raw = parent.get("spec") or {}
    child = observed.children.get(ChildKey(ATOM_DEPLOYMENT, naming.canary_name(key)))
    before = state_of(parent.get("status") or {})
    spec = parse_spec(raw)
    if isinstance(spec, tuple) or (spec.canary is None and child is None):
        return CanaryLook(raw)
    spec = decode_pods(spec)
    if spec.canary is None:
        return CanaryLook(raw, _written_into_spec(key, spec, parent, observed))
    asked, wanted = asked_of(raw, spec), canary_spec(raw, spec)
    beside = _beside(spec, observed, before)
    if problems := change_problems(key, spec, wanted) or canary_plan_problems(key, wanted):
        return problems
    seen = await _see(reader, key, parent, child, _Wanted(wanted, asked, observed.at, before))
    others = replace(seen.others, can_serve=beside, roll=_is_rolling(observed))
    seen = replace(seen, known=_is_known(key, observed), others=others)
    state = next_state(asked, seen, before, observed.at or _NO_TIME)
    has_pods = state.phase in HAS_PODS
    canary = Canary(
        naming.canary_name(key),
        state,
        canary_spec(raw, spec, state.pods.asked) if has_pods else None,
        len(asked.steps),
        is_there=has_pods and _has_service(child),
        keeps=replicas_kept(state, observed.at),
    )
    promoted = state.phase in (CanaryPhase.PROMOTING, CanaryPhase.PROMOTED)
    return CanaryLook(promoted_spec(raw, spec) if promoted else raw, canary, asked)


def canary_in_force(key: ObjectKey, parent: Manifest, observed: Observed) -> Canary | None:
    """Return the canary as last reported, which stays while the spec is held back; without requests
    while none of its pods serves."""
    state = state_of(parent.get("status") or {})
    child = observed.children.get(ChildKey(ATOM_DEPLOYMENT, naming.canary_name(key)))
    if state is None or child is None:
        return None
    state = state if _is_ready(child) else replace(state, weight=0)
    is_there = state.phase in HAS_PODS and _has_service(child)
    keeps = replicas_kept(state, observed.at)
    return Canary(naming.canary_name(key), state, is_there=is_there, keeps=keeps)


_NO_TIME = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Wanted:
    spec: Mapping[str, Any]
    asked: CanaryAsked
    now: datetime | None
    before: CanaryState | None


def _written_into_spec(
    key: ObjectKey,
    spec: AtomDeploymentSpec,
    parent: Manifest,
    observed: Observed,
) -> Canary | None:
    """Return the canary whose change has been written into the spec: it keeps its share until the
    other pods are of the new spec. Any other that is asked for no more goes."""
    child = observed.children.get(ChildKey(ATOM_DEPLOYMENT, naming.canary_name(key)))
    before = state_of(parent.get("status") or {})
    if child is None or before is None or not asks_for_the_same(spec, child.get("spec") or {}):
        return None
    ready, weight = _ready_pods(child), before.weight
    if ready < before.pods.ready:  # those that are left carry so much of it
        weight = weight * ready // before.pods.ready
    pods = PodsSeen(serve=_is_ready(child) or ready > 0)
    seen = CanarySeen(exists=True, known=_is_known(key, observed), pods=pods)
    state = promote(_of_promotion(parent, seen, before), before, weight)
    if state.phase is CanaryPhase.PROMOTED:
        return None
    beside = _beside(spec, observed, before)
    state = replace(state, pods=CanaryPods(None, before.pods.asked, ready, beside))
    is_there, keeps = _has_service(child), replicas_kept(state, observed.at)
    stay = pods_that_stay(int((child.get("spec") or {}).get("replicas", 1)), ready)
    wanted = {**(child.get("spec") or {}), "replicas": stay}
    name = naming.canary_name(key)
    return Canary(name, state, wanted, is_there=is_there, keeps=keeps)


def _is_rolling(observed: Observed) -> bool:
    """Return whether pods of an older revision are left beside the canary, or new ones missing."""
    running = observed.deployment
    return running is not None and (
        running.replicas > running.updated or running.updated < running.desired
    )


def _beside(spec: AtomDeploymentSpec, observed: Observed, before: CanaryState | None) -> int:
    """Return the replicas beside the canary that can serve all requests. A HorizontalPodAutoscaler
    counts the requests of those alone and would take some away as the canary's share grows; KEDA
    is asked about both."""
    scaling, running = spec.autoscaling, observed.deployment
    if scaling is None or not scaling.moves_replicas or running is None:
        return first_replicas(spec)
    alone = any(child.kind == AUTOSCALER for child in observed.children)
    known = before.pods.beside if before is not None and needs_others(before) else None
    if alone and known is not None:
        return min(max(known, running.desired), scaling.max_replicas)
    return running.desired


async def _see(
    reader: CanaryReader,
    key: ObjectKey,
    parent: Manifest,
    child: Manifest | None,
    wanted: _Wanted,
) -> CanarySeen:
    before, asked = wanted.before, wanted.asked
    if child is None:
        return CanarySeen()
    ready, count = condition_of(child, ConditionType.READY), _ready_pods(child)
    digest = pods_digest(wanted.spec)
    is_theirs = pods_digest(child.get("spec") or {}) == digest
    # Its status may be of an older spec, as long as that asked for the same pods.
    was_theirs = before is not None and before.pods.digest == digest
    if not is_theirs or not (is_reported(child) or was_theirs):
        return _of_promotion(parent, CanarySeen(exists=True, words=STARTS), before)
    if is_reported(child) and (refused := _refusal(child)) is not None:
        seen = CanarySeen(exists=True, blocked=refused, pods=PodsSeen(digest=digest))
        return _of_promotion(parent, seen, before)
    if asked.replicas is None:
        serves = count > 0
    else:
        serves = ready.get("status") == "True" or was_theirs
        serves = serves and _has_all_pods(child, is_ready=ready.get("status") == "True")
    judgement = None
    if serves and asked.analysis is not None and wanted.now is not None:
        name = ObjectKey(key.namespace, naming.canary_name(key))
        judgement = await reader.judge(name, asked.analysis)
    progresses = condition_of(child, ConditionType.PROGRESSING).get("status") == "True"
    loads = progresses and ready.get("status") != "True"
    seen = CanarySeen(
        exists=True,
        pods=PodsSeen(serves, count, loads, digest),
        hopeless=_hopeless(child, wanted.now),
        words=str(ready.get("message") or ""),
        judgement=judgement,
    )
    return _of_promotion(parent, seen, before)


def _has_all_pods(child: Manifest, *, is_ready: bool) -> bool:
    """Return whether every pod that the canary asks for serves. Its status is not Ready for a
    moment when anything of its workload changes, which takes no pod away."""
    status = child.get("status") or {}
    if is_ready:
        return bool(status.get("replicas"))
    asked = int((child.get("spec") or {}).get("replicas", 1))
    updated = int((status.get("rollout") or {}).get("updated") or 0)
    return 0 < asked <= min(int(status.get("readyReplicas") or 0), updated)


def _ready_pods(child: Manifest) -> int:
    """Count the canary's certain pods, which serve and match the request: among the serving ones,
    every pod of an older revision may be one."""
    status = child.get("status") or {}
    rollout = status.get("rollout") or {}
    updated = int(rollout.get("updated") or 0)
    older = max(0, int(status.get("replicas") or 0) - updated)
    if rollout.get("waits") or rollout.get("failedRevision"):
        return 0
    return max(0, min(updated, int(status.get("readyReplicas") or 0) - older))


def _refusal(child: Manifest) -> str | None:
    """Return why the canary's own spec is not carried out, or None."""
    if (refused := refusal(child)) is None:
        return None
    kind, message = refused
    return f"{kind.value}=False of {child['metadata']['name']}: {message}"


def _of_promotion(parent: Manifest, seen: CanarySeen, before: CanaryState | None) -> CanarySeen:
    """Add the other pods' progress since the promotion began, as the last pass reported it."""
    status = parent.get("status") or {}
    if before is None or before.phase is not CanaryPhase.PROMOTING or not is_reported(parent):
        return seen
    progressing = condition_of(parent, ConditionType.PROGRESSING)
    failed = (status.get("rollout") or {}).get("failedRevision")
    others: OthersSeen = replace(
        seen.others,
        rolled_out=progressing.get("reason") == Reason.COMPLETE,
        promotion_failed=f"revision {failed} failed; see Degraded" if failed else None,
    )
    return replace(seen, others=others)


def _hopeless(child: Manifest, now: datetime | None) -> str | None:
    """Return why the canary's pods will not become ready; None while they may."""
    ready, degraded = (
        condition_of(child, kind) for kind in (ConditionType.READY, ConditionType.DEGRADED)
    )
    progressing = condition_of(child, ConditionType.PROGRESSING)
    message = str(progressing.get("message") or "")
    if progressing.get("reason") in _HOPELESS:
        words = degraded.get("message") if degraded.get("status") == "True" else message
        scheduled = condition_of(child, ConditionType.SCHEDULED)
        waits = scheduled.get("message") if scheduled.get("status") == "False" else None
        # A Deployment's message about its deadline names no cause; the scheduler's does.
        return "; ".join(dict.fromkeys(str(each) for each in (words, waits) if each))
    since = time_of(ready.get("lastTransitionTime"))
    fails = ready.get("status") == "False" and degraded.get("status") == "True"
    if fails and progressing.get("reason") == Reason.COMPLETE and now and since:
        return str(ready.get("message")) if now - since >= _PATIENCE else None
    return None


def _is_ready(child: Manifest) -> bool:
    return is_ready(child) and is_reported(child)


def _has_service(child: Manifest | None) -> bool:
    """Return whether the child's Service exists, which precedes its pods, and these its URL."""
    return child is not None and bool((child.get("status") or {}).get("url"))


def _is_known(key: ObjectKey, observed: Observed) -> bool:
    route = observed.children.get(ChildKey(HTTP_ROUTE, key.name))
    return is_known_to_gateways(route, naming.canary_name(key))
