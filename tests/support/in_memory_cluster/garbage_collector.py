"""The garbage collector: what is owned by something that is gone goes too, in the background."""

from __future__ import annotations

from atom_operator.domain import POD
from tests.support.in_memory_cluster.state import ClusterState


def collect(state: ClusterState) -> None:
    uids = {item["metadata"].get("uid") for item in state.api.objects.values()}
    for (kind, _, _), item in list(state.api.objects.items()):
        owners = item["metadata"].get("ownerReferences") or ()
        if not owners or any(owner["uid"] in uids for owner in owners):
            continue
        if kind == POD:
            state.delete_pod(item)
        else:
            state.remove(kind, item)
