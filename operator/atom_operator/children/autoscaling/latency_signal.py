"""The replicas that targets of latency ask for, as a query of the engines' predictions. Pure.

An engine predicts the latencies of a request that comes now, so the signal is there before a queue
of late requests is. The ratio is that of the worse latency to its target, at the percentile of the
targets over the last minute and over the pods. Above 1 more replicas are asked for, in proportion
but at most twice as many; between CALM and 1 nothing changes; below it, fewer, as far as the load
allows: latencies say little until a queue builds up, so the work that arrives bounds the replicas
from below, at FULL of what they could compute.
"""

from __future__ import annotations

from atom_operator.children.series import Selector
from atom_operator.integration_values import Slo

CALM, FULL = 0.7, 0.6
_MOST = 2.0  # of a first token's ratio there is no end, and a replica takes minutes to start
_WINDOW = "[1m]"
TTFT, ITL = "atom:predicted_ttft_seconds", "atom:predicted_itl_seconds"
LOAD = "atom:predicted_load_ratio"


def latency_ratio(of: Selector, slo: Slo) -> str:
    """Return the larger of the predicted latencies by their targets; 0 without any request."""
    targets = ((TTFT, slo.ttft_seconds), (ITL, slo.itl_seconds))
    found = [
        _ratio(of, metric, seconds, slo.percentile / 100)
        for metric, seconds in targets
        if seconds is not None
    ]
    worse = found[0] if len(found) == 1 else f"({found[0]} > {found[1]} or {found[1]})"
    open_requests = f"sum({of('atom:requests_running')}) + sum({of('atom:requests_waiting')})"
    return f"{worse} * ({open_requests} > bool 0)"


def wanted_replicas(of: Selector, slo: Slo) -> str:
    """Return the replicas to ask for: the pods that predict, times the ratio with its calm band.
    Pods that load do not count, as those that predict do not share their load yet."""
    ratio = f"({latency_ratio(of, slo)})"
    share = f"clamp({ratio}, 1, {_MOST:g}) + clamp_max({ratio} / {CALM:g}, 1) - 1"
    return f"({share}) * count({of(TTFT)}) or 0 * sum({of('atom:ready')})"


def replicas_for(ratio: float, pods: int) -> float:
    """Return the value of the query of `wanted_replicas`, for simulations of it."""
    return pods * (min(max(ratio, 1.0), _MOST) + min(ratio / CALM, 1.0) - 1.0)


def _ratio(of: Selector, metric: str, seconds: float, quantile: float) -> str:
    over_time = f"quantile_over_time({quantile:g}, {of(metric)}{_WINDOW})"
    return f"quantile({quantile:g}, {over_time}) / {seconds:g}"
