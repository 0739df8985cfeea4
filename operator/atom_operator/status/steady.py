"""Steady messages about a group that fails while it is made again. Pure.

The controller of groups deletes every pod of one that failed and makes new ones, every few seconds
for ever. A look then finds a random state: an end, no pod, pods that have not ended yet, or a quota
that ending pods have filled. So the last failure is reported until no group is missing or starting,
whichever others serve meanwhile, or another revision is requested; a quota's refusal is reported
beside it, and changes no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import DeploymentState, Observed
from atom_operator.status.conditions import Verdict

_HELD = (ConditionType.SCHEDULED, ConditionType.MODEL_LOADED, ConditionType.DEGRADED)
_FAILURES = (Reason.POD_FAILING, Reason.POD_ENDED)
# LeaderWorkerSet's words while the StatefulSet of a group that fell still ends; it tries again.
_WORKERS_WAIT = "Failed to create worker statefulset for leader pod"
_SAYS_NOTHING = (Reason.NO_PODS, Reason.PODS_PENDING, Reason.ENGINE_SILENT, Reason.AS_EXPECTED)


def steady(
    verdicts: Sequence[Verdict], observed: Observed, previous: Mapping[str, Any]
) -> list[Verdict]:
    """Replace verdicts that a recreated group makes empty by the earlier ones."""
    running = observed.deployment
    failure = known_failure(previous, running)
    if running is None or not failure or not _is_made_anew(running, observed):
        return list(verdicts)
    before = {item["type"]: item for item in previous.get("conditions") or ()}
    held = [_held(verdict, before.get(verdict.type)) for verdict in verdicts]
    beside = [_beside_failure(verdict, running, before) for verdict in held]
    return [_with_failure(verdict, failure) for verdict in beside]


def _is_made_anew(running: DeploymentState, observed: Observed) -> bool:
    """Return whether a group is missing, or has a pod that does not serve on its node. One that
    waits for a node has not failed, and may wait for long."""
    leaders = sum(pod.serves for pod in observed.pods)
    begins = any(pod.placement.scheduled and not pod.ready for pod in observed.pods)
    return not running.complete and (begins or leaders < running.desired)


def known_failure(previous: Mapping[str, Any], running: DeploymentState | None) -> str | None:
    """Return the reported failure of a group's revision; None without groups.

    The status is the only place that has it: the pods are gone, and none of their Events has the
    engine's last words. It is read for its message alone. Deadline and rollback rest on
    observation, and if the status is removed, the group's next end is reported again.
    """
    if running is None or not running.in_groups:
        return None
    if previous.get("revision") != running.revision:
        return None
    for item in previous.get("conditions") or ():
        if item["type"] == ConditionType.DEGRADED and item["reason"] in _FAILURES:
            return str(item["message"])
    return None


def _with_failure(verdict: Verdict, failure: str) -> Verdict:
    """Replace an empty reason for an unloaded model by the group's failure while it is made
    again."""
    if verdict.type is not ConditionType.MODEL_LOADED or verdict.reason not in _SAYS_NOTHING:
        return verdict
    return Verdict(verdict.type, "False", Reason.POD_FAILING, failure)


def _beside_failure(
    verdict: Verdict, running: DeploymentState, before: Mapping[str, Mapping[str, Any]]
) -> Verdict:
    """Keep a group's failure instead of a quota's refusal of its new pods, and instead of its
    delay. Refusals by others than a quota are repeated at every try."""
    refused = running.progress.refused_message
    retried = running.refused_by_quota or (refused or "").startswith(_WORKERS_WAIT)
    by_quota = retried and verdict.message == refused
    late = verdict.reason is Reason.DEADLINE_EXCEEDED
    if verdict.type is ConditionType.DEGRADED and (by_quota or late):
        failed = before[verdict.type]
        return Verdict(verdict.type, "True", Reason(failed["reason"]), str(failed["message"]))
    if verdict.type is not ConditionType.PROGRESSING or not by_quota:
        return verdict
    if running.progress.stalled_message:
        message = f"{running.progress.stalled_message}; {refused}"
        return Verdict(verdict.type, "False", Reason.DEADLINE_EXCEEDED, message)
    message = f"a group that failed is made anew; {refused}"
    return Verdict(verdict.type, "True", Reason.ROLLING_OUT, message)


def _held(verdict: Verdict, before: Mapping[str, Any] | None) -> Verdict:
    if verdict.type not in _HELD or verdict.reason not in _SAYS_NOTHING or before is None:
        return verdict
    reason = Reason(before["reason"])
    if reason in _SAYS_NOTHING:
        return verdict
    return Verdict(verdict.type, before["status"], reason, str(before["message"]))
