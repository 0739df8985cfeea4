"""Cost of ending a pod: by the requests open on it, then by its cached tokens. Pure.

A ReplicaSet ends the pods that cost least first (Kubernetes: pod deletion cost). Costs are coarse,
and are written only if they would end another pod than the present ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from atom_operator.domain import EngineLoad

# More than the number of bits of any cache: an open request counts before everything cached.
_PER_REQUEST_BIT = 100


def deletion_cost(load: EngineLoad) -> int:
    """Return the cost of a pod; twice the requests is one step more, and so is twice the cache."""
    requests, cached = load.open_requests.bit_length(), load.cached_tokens.bit_length()
    return requests * _PER_REQUEST_BIT + min(cached, _PER_REQUEST_BIT - 1)


def costs_to_write(known: Mapping[str, int], loads: Mapping[str, EngineLoad]) -> dict[str, int]:
    """Return the costs to write, by pod; empty if `known` puts the pods in the same order. A pod
    that does not report its load keeps its cost."""
    costs = {name: deletion_cost(load) for name, load in loads.items()}
    in_order = all(
        known[one] < known[other] for one in costs for other in costs if costs[one] < costs[other]
    )
    if in_order:
        return {}
    return {name: cost for name, cost in costs.items() if known[name] != cost}
