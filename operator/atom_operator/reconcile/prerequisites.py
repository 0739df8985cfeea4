"""Prerequisites of pods: requested from the cluster, decided by plan/waiting.py.

Reads only, because the webhook decides too; the missing Jobs are part of the answer and made by the
reconciler. Called by the Decider.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from atom_operator.children.beside_engines.job import inspection_job, weights_job
from atom_operator.children.workload import pod_template
from atom_operator.cluster.claims import ClaimReader
from atom_operator.cluster.engines import EnginePort
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.jobs import read_job
from atom_operator.cluster.observe import evidence_in
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import LABEL_LEARNED, Reason
from atom_operator.domain import (
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    VOLUME_CLAIM,
    WORKLOAD_KINDS,
    ChildKey,
    Evidence,
    FieldProblem,
    Identity,
    Manifest,
    ObjectKey,
    Observed,
    Plan,
    RouteFindings,
)
from atom_operator.domain.lookup_terms import claim_term, port_terms, route_terms
from atom_operator.domain.preparation import JobRequest, Waiting
from atom_operator.domain.resources import host_ports
from atom_operator.integration_values import Site
from atom_operator.kinds import GATEWAY, HTTP_ROUTE, Kind
from atom_operator.plan.learning import evidence_for
from atom_operator.plan.placement import Placement, placement_of_volume
from atom_operator.plan.route_collisions import route_collisions
from atom_operator.plan.volume_claims.pvc_access import (
    access_modes,
    also_mounted_by,
    also_on_port,
    canary_claim_problem,
    claim_problem,
    claims_of,
    is_for_one_node,
    is_for_one_pod,
    mounted_claims,
)
from atom_operator.plan.waiting import (
    claim_too_small,
    inspected_config,
    waiting_for_inspection,
    waiting_for_weights,
)
from atom_operator.reconcile.weights_on_claim import claim_in_use
from atom_operator.status.verdicts_of_others import unanswered_gateways
from atom_operator.validation.defaulting import locate_model
from atom_operator.validation.parsing import parse_spec

_NAMESPACES_ACCOUNT = "default"
_PULL = "ImagePull"  # ErrImagePull, ImagePullBackOff


@dataclass(frozen=True, slots=True)
class Step:
    """Hold one preparation: its Job, its wait, and its result."""

    job: JobRequest | None = None
    waiting: Waiting | None = None
    config: str | None = None  # the text of a config.json


NOTHING = Step()


async def look_at_model(port: ClusterPort, plan: Plan) -> Step:
    """Inspect the model itself for its shape, if neither the spec nor the catalogue has it."""
    if plan.capacity.reason is not Reason.MODEL_FACTS_UNKNOWN:
        return NOTHING
    job = inspection_job(plan)
    state = await read_job(port, plan.identity.key.namespace, job)
    return Step(job, waiting_for_inspection(job.name, state), inspected_config(state))


async def fetch_weights(
    port: ClusterPort, engines: EnginePort, plan: Plan, at: datetime | None
) -> Step:
    """Return the download of a hub model into its claim; `at` None: it is only read, and not
    requested."""
    job = weights_job(plan)
    if job is None:
        return NOTHING
    state = await read_job(port, plan.identity.key.namespace, job)
    claimed = None
    if state is None or state.phase != "Succeeded":
        claimed = await claim_in_use(port, plan.identity.key, plan.model.location, at)
        job = weights_job(plan, claimed) or job
    if state is None and plan.model.location.claim is not None:
        claim = await port.get(VOLUME_CLAIM, plan.identity.key.namespace, plan.model.location.claim)
        if small := claim_too_small(plan.model, claim):
            return Step(waiting=small)
    running = state is not None and state.phase == "Running"
    address = state.address if state is not None and running else None
    health = await engines.health(address) if address else None
    unknown = claimed.unknown if claimed is not None else None
    return Step(job, waiting_for_weights(job.name, state, health, unknown))


async def evidence_of_others(port: ClusterPort, key: ObjectKey, kind_key: str) -> Evidence | None:
    """Return the measurements of another AtomDeployment's engine of the same kind, in the same
    namespace."""
    labels = {LABEL_LEARNED: "true"}
    for item in await port.list_labelled(CONFIG_MAP, key.namespace, labels):
        found = evidence_for(kind_key, evidence_in(item))
        if found is not None:
            return found
    return None


async def claim_not_shared(
    claims: ClaimReader, fleet: FleetReader, namespace: str, pod_spec: Mapping[str, Any]
) -> str | None:
    """Return why a spare pod may not be able to mount the pods' claims beside an old one; None if
    nothing is known against it, as for a claim that does not exist yet: its pods will report
    that."""
    for name in mounted_claims(pod_spec):
        modes = access_modes(await claims.claim(namespace, name))
        if is_for_one_pod(modes):
            return f"claim {name} can be mounted by one pod only"
        nodes = await fleet.nodes() if is_for_one_node(modes) else None
        if is_for_one_node(modes) and (nodes is None or len(nodes) != 1):
            why = "can be mounted on one node only, which need not be a spare pod's"
            return f"claim {name} {why}"
    return None


async def volume_places(
    claims: ClaimReader, namespace: str, pod_spec: Mapping[str, Any]
) -> tuple[tuple[str, Placement], ...]:
    """Return the claims of pods whose volumes are bound to some nodes, as those of a zone; empty if
    volumes cannot be read."""
    found = []
    for name in mounted_claims(pod_spec):
        claim = await claims.claim(namespace, name)
        volume = ((claim or {}).get("spec") or {}).get("volumeName")
        try:
            manifest = await claims.volume(volume) if volume else None
        except RefusedError:
            return ()
        required = (((manifest or {}).get("spec") or {}).get("nodeAffinity") or {}).get("required")
        if required:
            found.append((name, placement_of_volume(required)))
    return tuple(found)


async def check_claims(claims: ClaimReader, fleet: FleetReader, plan: Plan) -> FieldProblem | None:
    """Return why the replicas cannot share their claims, or None, also if that is unknown."""
    for use in claims_of(plan.engine, plan.model.location, plan.integrations):
        modes = access_modes(await claims.claim(plan.identity.key.namespace, use.name))
        nodes = await fleet.nodes() if is_for_one_node(modes) else None
        count = None if nodes is None else len(nodes)
        problem = claim_problem(plan, use, modes, count)
        if problem is not None:
            return problem
    for name in _shared_with_canary(plan):
        modes = access_modes(await claims.claim(plan.identity.key.namespace, name))
        nodes = await fleet.nodes() if is_for_one_node(modes) else None
        count = None if nodes is None else len(nodes)
        if (problem := canary_claim_problem(plan.pods, name, modes, count)) is not None:
            return problem
    return None


def _shared_with_canary(plan: Plan) -> tuple[str, ...]:
    """Return the claims that the canary's pods mount too."""
    wanted = plan.canary.spec if plan.canary is not None else None
    spec = parse_spec(wanted) if wanted is not None else ()
    if isinstance(spec, tuple):
        return ()
    lora, compiled = spec.engine.lora, spec.cache.compile
    files = spec.cache.kv.disk if spec.cache.kv is not None else None
    below = plan.pods.profile.template if plan.pods.profile is not None else None
    theirs = {
        locate_model(spec).claim,
        *((lora.claims or ()) if lora is not None else ()),
        compiled.claim if compiled is not None else None,
        files.claim if files is not None else None,
        *mounted_claims((below or {}).get("spec") or {}),
        *mounted_claims((spec.template or {}).get("spec") or {}),
    }
    return tuple(name for name in mounted_claims(pod_template(plan)["spec"]) if name in theirs)


