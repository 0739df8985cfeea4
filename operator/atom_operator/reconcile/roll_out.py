"""How the pods of a target replace the running ones, by the nodes' and the API server's answers.

The second stage of a decision: the pods to run are chosen already, and decide what is read here.
Writes nothing. Called by the Decider.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.children.workload import workload_kind
from atom_operator.cluster.claims import ClaimReader
from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    Manifest,
    Observed,
    Plan,
    PodRevision,
    RevisionInForce,
    Rollout,
    RolloutStrategy,
    Supply,
)
from atom_operator.plan.devices.claimed_devices import supply_of
from atom_operator.plan.inventory import PodsAsked, pods_asked
from atom_operator.plan.quota import refusal_of_new_pods
from atom_operator.plan.rollouts.fewer_groups import fewest_groups, groups_awaited, groups_to_keep
from atom_operator.plan.rollouts.fewer_replicas import kept_replicas
from atom_operator.plan.rollouts.own_pods import own_pods
from atom_operator.plan.rollouts.question import Refusals, RolloutQuestion, WantedPods
from atom_operator.plan.rollouts.rollout import (
    begun,
    choose_rollout,
    gives_up_first,
    is_changing,
    needs_supply,
    stops_serving_pods,
)
from atom_operator.plan.scaling import leave_to_autoscaler
from atom_operator.reconcile.departures import Departures
from atom_operator.reconcile.prerequisites import claim_not_shared, volume_places
from atom_operator.reconcile.successors import refusal_of_rollout


@dataclass(frozen=True, slots=True)
class RolloutChooser:
    """Reads nodes, volumes and the API server's verdict through `port` and `fleet`."""

    port: ClusterPort
    claims: ClaimReader
    fleet: FleetReader
    departures: Departures

    async def choose(
        self, run: RevisionInForce, asked: RolloutSpec, observed: Observed
    ) -> tuple[Plan, Supply | None]:
        """Return the plan with its rollout and number of replicas, and the supply that these
        follow."""
        plan, pods = run.plan, run.pods
        question = _question(plan, pods, asked, observed)
        namespace, pod_spec = plan.identity.key.namespace, pods.template["spec"]
        refusals = replace(
            question.refusals,
            claim_not_shared=await claim_not_shared(self.claims, self.fleet, namespace, pod_spec),
            quota_is_old=self.departures.are_newer(plan.identity.key, observed),
        )
        question = replace(question, refusals=refusals)
        chosen, supply = await self._rollout(plan, pods, question, observed)
        chosen = begun(chosen, question, observed, plan.engine.nodes)
        surges = chosen.strategy is RolloutStrategy.SURGE and not plan.scale.suspended
        changes_kind = surges and is_changing(question)
        rollout = replace(plan.rollout, chosen=chosen, changes_kind=changes_kind)
        plan = replace(plan, rollout=rollout)
        bound = supply if plan.accelerator.resource_name is not None else None
        kept = kept_replicas(question, chosen, observed)
        kept = kept or fewest_groups(observed, plan.engine.nodes)
        plan = leave_to_autoscaler(plan, bound, observed, kept_replicas=kept)
        return _with_groups(plan, pods, observed), supply

    async def _rollout(
        self, plan: Plan, pods: PodRevision, question: RolloutQuestion, observed: Observed
    ) -> tuple[Rollout, Supply | None]:
        """Choose the rollout, reading no more of the nodes than it depends on."""
        scaled = plan.integrations.autoscaling is not None
        supply: Supply | None = None
        now = needs_supply(question) or question.pods.unschedulable is not None
        if now or (scaled and plan.accelerator.resource_name is not None):
            spec, namespace = pods.template["spec"], plan.identity.key.namespace
            volumes = await volume_places(self.claims, namespace, spec)
            wanted = pods_asked(plan, pods.template, pods.name, observed, volumes)
            supply = await self._survey(plan, wanted, Age.RECENT if now else Age.KNOWN)
        rollout = choose_rollout(replace(question, supply=supply))
        if now and stops_serving_pods(question, rollout):
            # The pods are observed by a watch: in an older picture one of our ended pods still
            # holds the resources that the new one is about to take.
            supply = await self._survey(plan, wanted, Age.NOW)
            rollout = choose_rollout(replace(question, supply=supply))
        if gives_up_first(question, rollout):
            refused = await refusal_of_rollout(self.port, plan, observed, pods)
            refusals = replace(question.refusals, inadmissible=refused)
            rollout = choose_rollout(replace(question, supply=supply, refusals=refusals))
        return rollout, supply

    async def supply(self, plan: Plan, template: Manifest) -> Supply | None:
        """Return the nodes' supply for pods that need devices; None if nodes cannot be read, or for
        cpu."""
        if plan.accelerator.resource_name is None:
            return None
        volumes = await volume_places(self.claims, plan.identity.key.namespace, template["spec"])
        return await self._survey(plan, pods_asked(plan, template, volumes=volumes), Age.RECENT)

    async def _survey(self, plan: Plan, asked: PodsAsked, age: Age) -> Supply | None:
        """Read the supply of the cluster; None if it cannot be read."""
        nodes, pods = await asyncio.gather(self.fleet.nodes(age), self.fleet.pods(age))
        if nodes is None or pods is None:
            return None
        picture = await self.fleet.devices(age) if plan.accelerator.claim else None
        return supply_of(plan, nodes, pods, picture, asked)


def _with_groups(plan: Plan, pods: PodRevision, observed: Observed) -> Plan:
    """Return the plan with as many groups as keep what serves, where their number is ours, and why
    there are so many."""
    scaling, asked, size = plan.integrations.autoscaling, plan.scale.replicas, plan.engine.nodes
    if size == 1 or plan.scale.suspended:
        return plan
    if scaling is not None:
        few = f"spec.autoscaling.minReplicas is {scaling.min_replicas}"
        kept, why = scaling.fewest, few if scaling.fewest > scaling.min_replicas else None
        scale = plan.scale
    else:
        kept = groups_to_keep(observed, pods.name, asked, size)
        why = f"spec.replicas is {asked}" if kept > asked else None
        scale = replace(plan.scale, replicas=kept)
    if why is not None:
        awaited = ", ".join(map(str, groups_awaited(observed, size)))
        why = (
            f"{why}, and {kept} groups stay until those of the lowest numbers serve (not yet: "
            f"{awaited}), because the controller of groups ends the highest numbers first"
        )
    return replace(plan, scale=replace(scale, keeps=why))


def _question(
    plan: Plan, pods: PodRevision, asked: RolloutSpec, observed: Observed
) -> RolloutQuestion:
    """Build the question from the observation; the caller adds facts that have to be read."""
    kind = workload_kind(plan.engine)
    own, retiring = observed.workload_of(kind), observed.retiring(kind)
    is_ours = plan.integrations.autoscaling is None or plan.scale.suspended
    return RolloutQuestion(
        wanted=WantedPods(
            strategy=asked.strategy or "Auto",
            accelerator=plan.accelerator,
            revision=pods.name,
            replicas=plan.scale.replicas if is_ours else None,
            in_groups=plan.engine.nodes > 1,
        ),
        running=own,
        pods=own_pods(observed, pods.name),
        supply=None,
        refusals=Refusals(quota=refusal_of_new_pods(observed, own, pods)),
        retiring=max(retiring.values(), key=lambda state: state.ready, default=None),
    )
