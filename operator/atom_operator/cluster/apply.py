"""Carry out a rendered state: apply every child, then prune unwanted children.

Idempotent, so a crash between two writes is repaired by the next run. Never takes over an object
that another client made: server-side apply would do that silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from atom_operator import constants
from atom_operator.cluster.applied import AppliedChildren, stamped
from atom_operator.cluster.errors import ClusterError, RefusedError
from atom_operator.cluster.observe import controller_uid
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import Reason
from atom_operator.domain import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    SERVICE_ACCOUNT,
    WORKLOAD_KINDS,
    ApplyReport,
    ChildKey,
    Manifest,
    ObjectKey,
    Refusal,
    runs_engines,
)
from atom_operator.kinds import (
    NEEDED_KINDS,
    NETWORK_POLICY,
    RESOURCE_CLAIM_TEMPLATE,
    SIDE_KINDS,
)

_INVALID = 422
_MOST_FAILURES = 3  # of one run: an API server that does not answer takes its time for each
# The first pod's prerequisites; and the record of ready pods is written before they are replaced.
_NEEDED_BY_PODS = frozenset(
    {SERVICE_ACCOUNT, CONFIG_MAP, CONTROLLER_REVISION, RESOURCE_CLAIM_TEMPLATE, NETWORK_POLICY}
)


@dataclass(frozen=True, slots=True)
class ChildrenState:
    """Hold the desired children and the existing ones (`owned`); `kept` names children that stay
    without being desired."""

    desired: Mapping[ChildKey, Manifest]
    owned: Mapping[ChildKey, Manifest]
    kept: Set[ChildKey] = frozenset()


async def apply_children(
    port: ClusterPort, key: ObjectKey, state: ChildrenState, memory: AppliedChildren
) -> tuple[ApplyReport, dict[ChildKey, Manifest]]:
    """Apply the desired children; return a report, and the children afterwards. A child that
    `memory` knows to be current counts as applied.

    A refused or temporarily failed write stops only the children that need it; no child is pruned
    meanwhile.
    """
    owned, run = state.owned, _Run(dict(state.owned))
    for child, rendered in state.desired.items():
        manifest = stamped(rendered)
        if child in owned and memory.is_current(key, child, manifest, owned[child]):
            run.applied.append(child)
        elif not run.leads_nowhere(child, manifest):
            await run.apply(port, child, manifest)
            if run.applied[-1:] == [child]:
                memory.remember(key, child, manifest, run.now[child])
    pruned: list[ChildKey] = []
    unwanted = [child for child in owned if child not in state.desired and child not in state.kept]
    for child in unwanted if run.is_whole else ():
        try:
            await port.delete(child.kind, key.namespace, child.name)
        except ClusterError as error:
            run.note(child, error)
        else:
            pruned.append(child)
            del run.now[child]
    return run.report(pruned), run.now


@dataclass(slots=True)
class _Run:
    """Holds the children that were written, refused or failed so far; `now`: as they are."""

    now: dict[ChildKey, Manifest]
    applied: list[ChildKey] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failed: list[Refusal] = field(default_factory=list)
    lacks_engines: bool = False  # their workload could not be written

    @property
    def is_whole(self) -> bool:
        """Return whether all that serving needs is as it should be."""
        return all(item.child.kind in SIDE_KINDS for item in (*self.refused, *self.failed))

    def leads_nowhere(self, child: ChildKey, manifest: Manifest) -> bool:
        """Return whether `child` needs an object that could not be written, or whether too many
        writes failed to try more."""
        if len(self.failed) >= _MOST_FAILURES:
            return True
        missing = {item.child.kind for item in (*self.refused, *self.failed)}
        if child.kind in WORKLOAD_KINDS:
            taken = any(
                item.reason is Reason.NAME_CONFLICT and item.child.kind not in SIDE_KINDS
                for item in self.refused
            )  # another owner has the name, and may serve under it
            return taken or self.lacks_engines or bool(missing & _NEEDED_BY_PODS)
        if child.kind == CONTROLLER_REVISION:
            # The spec of pods that run is written down before that of their successors.
            return CONTROLLER_REVISION in missing
        needed = NEEDED_KINDS.get(child.kind)
        gone = (item.child for item in (*self.refused, *self.failed))
        return any(other.kind == needed and other not in self.now for other in gone)

    async def apply(self, port: ClusterPort, child: ChildKey, manifest: Manifest) -> None:
        try:
            refusal = await _apply_one(port, child, manifest, self.now)
        except ClusterError as error:
            self.note(child, error)
            refusal = self.failed[-1]
        else:
            if refusal is None:
                self.applied.append(child)
                return
            self.refused.append(refusal)
        self.lacks_engines = self.lacks_engines or runs_engines(child, manifest)

    def note(self, child: ChildKey, error: ClusterError) -> None:
        self.failed.append(Refusal(child, Reason.APPLY_FAILED, str(error)))

    def report(self, pruned: Iterable[ChildKey]) -> ApplyReport:
        needed = tuple(item for item in self.refused if item.child.kind not in SIDE_KINDS)
        optional = tuple(item for item in self.refused if item.child.kind in SIDE_KINDS)
        failed = tuple(self.failed)
        return ApplyReport(tuple(self.applied), tuple(pruned), needed, optional, failed)


async def _apply_one(
    port: ClusterPort, child: ChildKey, manifest: Manifest, now: dict[ChildKey, Manifest]
) -> Refusal | None:
    if child not in now:
        conflict = await _conflict(port, child, manifest)
        if conflict is not None:
            return conflict
    try:
        now[child] = await _write(port, child, manifest, exists=child in now)
    except RefusedError as error:
        return Refusal(child, Reason.APPLY_REFUSED, str(error))
    return None


async def _write(
    port: ClusterPort, child: ChildKey, manifest: Manifest, *, exists: bool
) -> Manifest:
    """Apply; if that is invalid because of another client's fields in our object (an apply leaves
    others' list entries alone), replace the object."""
    try:
        return await port.apply(child.kind, manifest)
    except RefusedError as error:
        if not exists or error.code != _INVALID:
            raise
        existing = await port.get(child.kind, manifest["metadata"]["namespace"], child.name)
        if existing is None:
            raise
    return await port.replace(child.kind, _in_place_of(existing, manifest))


