"""The order in which the pods of a pair change: prefill pods first, then decode pods. Pure.

A rollout of both is one: its window and its turn count once, when it begins. The decode pods keep
their revision until every prefill pod has the new one and the old ones have ended: the device by
which prefill pods were replaced is then free for decode pods. So at most one pod of both roles is
away for the rollout, and one role serves always. If whole pods are asked for, the prefill pods are
suspended first: decode pods then become whole ones with the room that prefill pods leave. After a
rollback of the decode pods, the prefill pods follow them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.children.disaggregation.prefill import prefill_deployment
from atom_operator.domain import (
    DeploymentState,
    Identity,
    Manifest,
    Observed,
    Plan,
    PodRevision,
    PrefillPhase,
    PrefillState,
    RolloutWait,
)
from atom_operator.plan.spec_digest import spec_digest, spec_in_force
from atom_operator.pods.prefill_state import prefill_among
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import prefill_pods, read_profile


@dataclass(frozen=True, slots=True)
class Pair:
    """Hold the prefill pods beside the decode pods. wanted: their spec for the newest decode pods,
    None if prompts are not computed apart; seen: those that exist."""

    wanted: Mapping[str, Any] | None
    seen: PrefillState | None
    observed: Observed

    @property
    def changes_prefill(self) -> bool:
        """Return whether existing prefill pods are to be replaced."""
        if self.wanted is None or self.seen is None:
            return False
        return pods_digest(self.wanted) != pods_digest(self.seen.spec)

    @property
    def has_to_end(self) -> bool:
        """Return whether prefill pods exist that are asked for no more."""
        if self.wanted is not None or self.seen is None:
            return False
        return not (self.seen.spec.get("suspend") and self.seen.phase is PrefillPhase.COMPLETE)

    @property
    def is_midway(self) -> bool:
        """Return whether a rollout of the pair has begun and can continue, so that neither a window
        nor another's turn holds up its second half."""
        return _is_midway(self.seen, self.observed.deployment)

    def waits_for_prefill(
        self, asked: PodRevision, there: PodRevision | None
    ) -> RolloutWait | None:
        """Return why decode pods of the revision `asked` do not replace those that serve yet.

        there: the workload's revision; if the workload was deleted, the one that it comes back as.
        """
        running = self.observed.deployment
        if there is None or not self.observed.serving:
            return None
        rollback = running.notes.rollback if running is not None else None
        if asked.name in (there.name, rollback.failed if rollback is not None else None):
            return None
        if self.wanted is None:
            words = "the prefill pods end first, whose devices are free then"
            return RolloutWait(words, is_pair=True) if self.has_to_end else None
        if self.seen is None:
            return RolloutWait("the prefill pods start first", is_pair=True)
        if self.changes_prefill:
            return RolloutWait("the prefill pods are replaced first", is_pair=True)
        words = f"the prefill pods are replaced first: {self.seen.name}: {self.seen.words}"
        if self.seen.phase is PrefillPhase.COMPLETE:
            if not self.seen.ending:
                return None
            words = f"old prefill pods end, whose devices are free then: {self.seen.ending}"
        return RolloutWait(words, is_pair=True)


def pair_of(plan: Plan, observed: Observed) -> Pair:
    """Return the pair of the newest spec, of which `plan` is."""
    return Pair(prefill_pods(plan), prefill_among(observed.children), observed)


def pair_rolls(observed: Observed) -> bool:
    """Return whether a pair is being replaced and its decode pods have not begun."""
    seen = prefill_among(observed.children)
    if seen is None or observed.deployment is None:
        return False
    return seen.phase is PrefillPhase.ROLLING or _is_midway(seen, observed.deployment)


def _is_midway(seen: PrefillState | None, running: DeploymentState | None) -> bool:
    if seen is None or running is None:
        return False
    return seen.is_ahead(running.notes.spec_digest)


@dataclass(frozen=True, slots=True)
class Written:
    """Hold the AtomDeployment of the prefill pods to write; None: there is to be none. is_kept: an
    existing one stays as it is."""

    manifest: Manifest | None = None
    is_kept: bool = False


def prefill_to_write(
    pair: Pair, asked: Plan, run: Plan, waits: RolloutWait | None, *, runs_asked: bool
) -> Written:
    """Choose the prefill pods for the decode pods that the workload runs. asked: the plan of the
    newest spec; run: of the pods to run; runs_asked: they are the newest spec's."""
    identity, seen = asked.identity, pair.seen
    if waits is not None and not waits.is_pair:
        return _unchanged(identity, seen, pair.wanted) if seen else prefill_in_force(run)
    source = asked if waits is not None or runs_asked else run
    wanted = pair.wanted if source is asked else prefill_pods(source)
    if wanted is None:
        if waits is None or seen is None:
            return Written()
        spec = {**seen.spec, "suspend": True}
        return Written(prefill_deployment(identity, spec, source.spec.digest))
    goes_back = not runs_asked and _go_back(pair.observed)
    is_busy = waits is None and (goes_back or _decode_pods_roll(pair.observed))
    if seen is not None and is_busy and pods_digest(wanted) != pods_digest(seen.spec):
        return _unchanged(identity, seen, wanted)
    return Written(prefill_deployment(identity, wanted, source.spec.digest))


def prefill_in_force(run: Plan) -> Written:
    """Return the prefill pods that decode pods of a plan had: deleted ones come back as they were
    while a change waits."""
    wanted = prefill_pods(run)
    if wanted is None:
        return Written()
    spec = {**wanted, "suspend": True} if run.scale.suspended else wanted
    return Written(prefill_deployment(run.identity, spec, run.spec.digest))


def held_back(identity: Identity, seen: PrefillState, *, suspended: bool) -> Manifest:
    """Return the prefill pods while the newest spec is held back, of which only spec.suspend
    counts."""
    spec = {name: value for name, value in seen.spec.items() if name != "suspend"}
    if suspended:
        spec["suspend"] = True
    return prefill_deployment(identity, spec, seen.goes_with or "")


def pods_digest(raw: Mapping[str, Any]) -> str:
    """Digest the request for prefill pods of a spec that the operator wrote: equal if the pods
    are."""
    spec = parse_spec(raw)
    if isinstance(spec, tuple):
        return ""
    stored = (raw.get("disaggregation") or {}).get("profile")
    profile = read_profile(stored) if stored is not None else None
    return spec_digest(spec, spec.engine.image or "", None, profile)


def _unchanged(identity: Identity, seen: PrefillState, wanted: Mapping[str, Any] | None) -> Written:
    """Keep the prefill pods, with the newest numbers of replicas and other fields that no pod
    notices."""
    if wanted is None:
        return Written(is_kept=True)
    spec = spec_in_force(wanted, seen.spec)
    return Written(prefill_deployment(identity, spec, seen.goes_with or ""))


def _go_back(observed: Observed) -> bool:
    """Return whether decode pods that failed still exist: the prefill pods go back after them."""
    running = observed.deployment
    if running is None or not running.desired:
        return False
    return running.notes.rollback is None or running.replicas > running.updated


def _decode_pods_roll(observed: Observed) -> bool:
    """Return whether decode pods are being replaced and the first new one serves, or old ones end:
    no pod of the other role is stopped meanwhile. A rollout without one may need the next spec to
    continue."""
    running = observed.deployment
    if observed.places_left_soon:
        return True
    if running is None or running.complete or running.progress.paused or not running.desired:
        return False
    if running.progress.stalled_message is not None or running.replicas <= running.updated:
        return False
    return running.revision in observed.serving