async def asked_by_others(
    port: ClusterPort,
    claims: ClaimReader,
    fleet: FleetReader,
    key: ObjectKey,
    pod_spec: Mapping[str, Any],
) -> tuple[str, ...]:
    """Return messages about claims and host ports that other AtomDeployments' pods request too, and
    cannot share with these."""
    names, ports = mounted_claims(pod_spec), host_ports(pod_spec)
    if not names and not ports:
        return ()
    found = []
    for name in names:
        # The modes first: a claim that many nodes can mount may be that of every model.
        modes = access_modes(await claims.claim(key.namespace, name))
        if not is_for_one_node(modes):
            continue
        beside = await _workloads_by(port, [claim_term(key.namespace, name)])
        others = also_mounted_by(key, name, beside)
        nodes = await fleet.nodes() if others else None
        if others and (nodes is None or len(nodes) != 1 or is_for_one_pod(modes)):
            where, kind = "pod" if is_for_one_pod(modes) else "node", ", ".join(sorted(modes))
            found.append(
                f"claim {name} ({kind}) is mounted by {_names(others)} too, and one {where} can "
                "mount it; give each a claim, or use one that is ReadWriteMany"
            )
    beside = await _workloads_by(port, port_terms(pod_spec))
    for number, other in also_on_port(key, pod_spec, beside):
        found.append(
            f"host port {number} is asked for by {_names([other])} too, and no node takes pods of "
            "both; give each a port of its own"
        )
    return tuple(found)


