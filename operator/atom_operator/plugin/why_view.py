"""`kubectl atom why`: the causes as lines for people, or as a document for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from atom_operator.plugin.ages import age
from atom_operator.plugin.why import Cause, Rank, Seen, is_ready, is_suspended

_HEADINGS = {
    Rank.SPEC: "the spec",
    Rank.REFUSED: "refused",
    Rank.NO_NODE: "no node",
    Rank.NOT_STARTED: "cannot start",
    Rank.FAILED: "ends",
    Rank.NOT_READY: "not ready",
    Rank.FOLLOWS: "follows",
}


def why_lines(seen: Seen, causes: Sequence[Cause]) -> Iterator[str]:
    """Yield the state in a line, then the chain, its first link the one to begin with."""
    metadata = seen.parent["metadata"]
    name = f"AtomDeployment {metadata.get('namespace')}/{metadata['name']}"
    if is_ready(seen.parent):
        yield f"{name} is ready" + ("; what else is told:" if causes else "")
    elif is_suspended(seen.parent):
        yield f"{name} is suspended by its spec" + ("; what else is told:" if causes else "")
    elif causes:
        yield f"{name} is not ready. Begin with 1; what comes after may follow from it:"
    else:
        yield f"{name} is not ready, and nothing tells of a fault: it is still on its way"
    for number, cause in enumerate(causes, start=1):
        yield f"{number}. {_HEADINGS[cause.rank]}: {cause.about} {cause.reason}{_when(seen, cause)}"
        yield f"   {cause.message}"
        for step in cause.next_steps:
            yield f"   next: {step}"


def _when(seen: Seen, cause: Cause) -> str:
    parts = [f"x{cause.count}"] if cause.count > 1 else []
    if cause.since is not None:
        parts.append(f"{age(cause.since.isoformat(), seen.now)} ago")
    return f" ({', '.join(parts)})" if parts else ""


def why_document(seen: Seen, causes: Sequence[Cause]) -> dict[str, Any]:
    """Return the causes as -o json and yaml show them."""
    metadata = seen.parent["metadata"]
    return {
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "ready": is_ready(seen.parent),
        "causes": [
            {
                "kind": _HEADINGS[cause.rank],
                "about": cause.about,
                "reason": cause.reason,
                "message": cause.message,
                "since": cause.since.isoformat() if cause.since else None,
                "count": cause.count,
                "next": list(cause.next_steps),
            }
            for cause in causes
        ],
    }
