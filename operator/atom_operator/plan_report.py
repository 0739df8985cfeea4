"""A plan as lines for people: the output of `atom_operator plan`. Pure.

The numbers are those of status.capacity and of plan.json; nothing is computed here but how many
replicas the nodes could take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atom_operator.children.naming import peers_name
from atom_operator.constants import KIND, PROFILE_KIND
from atom_operator.domain import (
    Accelerator,
    Capacity,
    DiskTier,
    EngineOptions,
    FieldProblem,
    KvTransfer,
    ObjectKey,
    Plan,
    PodsPlan,
    Supply,
)
from atom_operator.integration_values import Autoscaling
from atom_operator.memory_bar import bar_lines, memory_parts
from atom_operator.plan.capacity import files_of, tier_of
from atom_operator.plan.room import placeable, shortage
from atom_operator.plan_arithmetic import arithmetic
from atom_operator.sizes import size_text

_LABEL_WIDTH = 22


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Hold one AtomDeployment's problems, its plan or both: if only this version's engine cannot
    run it, the plan states another engine's needs. `supply`: set if nodes were given."""

    key: ObjectKey
    problems: tuple[FieldProblem, ...] = ()
    plan: Plan | None = None
    supply: Supply | None = None
    beside: Plan | None = None  # the plan of its origin, if this is a canary or a prefill role
    pair: str | None = None  # whether prefill and decode in separate pods pay
    kind: str = KIND

    @property
    def can_start(self) -> bool:
        """Return whether the operator would start pods, and every replica has a place where
        known."""
        if self.problems or self.plan is None or not self.plan.capacity.may_start:
            return False
        return self.supply is None or placeable(self.supply) >= self.replicas

    @property
    def replicas(self) -> int:
        """Count the replicas that need a place; a canary's include those of its origin."""
        if self.plan is None:
            return 0
        return self.plan.scale.replicas + (self.beside.scale.replicas if self.beside else 0)


def lines(report: PlanReport) -> Iterator[str]:
    """Yield the report, one fact per line."""
    where = report.key.name if report.kind == PROFILE_KIND else "/".join(report.key)
    yield f"{report.kind} {where}"
    for problem in report.problems:
        yield _row("not accepted", f"{problem} ({problem.reason.value})")
    if report.plan is None:
        return
    if report.problems:
        yield _row("it would need", "what follows, of an engine that runs it")
    for label, text in facts(report.plan):
        yield _row(label, text)
    if report.pair is not None:
        yield _row("separate pods", report.pair)
    if report.beside is not None:
        yield _row("with the other pods", needs_of(report.plan, report.beside))
    if report.supply is not None:
        yield from _placement(report, report.supply)


def needs_of(canary: Plan, beside: Plan) -> str:
    """Describe the needs of a canary and the pods beside it together."""
    pods = f"{beside.scale.replicas} + {canary.scale.replicas} replicas"
    devices = {
        plan.accelerator.resource_name: 0
        for plan in (beside, canary)
        if plan.accelerator.resource_name
    }
    for plan in (beside, canary):
        if plan.accelerator.resource_name:
            devices[plan.accelerator.resource_name] += plan.scale.replicas * plan.engine.devices
    return ", ".join([pods, *(f"{count} {name}" for name, count in devices.items())])


def facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the label and text of everything that the plan says."""
    for warning in plan.spec.warnings:
        yield "warning", warning
    if plan.pods.profile is not None:
        yield "profile", f"{plan.pods.profile.name}, below the spec: {plan.pods.profile.summary}"
    yield (
        "model",
        plan.model.location.image.reference
        if plan.model.location.image
        else plan.model.location.argument,
    )
    if plan.engine.serving.transfer is not None:
        yield "role", _role(plan, plan.engine.serving.transfer)
    if plan.integrations.frontend is not None:
        yield "frontend", _frontend(plan)
    if plan.engine.lora is not None:
        names = ", ".join(f"{each.name} from {each.path}" for each in plan.model.adapters) or "none"
        yield "adapters", f"room for {plan.engine.lora.max_cpu_loras}: {names}"
    yield "replicas", "0, by spec.suspend" if plan.scale.suspended else str(plan.scale.replicas)
    if plan.integrations.autoscaling is not None:
        yield "autoscaling", _autoscaling(plan.integrations.autoscaling)
    if plan.engine.serving.sleep_idle_seconds is not None:
        yield "idle", _idle(plan.pods, plan.engine.serving.sleep_idle_seconds)
    rule = plan.engine.serving.pages.host_rule
    if plan.engine.serving.host_tier_bytes or rule is not None:
        yield "KV tier", _tier(plan) if rule is None else f"{_tier(plan)} ({rule})"
    if plan.engine.serving.disk_tier is not None:
        yield "KV files", _files(plan, plan.engine.serving.disk_tier)
    yield "device", _device(plan.engine, plan.accelerator)
    if plan.engine.tensor_parallel > 1:
        yield "a copy's ranks", _ranks(plan.engine, plan.accelerator)
    verdict = plan.capacity
    answer = {"True": "yes", "False": "no", "Unknown": "unknown"}[verdict.fits]
    yield "fits", f"{answer}, {verdict.reason.value}: {verdict.message}"
    yield from arithmetic(plan)
    if verdict.capacity is not None:
        yield from _capacity(verdict.capacity)
        parts = memory_parts(verdict.capacity)
        if parts:
            bar, legend = bar_lines(parts)
            each = " each" if plan.engine.devices > 1 else ""
            yield f"memory, {size_text(verdict.capacity.device.total_bytes)}{each}", bar
            yield "memory's parts", legend
    if plan.capacity.may_start:
        minutes = -(-plan.rollout.startup_budget_seconds // 60)
        yield "start-up budget", f"{minutes} minutes until a pod that does not serve is restarted"


def _idle(pods: PodsPlan, seconds: int) -> str:
    kept = f"{size_text(pods.host_bytes)} of the host's memory" if pods.host_bytes else "the host"
    return f"pods sleep after {seconds} s without a request; their weights then wait in {kept}"


def _frontend(plan: Plan) -> str:
    """Describe the frontend, and why engine pods follow its first and last one."""
    secret = peers_name(plan.identity.key)
    return (
        "pods without a device that hold the connections; the first frontend, and the removal of"
        f" the last, replaces the engine pods by a rollout: both mount the Secret {secret}"
    )


def _role(plan: Plan, transfer: KvTransfer) -> str:
    """Describe the part of the pods, and the cache that the exchange of pages may hold."""
    capacity = plan.capacity.capacity
    held = (
        f"; pages in transfer hold at most {capacity.kv_tokens // 2:,} tokens" if capacity else ""
    )
    if transfer.computes_prompts:
        return f"prefill: these pods compute prompts for {transfer.decode_name}{held}"
    return f"decode: these pods read the pages of prompts and answer{held}"


def _tier(plan: Plan) -> str:
    size = f"{size_text(plan.engine.serving.host_tier_bytes)} of the host's memory in each pod"
    tier = None
    if plan.model.facts is not None:
        tier = tier_of(plan.model.facts, plan.engine, plan.accelerator)
    if tier is None:
        return f"{size}; its tokens are unknown, as the model is"
    copies, longest = plan.engine.copies_per_pod, plan.engine.model.max_model_len
    tokens = tier.tokens * copies
    held = f"{size} = {tokens:,} tokens"
    return held if longest is None else f"{held}, {tokens // longest:,} sequences of full length"


def _files(plan: Plan, tier: DiskTier) -> str:
    where = (
        "on each pod's node" if tier.claim is None else f"on claim {tier.claim}, of all its pods"
    )
    size = f"{size_text(tier.size_bytes)} {where}"
    if plan.model.facts is None:
        return f"{size}; its tokens are unknown, as the model is"
    found = files_of(plan.model.facts, plan.engine, plan.accelerator)
    assert found is not None, "there are files"
    longest = plan.engine.model.max_model_len
    held = f"{size} = {found.tokens:,} tokens"
    return (
        held if longest is None else f"{held}, {found.tokens // longest:,} sequences of full length"
    )


def _autoscaling(scaling: Autoscaling) -> str:
    targets = scaling.targets
    load = []
    if targets.waiting is not None:
        load.append(f"{targets.waiting:,} waiting")
    if targets.kv_usage_percent is not None:
        load.append(f"{targets.kv_usage_percent}% of the KV cache")
    if targets.slo is not None:
        load.insert(0, "predicted latencies over spec.slo")
    if targets.concurrency is not None:
        load.insert(0, f"{targets.concurrency:,} running")
    bounds = f"{scaling.min_replicas} to {scaling.max_replicas} replicas by {scaling.method}"
    return f"{bounds}; one more beyond, per replica, {' or '.join(load)}"


def _device(engine: EngineOptions, accelerator: Accelerator) -> str:
    known = accelerator.memory_bytes
    memory = f"{size_text(known)} each" if known is not None else "memory unknown"
    if accelerator.type == "cpu":
        shared = f", shared by {engine.devices_per_pod} ranks" if engine.devices_per_pod > 1 else ""
        return f"cpu, {memory}{shared}"
    nodes = f" over {engine.nodes} nodes" if engine.nodes > 1 else ""
    copies = f" for {engine.data_parallel} copies" if engine.data_parallel > 1 else ""
    return f"{engine.devices} x {accelerator.resource_name} per replica{nodes}{copies}, {memory}"


def _ranks(engine: EngineOptions, accelerator: Accelerator) -> str:
    """Describe how the devices share the model, and on which hardware this repository has run
    that."""
    shared = f"{engine.tensor_parallel} devices share a copy of the model"
    if accelerator.type == "cpu":
        return shared
    return f"{shared} by RCCL; run on the CPU and on two NVIDIA GPUs, not on AMD"


def _capacity(capacity: Capacity) -> Iterator[tuple[str, str]]:
    if reserve := capacity.device.reserve_bytes:
        yield "beside them", f"{size_text(reserve)} for activations and the runtime"
    if capacity.beside_kv.state_bytes:
        size = size_text(capacity.beside_kv.state_bytes)
        bound = capacity.beside_kv.bounded_sequences
        most = f" ({bound:,} at once, fewer than asked for)" if bound else ""
        yield "states", f"{size} of all sequences that may run{most} and of cached prefixes"
    yield (
        "KV cache",
        f"{capacity.num_blocks:,} blocks = {capacity.kv_tokens:,} tokens of "
        f"{size_text(capacity.kv_bytes_per_token)}{_windows(capacity)} "
        f"(limited by {capacity.limited_by})",
    )
    for row in capacity.concurrency:
        yield f"at {row.context_tokens:,} tokens", f"{row.sequences:,} sequences at once"


def _windows(capacity: Capacity) -> str:
    if not capacity.beside_kv.window_bytes:
        return ""
    return f", and {size_text(capacity.beside_kv.window_bytes)} of windows for each full sequence"


def _placement(report: PlanReport, supply: Supply) -> Iterator[str]:
    possible = min(placeable(supply), report.replicas)
    both = ", with those beside it," if report.beside is not None else ""
    yield _row("nodes", f"{possible} of {report.replicas} replicas{both} find a place now")
    for node in supply.nodes:
        blocked = f"; {', '.join(node.blockers)}" if node.blockers else ""
        free = f"{node.free} of {node.allocatable} {supply.resource} free"
        yield _row(f"  {node.name}", f"{free}{blocked}")
    lacking = shortage(supply)
    if lacking is not None:
        yield _row("", lacking)


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"