async def _workloads_by(port: ClusterPort, terms: Iterable[str]) -> list[Manifest]:
    """List the workloads that any of the terms finds, each once."""
    return await _by_terms(port, WORKLOAD_KINDS, terms)


async def _by_terms(
    port: ClusterPort, kinds: Iterable[Kind], terms: Iterable[str]
) -> list[Manifest]:
    found: dict[tuple[str, str, str], Manifest] = {}
    asked = tuple(terms)
    for kind in kinds:
        for term in asked:
            for item in await port.list_children_by(kind, term):
                metadata = item["metadata"]
                found[kind.kind, metadata["namespace"], metadata["name"]] = item
    return [found[place] for place in sorted(found)]


def _names(keys: Iterable[ObjectKey]) -> str:
    return ", ".join("/".join(key) for key in keys)


async def account_secrets(
    port: ClusterPort, identity: Identity, observed: Observed, site: Site, *, spec_seen: bool
) -> tuple[str, ...]:
    """Return the pull secrets of the ServiceAccount that we make: the site's, and those that the
    namespace gives its own pods through the account named default. They are read if a decision
    depends on them: a new account or spec, or an image that cannot be pulled."""
    if identity.own_account is not None:
        return ()
    ours = observed.children.get(ChildKey(SERVICE_ACCOUNT, identity.key.name))
    known = known_pull_secrets(observed, identity.key)
    is_whole = ours is not None and {*site.pull_secrets} <= {*known}
    if is_whole and spec_seen and not _cannot_pull(observed):
        return known
    given = await port.get(SERVICE_ACCOUNT, identity.key.namespace, _NAMESPACES_ACCOUNT)
    return tuple(dict.fromkeys([*site.pull_secrets, *_pull_secrets(given or {})]))


def known_pull_secrets(observed: Observed, key: ObjectKey) -> tuple[str, ...]:
    """Return the pull secrets of the ServiceAccount that we have made."""
    return _pull_secrets(observed.children.get(ChildKey(SERVICE_ACCOUNT, key.name)) or {})


def _cannot_pull(observed: Observed) -> bool:
    return any(_PULL in (pod.health.problem or "") for pod in observed.pods)


def _pull_secrets(account: Manifest) -> tuple[str, ...]:
    return tuple(str(item["name"]) for item in account.get("imagePullSecrets") or ())


async def look_at_routes(
    port: ClusterPort, key: ObjectKey, children: Mapping[ChildKey, Manifest]
) -> RouteFindings:
    """Observe other objects' effects on the AtomDeployment's route; nothing is read without a
    route."""
    route = children.get(ChildKey(HTTP_ROUTE, key.name))
    if route is None:
        return RouteFindings()
    missing: list[str] = []
    unanswered: list[str] = []
    for namespace, name in unanswered_gateways(route):
        exists = await _exists(port, GATEWAY, namespace, name)
        (missing if exists is False else unanswered).append(f"{namespace}/{name}")
    routes = await _by_terms(port, (HTTP_ROUTE,), route_terms(route))
    return RouteFindings(route_collisions(key, route, routes), tuple(missing), tuple(unanswered))


async def _exists(port: ClusterPort, kind: Kind, namespace: str, name: str) -> bool | None:
    """Return whether an object exists; None if the operator may not read it."""
    try:
        return await port.get(kind, namespace, name) is not None
    except RefusedError:
        return None
