"""The inputs of a status: the decision, the objects and the reports of one pass, as `roll_up` reads
them. Pure; called by the reconciler when it reports a pass.
"""

from __future__ import annotations

from atom_operator.children import naming
from atom_operator.domain import ApplyReport, EngineView, Manifest, ObjectKey, Observed
from atom_operator.kinds import LEADER_WORKER_SET
from atom_operator.plan.rollouts.own_pods import unschedulable
from atom_operator.plan.room import lacks_devices, shortage
from atom_operator.reconcile.decider import Decision
from atom_operator.status.inputs import StatusInputs, Subject, Surveyed


def status_inputs(
    parent: Manifest,
    decision: Decision,
    report: ApplyReport,
    observed: Observed,
    engines: EngineView,
) -> StatusInputs:
    """Return the inputs of the status of `parent`, an AtomDeployment, after a pass."""
    key = ObjectKey.of(parent)
    subject = Subject(
        name=key.name,
        generation=parent["metadata"].get("generation", 1),
        selector=naming.selector_text(key.name, groups=_in_groups(decision, observed)),
        url=naming.service_url(key),
        suspended=(parent.get("spec") or {}).get("suspend") is True,
    )
    afterwards = decision.afterwards
    return StatusInputs(
        subject=subject,
        problems=decision.problems,
        overlay=decision.overlay,
        plan=decision.plan,
        report=report,
        observed=observed,
        engines=_of_the_spec(engines, observed),
        surveyed=Surveyed(_shortage(decision, observed), afterwards.routes, afterwards.devices),
        waiting=decision.waiting,
        revisions=decision.revisions,
    )


def _in_groups(decision: Decision, observed: Observed) -> bool:
    """Return whether a replica has several pods, of which one serves."""
    if decision.run is not None:
        return decision.run.engine.nodes > 1
    return any(child.kind == LEADER_WORKER_SET for child in observed.children)


def _shortage(decision: Decision, observed: Observed) -> str | None:
    """Return why no node takes a pod that has none, where devices are the cause."""
    supply = decision.supply if unschedulable(observed) is not None else None
    return shortage(supply) if supply is not None and lacks_devices(supply) else None


def _of_the_spec(engines: EngineView, observed: Observed) -> EngineView:
    """Return the valid measurements: none while another revision than the spec's runs."""
    running = observed.deployment
    if running is None or running.notes.rollback is not None:
        return engines.of(None)
    return engines.of(running.revision)
