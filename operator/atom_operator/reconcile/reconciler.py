"""Reconcile: the one level-based function: read, decide, apply, observe, report.

The same for a created, changed, resumed or drifted AtomDeployment: it looks at the present state
and never at past events. Takes the cluster and the clock as parameters; knows no kopf. Called by
the work queue; a crash anywhere in it is repaired by the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from atom_operator.children.beside_engines.job import made_account
from atom_operator.cluster.apply import ChildrenState, apply_children
from atom_operator.cluster.engines import (
    EnginePort,
    MetricsReader,
    ask_adapters,
    ask_drafts,
    ask_engines,
    ask_outlooks,
    ask_sleep,
)
from atom_operator.cluster.errors import ClusterError, UnfinishedError
from atom_operator.cluster.jobs import JobsReport, ensure_account, ensure_jobs
from atom_operator.cluster.observe import describe, observe
from atom_operator.cluster.optional import Look
from atom_operator.cluster.pod_marks.adapter_labels import tell_adapters
from atom_operator.cluster.pod_marks.deletion_costs import tell_deletion_costs
from atom_operator.cluster.pod_waits.refused import told
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.replicas.hand_over import give_up_replicas
from atom_operator.cluster.replicas.stuck_scaling import release_stuck_scaling
from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    POD,
    WORKLOAD_KINDS,
    ApplyReport,
    ChildKey,
    DeviceFindings,
    EngineView,
    Kind,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    Refusal,
    RouteFindings,
    is_prefill,
)
from atom_operator.kinds import SECRET
from atom_operator.plan.rollouts.group_deadline import with_deadline
from atom_operator.reconcile.decider import Afterwards, Decider, Decision
from atom_operator.reconcile.memories import Memories
from atom_operator.reconcile.nodes.silent_nodes import with_silent_nodes
from atom_operator.reconcile.prerequisites import look_at_routes
from atom_operator.reconcile.profiles.find_profile import optional_kinds, profile_named
from atom_operator.reconcile.profiles.profile import is_profile
from atom_operator.reconcile.requeue import requeue_after
from atom_operator.reconcile.rollout_turn import ALONE, Turns
from atom_operator.reconcile.status_inputs import status_inputs
from atom_operator.reconcile.teller import Teller
from atom_operator.status.capacity import measured_before
from atom_operator.status.events import Happening, given_back
from atom_operator.status.removed_weights import removal
from atom_operator.status.rollup import roll_up
from atom_operator.status.steady import known_failure
from atom_operator.status.undecided import tells_of_failure, undecided_status

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tell the queue when to look again without an event."""

    requeue_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """Hold the observations of a pass. now: one time for all of the pass, so that a deadline is
    judged and reported alike; failure: the failure that the status reports."""

    now: datetime
    look: Look
    failure: str | None
    observed: Observed
    engines: EngineView


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Bring one AtomDeployment at a time to the state of its spec."""

    port: ClusterPort
    engines: EnginePort
    decider: Decider
    clock: Callable[[], datetime]
    memories: Memories = field(default_factory=Memories)
    # Told of an AtomDeployment whose status another's pass made old.
    wake: Callable[[ObjectKey], None] = lambda _key: None
    colliding: dict[ObjectKey, frozenset[ObjectKey]] = field(default_factory=dict)

    @property
    def teller(self) -> Teller:
        """Return the writer of Events."""
        return Teller(self.port, self.clock)

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """Run one pass. Raises ClusterError if the cluster did not let it finish."""
        try:
            outcome = await self._pass(key)
        except UnfinishedError:
            self.memories.failing.end_pass(key)
            raise
        except ClusterError as error:
            await self._tell_cut_off(key, str(error))
            raise
        self.memories.failing.forget(key)
        return outcome

    async def _pass(self, key: ObjectKey) -> Outcome:
        parent = await self.port.get(ATOM_DEPLOYMENT, key.namespace, key.name)
        if parent is None or parent["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return Outcome()  # garbage collection removes the children through their owner
        seen = await self._see(key, parent)
        found = (seen.observed, seen.engines)
        turns = self._turns_of(key)
        if is_prefill(parent.get("spec") or {}):
            self.memories.train.pass_over(key)  # its owner's turn is that of both
            turns = ALONE
        else:
            self.memories.train.see(key, seen.observed)
        decision = await self.decider.decide(key, parent, *found, turns)
        if decision.waits is None or not decision.waits.in_row:
            self.memories.train.leave(key)
        self.memories.profile_users.note_waiting(key, waits=_waits_for_profile(decision))
        todo = decision
        if todo.desired is None:
            todo = await self.decider.keep_last_accepted(key, parent, *found)
        metrics = MetricsReader(self.engines)
        report, seen = await self._write_children(parent, todo, seen, metrics)
        await release_stuck_scaling(self.port, key, replace(seen.observed, at=seen.now))
        jobs = await self._ensure_jobs(key, parent, decision)
        report = replace(report, refused=(*report.refused, *jobs.refused)).adding(jobs.failed)
        self.memories.optional.remember(key, seen.look, seen.observed.children)
        seen, failed = await self._ask_features(key, decision.serving, seen, metrics)
        devices = await self._move(key, replace(seen.observed, at=seen.now))
        await self._give_back(Owner(key, parent["metadata"]["uid"]), todo, seen)
        routes = await look_at_routes(self.port, key, seen.observed.children)
        self._wake_others(key, routes)
        decision = replace(decision, afterwards=Afterwards(routes, devices))
        return await self._conclude(parent, decision, report.adding(failed), seen)

    def _forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone, or is to go."""
        self.memories.forget(key)
        decider = self.decider
        for memory in (decider.templates, decider.departures, decider.plans):
            memory.forget(key)
        self._wake_others(key, RouteFindings())

    async def _see(self, key: ObjectKey, parent: Manifest) -> _Seen:
        """Read the existing objects and the engines' reports."""
        raw, settings = parent.get("spec") or {}, self.decider.settings
        self.memories.profile_users.note(
            key, await profile_named(self.port, key.namespace, raw, settings)
        )
        kinds = await optional_kinds(self.port, key.namespace, raw, settings)
        look = await self.memories.optional.begin(key, kinds)
        now = self.clock()
        observed = await observe(self.port, key, parent["metadata"]["uid"], look.kinds, now)
        observed = await with_silent_nodes(self.decider.fleet, observed)
        status = parent.get("status") or {}
        failure = known_failure(status, observed.deployment)
        observed = with_deadline(replace(observed, at=now), now, failure)
        engines = await ask_engines(self.engines, observed, measured_before(status))
        return _Seen(now, look, failure, observed, engines)

    async def _write_children(
        self, parent: Manifest, todo: Decision, seen: _Seen, metrics: MetricsReader
    ) -> tuple[ApplyReport, _Seen]:
        """Write the children, and read the objects that exist afterwards."""
        key, now = ObjectKey.of(parent), seen.now
        deployment = seen.observed.deployment
        contested = self.memories.contests.look(key, todo.desired or {}, deployment, now)
        desired, owner = (todo.desired or {}).values(), Owner(key, parent["metadata"]["uid"])
        unmade = await _attempt(SECRET, self.memories.peers.ensure(self.port, owner, desired, now))
        report, observed = await self._carry_out(key, todo, seen.observed, metrics)
        observed = with_deadline(observed, now, seen.failure)
        if observed.deployment is not None and contested is not None:
            others = replace(observed.deployment.others, contested=contested)
            fought = replace(observed.deployment, others=others)
            observed = replace(observed, deployment=fought)
        return report.adding(unmade), replace(seen, observed=observed)

    async def _ask_features(
        self, key: ObjectKey, serving: Plan | None, seen: _Seen, metrics: MetricsReader
    ) -> tuple[_Seen, tuple[Refusal, ...]]:
        """Query the engines about the features of the serving plan, and label their pods with the
        adapters that they serve; return failed writes."""
        if serving is None:
            return seen, ()
        observed, engines = seen.observed, seen.engines
        failed: tuple[Refusal, ...] = ()
        if serving.engine.speculative.method is not None:
            engines = replace(engines, drafts=await ask_drafts(metrics, observed))
        if serving.engine.serving.sleep_idle_seconds is not None:
            engines = replace(engines, sleep=await ask_sleep(metrics, observed))
        if serving.integrations.slo is not None:
            outlooks = await ask_outlooks(metrics, observed)
            latencies = self.memories.latencies.look(key, outlooks, seen.now)
            engines = replace(engines, latencies=latencies)
        if serving.engine.lora is not None:
            asked, told = serving.model.adapters, await ask_adapters(self.engines, observed)
            engines = replace(engines, adapters=told)
            failed = await _attempt(POD, tell_adapters(self.port, key, asked, observed, told))
        return replace(seen, engines=engines), failed

    async def _conclude(
        self, parent: Manifest, decision: Decision, report: ApplyReport, seen: _Seen
    ) -> Outcome:
        """Report the pass and return its outcome. Raises UnfinishedError for children that were not
        written."""
        key, previous = ObjectKey.of(parent), parent.get("status") or {}
        unwritten = [each.child for each in report.failed]
        late = self.memories.failing.note(
            key, unwritten, seen.now, is_told=tells_of_failure(previous)
        )
        if late:
            self.memories.train.pass_over(key)
        report = report.lasting(late)
        if late or not report.failed or not _is_reported(parent):
            await self._report(parent, decision, report, seen)
        if late:
            await self._tell_failing(key, parent, late, report)
        if unwritten:
            raise UnfinishedError(_words([*report.failed, *report.refused]))
        asked = (decision, report, seen.observed, seen.engines)
        return Outcome(requeue_after(*asked, self.clock()))

    def _turns_of(self, key: ObjectKey) -> Turns:
        return Turns(
            lambda defaults: self.memories.train.take(key, defaults),
            lambda defaults: self.memories.train.take(key, defaults, urgent=True),
        )

    async def _move(self, key: ObjectKey, observed: Observed) -> DeviceFindings:
        """Evict the pod whose turn it is to leave sick devices."""
        found = await self.memories.moves.look(self.port, self.decider.fleet, key, observed)
        if found.move is None:
            return found
        pod = found.move
        refused = await self.port.evict(key.namespace, pod.name, pod.uid)
        _logger.info("%s/%s: pod %s: %s", *key, pod.name, refused or "evicted from sick devices")
        return found if refused is None else self.memories.moves.refused(found, refused)

    async def _give_back(self, owner: Owner, todo: Decision, seen: _Seen) -> None:
        """Evict a half-placed group whose nodes another one needs."""
        if todo.revisions is None:
            return
        key, observed = owner.key, replace(seen.observed, at=seen.now)
        group = await self.memories.places.look(self.decider.fleet, todo.revisions.run, observed)
        if group is None:
            return
        pod = group.leader
        refused = await self.port.evict(key.namespace, pod.name, pod.uid)
        _logger.info("%s/%s: group %s: %s", *key, pod.name, refused or "gives its pods back")
        if refused is None:
            await self.teller.tell(owner, [given_back(pod.name, group.placed, group.lacking)])

    def _wake_others(self, key: ObjectKey, routes: RouteFindings) -> None:
        """Wake the other of two AtomDeployments that collide, or no longer do: both report it."""
        before = self.colliding.pop(key, frozenset())
        now = frozenset(item.other for item in routes.collisions)
        if now:
            self.colliding[key] = now
        for other in before ^ now:
            self.wake(other)

    async def _carry_out(
        self, key: ObjectKey, todo: Decision, observed: Observed, metrics: MetricsReader
    ) -> tuple[ApplyReport, Observed]:
        desired = todo.desired
        if desired is None:
            return ApplyReport(), observed
        costs = tell_deletion_costs(self.port, metrics, key, desired, observed)
        failed = list(await _attempt(POD, costs))
        kept, handed = todo.kept, give_up_replicas(self.port, key, desired, observed.children)
        if stays := await _attempt(DEPLOYMENT, handed):
            # Without that its number would fall to the API's default.
            failed += stays
            kept |= {child for child in desired if child.kind in WORKLOAD_KINDS}
            desired = {child: item for child, item in desired.items() if child not in kept}
        state = ChildrenState(desired, observed.children, kept)
        report, children = await apply_children(self.port, key, state, self.memories.applied)
        report = report.adding(failed)
        now = replace(describe(children, observed.pods), refused=observed.refused)
        now = replace(told(now), leaving=observed.leaving, silent=observed.silent)
        return report, replace(now, ended=observed.ended)

    async def _ensure_jobs(
        self, key: ObjectKey, parent: Manifest, decision: Decision
    ) -> JobsReport:
        """Create and replace Jobs. Without an accepted spec running Jobs continue."""
        if decision.plan is None:
            return JobsReport()
        metadata = parent["metadata"]
        seen = (parent.get("status") or {}).get("observedGeneration") or -1
        changed = seen > 0 and seen != metadata.get("generation")
        owner = Owner(key, metadata["uid"])
        plan = decision.plan
        account = made_account(plan.identity, plan.model.location) if decision.jobs else None
        no_account = await ensure_account(self.port, account) if account is not None else ()
        report = await ensure_jobs(self.port, owner, decision.jobs, self.clock(), prune=changed)
        report = replace(report, refused=(*no_account, *report.refused))
        told = (removal(name, state, self.clock()) for name, state in report.succeeded)
        await self.teller.tell(
            owner, [happening for happening in told if happening is not None], once=True
        )
        return report

    async def _tell_cut_off(self, key: ObjectKey, words: str) -> None:
        """Report in the status that the newest spec is undecided, and lasting failures. A failure
        to write that is not worth another error."""
        now = self.clock()
        try:
            parent = await self.port.get(ATOM_DEPLOYMENT, key.namespace, key.name)
        except ClusterError:
            return
        if parent is None:
            return
        metadata, previous = parent["metadata"], parent.get("status") or {}
        is_late = self.memories.failing.note_pass(key, now, is_told=tells_of_failure(previous))
        if is_late:
            self.memories.train.pass_over(key)
        elif _is_reported(parent):
            return
        status = undecided_status(previous, metadata["generation"], words, now, is_late=is_late)
        try:
            if status != previous:
                await self.port.apply_status(key, status)
        except ClusterError as error:
            _logger.warning("status of %s/%s: %s", *key, error)
        if is_late and self.memories.failing.tell_once(key):
            await self.teller.tell(Owner(key, metadata["uid"]), [_failing(words)])

    async def _tell_failing(
        self, key: ObjectKey, parent: Manifest, late: frozenset[ChildKey], report: ApplyReport
    ) -> None:
        """Write the Event of lasting failures, unless a condition's flip is one."""
        before = {each["type"]: each for each in (parent.get("status") or {}).get("conditions", ())}
        flips = before.get(ConditionType.DEGRADED.value, {}).get("status") != "True"
        if self.memories.failing.tell_once(key) and not (flips and any(report.refused)):
            failed = (*report.refused, *report.refused_optional)
            words = _words(each for each in failed if each.child in late)
            await self.teller.tell(Owner(key, parent["metadata"]["uid"]), [_failing(words)])

    async def _report(
        self, parent: Manifest, decision: Decision, report: ApplyReport, seen: _Seen
    ) -> None:
        """Write the status, unless nothing changed."""
        metadata, key = parent["metadata"], ObjectKey.of(parent)
        situation = status_inputs(parent, decision, report, seen.observed, seen.engines)
        previous: Mapping[str, Any] = parent.get("status") or {}
        status = roll_up(situation, previous, self.clock())
        if status != previous:
            await self.port.apply_status(key, status)
            ready = status["conditions"][-1]
            _logger.info(
                "%s/%s: Ready=%s %s: %s", *key, ready["status"], ready["reason"], ready["message"]
            )
            await self.teller.announce(Owner(key, metadata["uid"]), previous, status)


async def _attempt(kind: Kind, write: Awaitable[None]) -> tuple[Refusal, ...]:
    """Make a write that no other write depends on; return its refusal, if it failed."""
    try:
        await write
    except ClusterError as error:
        return (Refusal(ChildKey(kind, ""), Reason.APPLY_FAILED, str(error)),)
    return ()


def _failing(words: str) -> Happening:
    reason = Reason.APPLY_FAILED.value
    return Happening("Warning", ConditionType.DEGRADED.value, "True", reason, words)


def _words(failed: Iterable[Refusal]) -> str:
    return "; ".join(each.message for each in failed)


def _is_reported(parent: Manifest) -> bool:
    """Return whether the status speaks of the newest spec."""
    seen = (parent.get("status") or {}).get("observedGeneration")
    return seen is not None and seen == parent["metadata"].get("generation")


def _waits_for_profile(decision: Decision) -> bool:
    """Return whether a changed AtomProfile is followed later."""
    defaults = decision.waits.defaults if decision.waits is not None else ()
    return any(is_profile(default) for default in defaults)
