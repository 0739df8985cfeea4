"""SloMet: latencies beside their targets. Pure.

The latencies that requests saw in the last minutes decide; the predictions do if there were few
requests. A missed target names the resource that is short, and the remedy. If prefill and decode
have pods of their own, each role has its own targets and its own condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import EngineView, Latencies, Plan
from atom_operator.integration_values import Slo
from atom_operator.pods.histograms import quantile
from atom_operator.status.conditions import Verdict

_LEAST_SEEN = 20  # observations of which a percentile is meant
# What a first token waits for, in words, with the engine's own remedy.
_SHORT = {
    "kv_cache": (
        Reason.KV_CACHE_SHORT,
        "requests wait for KV cache",
        "shorten maxModelLen, use an fp8 cache (spec.engine.kvCacheDtype)",
    ),
    "sequences": (
        Reason.SEQUENCES_SHORT,
        "requests wait for one of the sequences of a replica",
        "raise spec.engine.maxNumSeqs",
    ),
    "compute": (
        Reason.COMPUTE_SHORT,
        "prompts wait for the device to compute earlier ones",
        "share prefixes between prompts (spec.gateway.prefixAware)",
    ),
}
_STEPS = (
    Reason.STEPS_TOO_LONG,
    "steps take too long for this many answers at once",
    "lower spec.engine.maxNumSeqs, raise spec.parallelism.tensor",
)


def slo_met(asked: Plan | None, serving: Plan | None, engines: EngineView) -> Verdict | None:
    """Return whether the pods that serve keep the targets; None if the newest spec has no targets.
    asked: the plan of the newest spec, None if that is not accepted."""
    if asked is not None and not asked.spec.asked.get("slo"):
        return None
    kind, found, plan = ConditionType.SLO_MET, engines.latencies, serving
    slo = plan.integrations.slo if plan is not None else None
    if plan is None or slo is None:
        if asked is None or asked.integrations.slo is None:
            return None
        words = "the pods that serve are of a revision without targets of their own"
        return Verdict(kind, "Unknown", Reason.NO_LATENCIES, words)
    if found is None or not found.predicted:
        words = "no serving pod has predicted or measured latencies yet"
        return Verdict(kind, "Unknown", Reason.NO_LATENCIES, words)
    felt = list(_felt(slo, found))
    transfer = plan.engine.serving.transfer
    role = "" if transfer is None else f"{transfer.role} pods, "
    numbers = f"{role}p{slo.percentile}: " + "; ".join(words for words, _ in felt)
    if not any(missed for _, missed in felt):
        return Verdict(kind, "True", Reason.TARGETS_MET, numbers)
    missed = [name for (_, late), name in zip(felt, _names(slo), strict=True) if late]
    reason, why, remedy = _cause(found, missed)
    message = f"{numbers}; {why}; {_more(plan)}, or {remedy}"
    return Verdict(kind, "False", reason, message)


def _names(slo: Slo) -> list[str]:
    targets = (("ttft", slo.ttft_seconds), ("itl", slo.itl_seconds))
    return [name for name, seconds in targets if seconds is not None]


def _felt(slo: Slo, found: Latencies) -> Iterator[tuple[str, bool]]:
    """Yield each latency in words, and whether it is later than its target."""
    words = {"ttft": "first token", "itl": "next token"}
    targets = {"ttft": slo.ttft_seconds, "itl": slo.itl_seconds}
    for name in _names(slo):
        target = targets[name]
        assert target is not None, "only targets are named"
        seen = _seen(found, name, slo.percentile / 100)
        expected = _predicted(found, name, slo.percentile / 100)
        value, source = (expected, "predicted") if seen is None else (seen, "seen")
        also = "" if seen is None else f" (now {_time(expected)} predicted)"
        text = f"{words[name]} {source} {_time(value)} of {_time(target)}{also}"
        yield text, value > target


def _seen(found: Latencies, name: str, share: float) -> float | None:
    if found.seen is None:
        return None
    buckets = found.seen.ttft if name == "ttft" else found.seen.itl
    if not buckets or buckets[-1][1] < _LEAST_SEEN:
        return None
    return quantile(buckets, share)


def _predicted(found: Latencies, name: str, share: float) -> float:
    """Return the percentile over the pods, each of which gets as many requests."""
    values = sorted(
        each.ttft_seconds if name == "ttft" else each.itl_seconds for _, each in found.predicted
    )
    return values[min(len(values) - 1, int(share * len(values)))]


def _cause(found: Latencies, missed: list[str]) -> tuple[Reason, str, str]:
    """Return why a target is missed: for a first token the resource that most pods name."""
    if "ttft" in missed:
        limits = Counter(each.limit for _, each in found.predicted if each.limit in _SHORT)
        if limits:
            return _SHORT[limits.most_common(1)[0][0]]
        if missed == ["ttft"]:
            return _SHORT["compute"]
    return _STEPS


def _more(plan: Plan) -> str:
    """Return how to get more replicas."""
    scaling = plan.integrations.autoscaling
    if scaling is None:
        transfer = plan.engine.serving.transfer
        if transfer is not None and transfer.computes_prompts:
            field = f"spec.disaggregation.prefill of {transfer.decode_name}"
            return f"raise replicas or set autoscaling in {field}"
        return "raise spec.replicas or set spec.autoscaling"
    if plan.scale.suspended:
        return "end spec.suspend"
    if scaling.ceiling < scaling.max_replicas:
        return f"add devices (the nodes hold {scaling.ceiling} of {scaling.max_replicas} replicas)"
    return f"wait for the autoscaler, or raise maxReplicas ({scaling.max_replicas})"


def _time(seconds: float) -> str:
    """Write a time with two digits, so that a status is not written for each request."""
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    return f"{float(f'{value:.2g}'):g} {unit}"
