"""Carry out a rendered state: apply every child, then prune what is no longer wanted.

Idempotent, so a crash between two writes is repaired by the next run. Never takes over an object
that another client made: server-side apply would do that silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from atom_operator import constants
from atom_operator.cluster.applied import AppliedChildren, stamped
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.observe import controller_uid
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import Reason
from atom_operator.domain import ApplyReport, ChildKey, Manifest, ObjectKey, Refusal
from atom_operator.kinds import NEEDED_KINDS, SIDE_KINDS

_INVALID = 422


@dataclass(frozen=True, slots=True)
class ChildrenState:
    """Children as they are to be, and as they are (`owned`); those `kept` stay as they are though
    nothing asks for them."""

    desired: Mapping[ChildKey, Manifest]
    owned: Mapping[ChildKey, Manifest]
    kept: Set[ChildKey] = frozenset()


async def apply_children(
    port: ClusterPort, key: ObjectKey, state: ChildrenState, memory: AppliedChildren
) -> tuple[ApplyReport, dict[ChildKey, Manifest]]:
    """Return what was done, and the children as they are afterwards. What `memory` knows to be as
    it should be counts as applied.

    A refusal ends the run before the children that need the refused one; of what serving does not
    need it is only reported. TransientError passes.
    """
    owned, now = state.owned, dict(state.owned)
    applied: list[ChildKey] = []
    unneeded: list[Refusal] = []
    for child, rendered in state.desired.items():
        manifest = stamped(rendered)
        if child in owned and memory.is_current(key, child, manifest, owned[child]):
            applied.append(child)
            continue
        if _leads_nowhere(child, now, unneeded):
            continue
        refusal = await _apply_one(port, child, manifest, now)
        if refusal is None:
            memory.remember(key, child, manifest, now[child])
            applied.append(child)
        elif child.kind in SIDE_KINDS:
            unneeded.append(refusal)
        else:
            return ApplyReport(tuple(applied), (), (refusal,)), now
    pruned = [child for child in owned if child not in state.desired and child not in state.kept]
    for child in pruned:
        await port.delete(child.kind, key.namespace, child.name)
        del now[child]
    return ApplyReport(tuple(applied), tuple(pruned), (), tuple(unneeded)), now


def _leads_nowhere(
    child: ChildKey, now: Mapping[ChildKey, Manifest], refused: Iterable[Refusal]
) -> bool:
    """Return whether `child` would point to an object that was refused and does not exist: a route
    to a pool that is not there answers every request with an error."""
    needed = NEEDED_KINDS.get(child.kind)
    return any(item.child.kind == needed and item.child not in now for item in refused)


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
    """Apply; where that is invalid because of what another client put into our object (an apply
    leaves others' list entries alone), put the object as it should be in its place."""
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
    """Add to `manifest` what of `existing` is another's by right: a number of replicas that we
    leave out is an autoscaler's, finalizers and annotations are their controllers'. Its version is
    kept, so that a change made meanwhile is not undone."""
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
