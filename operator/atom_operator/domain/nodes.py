"""The nodes of the cluster as one reading shows them, with the results computed from them.

A thousand AtomDeployments ask almost the same of more than a hundred nodes, in every pass: the
answer is computed once for each reading. Another reading is another object, and begins empty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, cast

from atom_operator.domain.objects import Manifest

_T = TypeVar("_T")


class Nodes(tuple[Manifest, ...]):
    """Hold nodes that do not change; `question` names a computed result with all its inputs."""

    def __init__(self, _nodes: Iterable[Manifest] = ()) -> None:
        self._answers: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, nodes: Iterable[Manifest]) -> Nodes:
        """Return the same nodes, with their computed results."""
        return nodes if isinstance(nodes, Nodes) else cls(nodes)

    def once(self, question: Hashable, work_out: Callable[[], _T]) -> _T:
        """Return the answer, worked out at the first call."""
        if question not in self._answers:
            self._answers[question] = work_out()
        return cast("_T", self._answers[question])
