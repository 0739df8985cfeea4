"""Marks pods with labels of the adapters that they serve, and with the digest of their adapter
list.

A Service or a gateway finds the pods of an adapter by the labels. The list is a mounted ConfigMap,
which a kubelet renews within about a minute, and at once if the pod's annotations change. Serving
depends on neither: a mark that cannot be written is left out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import POD, Adapter, AdapterState, ObjectKey, Observed
from atom_operator.pods.pod_marks import marked

_logger = logging.getLogger(__name__)


async def tell_adapters(
    port: ClusterPort,
    key: ObjectKey,
    asked: tuple[Adapter, ...],
    observed: Observed,
    told: Mapping[str, tuple[AdapterState, ...] | None],
) -> None:
    """Write the labels and digests that differ from the pods' own reports."""
    digest = _digest(asked)
    for pod in observed.pods:
        states = told.get(pod.name)
        if states is None:
            continue
        served = tuple(sorted(each.name for each in states if each.state == "loaded"))
        knows = {(each.name, each.path) for each in states} == {
            (each.name, each.path) for each in asked
        }
        newest = pod.marks.adapters_digest if knows else digest
        if served == pod.marks.adapters and newest == pod.marks.adapters_digest:
            continue
        marks = replace(pod.marks, adapters=served, adapters_digest=newest)
        now = replace(pod, marks=marks)
        try:
            await port.apply(POD, marked(key.namespace, now))
        except ClusterError as error:  # it has gone, or a chart of before has no right to it
            _logger.info("adapters of pod %s/%s: %s", key.namespace, pod.name, error)


def _digest(asked: tuple[Adapter, ...]) -> str:
    text = "\n".join(f"{each.name} {each.path}" for each in asked)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