def _in_place_of(existing: Manifest, manifest: Manifest) -> Manifest:
    """Add to `manifest` the parts of `existing` that belong to others: a number of replicas that we
    leave out is an autoscaler's, finalizers and annotations are their controllers'. Its version is
    kept, so that a concurrent change is not undone."""
    before, ours = existing["metadata"], manifest["metadata"]
    kept = {name: before[name] for name in ("resourceVersion", "finalizers") if name in before}
    theirs = {
        name: value
        for name, value in (before.get("annotations") or {}).items()
        if not name.startswith(f"{constants.GROUP}/")
    }
    annotations = {**theirs, **(ours.get("annotations") or {})}
    result = {**manifest, "metadata": {**ours, **kept, "annotations": annotations}}
    if "spec" in manifest:
        replicas = {name: value for name, value in existing["spec"].items() if name == "replicas"}
        result["spec"] = {**replicas, **manifest["spec"]}
    return result


async def _conflict(port: ClusterPort, child: ChildKey, manifest: Manifest) -> Refusal | None:
    """A refusal when an object of that name exists and is not ours to take.

    Ours: already controlled by this AtomDeployment (its label was removed), or left behind without
    a controller by `kubectl delete --cascade=orphan` and still labelled.
    """
    metadata = manifest["metadata"]
    existing = await port.get(child.kind, metadata["namespace"], child.name)
    if existing is None:
        return None
    controller = controller_uid(existing)
    if controller == controller_uid(manifest):
        return None
    label = (existing["metadata"].get("labels") or {}).get(constants.LABEL_DEPLOYMENT)
    if controller is None and label == metadata["labels"][constants.LABEL_DEPLOYMENT]:
        return None
    return Refusal(
        child,
        Reason.NAME_CONFLICT,
        f"a {child.kind.kind} named {child.name} exists and belongs to something else; delete or "
        "rename it, or give the AtomDeployment another name",
    )
