"""Preview of an apply, as warnings for the person who applies. Pure.

The numbers are those of the plan (plan_report has the same ones as a page); this adds the
difference to the stored spec, and the cost of the rollout. Called by the webhook with decisions
that the reconciler made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from atom_operator.domain import (
    Capacity,
    DeploymentState,
    FieldProblem,
    Plan,
    RolloutStrategy,
    ScalePlan,
    Supply,
)
from atom_operator.plan.room import placeable, shortage
from atom_operator.plan_report import facts, needs_of
from atom_operator.sizes import size_text


@dataclass(frozen=True, slots=True)
class Preview:
    """The decision about an object as it would be, and about the same object as it is stored."""

    after: Plan | tuple[FieldProblem, ...]
    before: Plan | None = None  # None: just created, or not accepted so far
    revision: str | None = None  # of the pods that would run
    running: DeploymentState | None = None
    supply: Supply | None = None  # for one pod of `after`; None where nodes are unknown
    waiting: str | None = None  # the preparation before pods start
    elsewhere: Plan | None = None  # the plan for another engine, if only this one cannot run it
    canary: Preview | None = None
    prefill: Preview | None = None  # of the pods that compute prompts for these
    follows: str | None = None  # the change that comes before that of these pods


def everything(preview: Preview) -> tuple[str, ...]:
    """Describe the whole plan and the changes, for a dry run."""
    if isinstance(preview.after, tuple):
        return (*_problems(preview.after), *_elsewhere(preview))
    plan = preview.after
    rows = [f"{label}: {text}" for label, text in facts(plan)]
    if preview.waiting is not None:
        rows.append(f"before pods start: {preview.waiting}")
    own = (*rows, *_places(plan, preview), *_changes(plan, preview))
    return (*own, *_prefill(preview, everything), *_canary(plan, preview))


def essentials(preview: Preview) -> tuple[str, ...]:
    """Describe the obstacles and the changes, for a real apply."""
    if isinstance(preview.after, tuple):
        return tuple(_problems(preview.after))
    plan = preview.after
    verdict = plan.capacity
    concerns = [] if verdict.fits == "True" else [f"fits: {verdict.fits}, {verdict.message}"]
    if shortage(preview.supply) if preview.supply else None:
        concerns.extend(_places(plan, preview))
    own = (*plan.spec.warnings, *concerns, *_changes(plan, preview))
    return (*own, *_prefill(preview, essentials), *_canary(plan, preview))


def _prefill(preview: Preview, tell: Callable[[Preview], tuple[str, ...]]) -> Iterator[str]:
    """Yield the preview of the pods that compute prompts, and the needs of both roles."""
    found = preview.prefill
    if found is None:
        return
    for words in tell(found):
        yield f"prefill: {words}"
    if isinstance(found.after, Plan) and isinstance(preview.after, Plan):
        yield f"prefill, with the decode pods: {needs_of(found.after, preview.after)}"


def _canary(plan: Plan, preview: Preview) -> Iterator[str]:
    """Yield the needs of the canary, and of both together."""
    if preview.canary is None:
        return
    for words in essentials(preview.canary):
        yield f"canary: {words}"
    if isinstance(preview.canary.after, Plan):
        yield f"canary, with the other pods: {needs_of(preview.canary.after, plan)}"


def _problems(problems: tuple[FieldProblem, ...]) -> Iterator[str]:
    for problem in problems:
        yield f"will not be accepted: {problem} ({problem.reason.value})"


def _elsewhere(preview: Preview) -> Iterator[str]:
    if preview.elsewhere is not None:
        for label, text in facts(preview.elsewhere):
            yield f"on an engine that runs it, {label}: {text}"


def _places(plan: Plan, preview: Preview) -> Iterator[str]:
    """Yield whether the pods that do not run yet find a node now."""
    supply = preview.supply
    if supply is None or not plan.capacity.may_start:
        return
    missing = _pods_to_add(plan.scale, preview.running)
    if not missing:
        return
    possible = min(placeable(supply), missing)
    lacking = shortage(supply) if possible < missing else None
    yield f"nodes: {possible} of {missing} new pods find a place now" + (
        f"; {lacking}" if lacking else ""
    )


def _pods_to_add(scale: ScalePlan, running: DeploymentState | None) -> int:
    return max(0, scale.replicas - (running.replicas if running else 0))


def _changes(plan: Plan, preview: Preview) -> Iterator[str]:
    before = preview.before
    if before is None:
        return
    was, now = before.scale.replicas, plan.scale.replicas
    if was != now:
        yield f"changes replicas: {was} -> {now}{_devices(plan, before)}"
    old, new = before.capacity, plan.capacity
    if old.fits != new.fits:
        yield f"changes fits: {old.fits} -> {new.fits} ({new.reason.value})"
    if old.capacity is not None and new.capacity is not None:
        yield from _capacity_changes(old.capacity, new.capacity)
    yield from _rollout(plan, preview)


def _devices(plan: Plan, before: Plan) -> str:
    resource = plan.accelerator.resource_name
    if resource is None or before.accelerator.resource_name != resource:
        return ""
    old = before.scale.replicas * before.engine.devices
    return f", {old} -> {plan.scale.replicas * plan.engine.devices} {resource}"


def _capacity_changes(old: Capacity, new: Capacity) -> Iterator[str]:
    before, after = size_text(old.weights_bytes), size_text(new.weights_bytes)
    if before != after:  # rotary tables of another length are often no change that is seen
        yield f"changes weights: {before} -> {after} per device"
    if old.kv_tokens != new.kv_tokens:
        yield f"changes KV cache: {old.kv_tokens:,} -> {new.kv_tokens:,} tokens per replica"
    sequences = {row.context_tokens: row.sequences for row in old.concurrency}
    for row in new.concurrency:
        count = sequences.pop(row.context_tokens, None)
        if count != row.sequences:
            was = "not planned" if count is None else f"{count:,}"
            at = f"sequences at {row.context_tokens:,} tokens"
            yield f"changes {at}: {was} -> {row.sequences:,} per replica"
    for context in sequences:
        yield f"changes sequences at {context:,} tokens: no longer served"


def _rollout(plan: Plan, preview: Preview) -> Iterator[str]:
    running = preview.running
    if not plan.capacity.may_start:
        if running is not None and running.desired:
            yield "rollout: none; what runs goes on as it is"
        return
    if running is None or not running.desired or preview.revision is None:
        return
    if preview.follows is not None:
        yield f"rollout: {preview.follows}; then every decode pod is replaced"
        return
    if running.revision == preview.revision:
        yield "rollout: none; no pod is restarted"
        return
    chosen = plan.rollout.chosen
    yield f"rollout: every pod is replaced, {chosen.strategy.value}: {chosen.reason}"
    yield f"rollout cost: {_cost(plan)}"


def _cost(plan: Plan) -> str:
    resource = plan.accelerator.resource_name
    spare_ones = plan.scale.replicas if plan.rollout.changes_kind else 1
    spare_pods = "every replica once more" if plan.rollout.changes_kind else "one more pod"
    devices = f"{spare_ones * plan.engine.devices} more {resource}" if resource else spare_pods
    if plan.rollout.chosen.strategy is RolloutStrategy.SURGE:
        return f"{devices} while it lasts; all replicas go on serving"
    spare = f"no spare {resource}" if resource else "no spare pod"
    if plan.rollout.chosen.strategy is RolloutStrategy.IN_PLACE:
        size = f" (a group of {plan.engine.nodes} pods)" if plan.engine.nodes > 1 else ""
        return f"{spare}; one replica{size} less while it lasts" + (
            ", so a single replica is away meanwhile" if plan.scale.replicas == 1 else ""
        )
    return f"{spare}; no replica serves until the new ones are ready"
