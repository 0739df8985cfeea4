"""Reads the AtomProfile of a spec: the one that the spec names, else a label of its namespace, else
default. Called by the Decider, by who lists optional kinds, and by the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import DEFAULT_PROFILE, LABEL_PROFILE
from atom_operator.domain import ATOM_PROFILE, FieldProblem, is_prefill
from atom_operator.kinds import Kind
from atom_operator.plan.resolve_integrations import asked_kinds
from atom_operator.reconcile.profiles.fence import Namespace
from atom_operator.reconcile.profiles.profile import Laid, lay, name_profile, profile_problem
from atom_operator.settings import OperatorSettings
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import decode_pods, read_profile

_NOT_READ = (
    "AtomProfile {}, named by {}, is not read: this operator watches single namespaces"
    " (watchNamespaces) and has no right to AtomProfiles, which belong to the cluster; leave it out"
    " and use the chart's defaults, or install the operator for the whole cluster"
)


async def with_profile(
    port: ClusterPort, namespace: str, raw: Mapping[str, Any], settings: OperatorSettings
) -> Laid | tuple[FieldProblem, ...]:
    """Return the spec `raw` of a namespace merged over its profile, or the problems of either."""
    spec = parse_spec(raw)
    if isinstance(spec, tuple):
        return spec
    if is_prefill(raw):  # of which the decode pods have decided
        stored = raw["disaggregation"].get("profile")
        return Laid(spec, read_profile(stored) if stored is not None else None, spec)
    labels: Mapping[str, str] | None = None
    try:
        if spec.profile is None and not settings.namespaces:
            labels = await port.get_namespace_labels(namespace)
        named = name_profile(spec, namespace, (labels or {}).get(LABEL_PROFILE))
        found = await _read(port, named[0], settings)
        selects = found is not None and found.get("namespaceSelector") is not None
        if selects and labels is None and not settings.namespaces:
            labels = await port.get_namespace_labels(namespace)
        if found is None and named[1] is not None and settings.namespaces:
            return (profile_problem(_NOT_READ.format(*named)),)
    except RefusedError as error:
        return (profile_problem(f"AtomProfiles cannot be read: {error}"),)
    return lay(raw, spec, named, found, namespace=Namespace(namespace, labels))


async def profile_named(
    port: ClusterPort, namespace: str, raw: Mapping[str, Any], settings: OperatorSettings
) -> str:
    """Name the AtomProfile that a spec takes, whether it exists or not."""
    own = raw.get("profile")
    if isinstance(own, str) or settings.namespaces:
        return own if isinstance(own, str) else DEFAULT_PROFILE
    try:
        labels = await port.get_namespace_labels(namespace)
        return labels.get(LABEL_PROFILE) or DEFAULT_PROFILE
    except RefusedError:
        return DEFAULT_PROFILE


async def optional_kinds(
    port: ClusterPort, namespace: str, raw: Mapping[str, Any], settings: OperatorSettings
) -> frozenset[Kind]:
    """Name the kinds beyond the usual ones that a spec asks for, by itself or by its profile, which
    may have its pods claim devices."""
    spec = parse_spec(raw)
    if isinstance(spec, tuple):
        return frozenset()
    laid = await with_profile(port, namespace, raw, settings)
    return frozenset(asked_kinds(decode_pods(spec if isinstance(laid, tuple) else laid.spec)))


async def _read(
    port: ClusterPort, name: str, settings: OperatorSettings
) -> Mapping[str, Any] | None:
    """Read the spec of an AtomProfile. An operator of single namespaces may not, and has its
    chart's defaults."""
    manifest = None if settings.namespaces else await port.get(ATOM_PROFILE, "", name)
    if manifest is not None:
        spec: Mapping[str, Any] = manifest.get("spec") or {}
        return spec
    return settings.site.defaults if name == DEFAULT_PROFILE else None
