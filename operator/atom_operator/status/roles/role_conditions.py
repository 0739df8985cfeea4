"""PrefillReady, DecodeReady and PairCompatible: the pods of spec.disaggregation by role. Pure.

The decode pods are those of the AtomDeployment itself, which every other condition describes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import PrefillPhase, PrefillState
from atom_operator.status.conditions import Verdict
from atom_operator.status.inputs import StatusInputs

# Fields that decide the bytes of a KV page: pods in which one differs exchange none.
_OF_PAGES = (
    *("model.source", "model.revision", "model.config"),
    *("engine.image", "engine.kvCacheDtype", "engine.blockSize", "engine.reproducible"),
    "engine.extraArgs",
)


def pair_verdicts(situation: StatusInputs) -> Iterator[Verdict]:
    """Yield the conditions of both roles; none if prompts are not computed apart."""
    if not situation.is_divided:
        return
    prefill, running = situation.prefill, situation.deployment
    yield _prefill_ready(prefill)
    words = f"{running.ready} of {running.desired} decode pods are ready"
    if running.ready >= running.desired:
        yield Verdict(ConditionType.DECODE_READY, "True", Reason.ROLE_SERVES, words)
    else:
        yield Verdict(ConditionType.DECODE_READY, "False", Reason.DECODE_NOT_READY, words)
    if prefill is not None:
        yield _compatible(situation, prefill)


def pair_progress(situation: StatusInputs) -> Verdict | None:
    """Return how a rollout of a pair continues whose decode pods have not begun; None else."""
    waits, prefill = situation.waits, situation.prefill
    if waits is None or not waits.is_pair:
        return None
    kind = ConditionType.PROGRESSING
    if prefill is not None and prefill.phase is PrefillPhase.STOPPED:
        return Verdict(kind, "False", Reason.PREFILL_FAILED, waits.words)
    return Verdict(kind, "True", Reason.ROLLING_OUT, waits.words)


def pair_status(situation: StatusInputs) -> dict[str, Any] | None:
    """Build status.disaggregation; None if prompts are not computed apart."""
    if not situation.is_divided:
        return None
    running, prefill = situation.deployment, situation.prefill
    decode = _role(situation.subject.name, running.desired, running.ready, running.revision)
    if prefill is None:
        return {"decode": decode}
    counts = (prefill.replicas, prefill.ready_replicas, prefill.revision)
    return {"prefill": _role(prefill.name, *counts), "decode": decode}


def prefill_pods_that_end(situation: StatusInputs, now: datetime) -> int:
    """Count the old pods of prefill pods that still hold their devices; none of other pods."""
    transfer = situation.run.engine.serving.transfer if situation.run is not None else None
    if transfer is None or not transfer.computes_prompts:
        return 0
    return replace(situation.observed, at=now).places_left_soon


def _role(name: str, replicas: int, ready: int, revision: str | None) -> dict[str, Any]:
    role: dict[str, Any] = {"name": name, "replicas": replicas, "readyReplicas": ready}
    return role if revision is None else {**role, "revision": revision}


def _prefill_ready(prefill: PrefillState | None) -> Verdict:
    kind = ConditionType.PREFILL_READY
    if prefill is None:
        words = "the AtomDeployment of the prefill pods does not exist yet"
        return Verdict(kind, "False", Reason.PREFILL_NOT_READY, words)
    if prefill.is_ready:
        words = f"{prefill.ready_replicas} of {prefill.replicas} prefill pods are ready"
        return Verdict(kind, "True", Reason.ROLE_SERVES, words)
    reason = Reason.PREFILL_NOT_READY
    if prefill.phase is PrefillPhase.STOPPED:
        reason = Reason.PREFILL_FAILED
    return Verdict(kind, "False", reason, f"{prefill.name}: {prefill.words}")


def _compatible(situation: StatusInputs, prefill: PrefillState) -> Verdict:
    """Compare the requests for the pods that run, by the fields that decide a page."""
    kind, run = ConditionType.PAIR_COMPATIBLE, situation.run
    differs = None
    if run is not None:
        engine = {**(run.spec.asked.get("engine") or {}), "image": run.engine.serving.image}
        theirs = {**run.spec.asked, "engine": engine}
        differs = next((f for f in _OF_PAGES if _at(theirs, f) != _at(prefill.spec, f)), None)
    if differs is None:
        return Verdict(kind, "True", Reason.SAME_REVISION, "both roles exchange KV pages")
    words = (
        f"spec.{differs} of the prefill pods differs from that of the decode pods, so decode pods "
        "compute their prompts until both are of one revision"
    )
    return Verdict(kind, "False", Reason.REVISIONS_DIFFER, words)


def _at(spec: Mapping[str, Any], path: str) -> Any:
    value: Any = spec
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
