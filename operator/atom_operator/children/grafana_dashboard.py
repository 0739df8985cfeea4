"""The Grafana dashboard of one AtomDeployment, as a ConfigMap for Grafana's sidecar. Pure.

The sidecar loads ConfigMaps labelled grafana_dashboard=1. Panels are rows of plain time series, so
that any Grafana since 9 shows them.
"""

from __future__ import annotations

import json
from typing import Any

from atom_operator.children import naming
from atom_operator.children.autoscaling.latency_signal import latency_ratio
from atom_operator.children.series import Selector, selector_of
from atom_operator.domain import Manifest, Plan
from atom_operator.integration_values import Labels

_SIDECAR_LABEL = {"grafana_dashboard": "1"}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PANELS_PER_ROW, _WIDTH, _HEIGHT = 2, 12, 8
_Panel = tuple[str, str, tuple[tuple[str, str], ...]]  # title, unit, (query, legend)


def dashboard_config_map(plan: Plan, labels: Labels) -> Manifest:
    """Render the ConfigMap; its one key is the dashboard's file name."""
    identity = plan.identity
    metadata = naming.metadata(identity, naming.dashboard_name(identity.key))
    metadata["labels"] = {**_SIDECAR_LABEL, **labels, **metadata["labels"]}
    text = json.dumps(dashboard(plan), indent=1, sort_keys=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {f"atom-{identity.key.namespace}-{identity.key.name}.json": text + "\n"},
    }


def dashboard(plan: Plan) -> dict[str, Any]:
    """Render the dashboard as Grafana imports it."""
    key = plan.identity.key
    title = f"ATOM {key.namespace}/{key.name}"
    of = selector_of(key)
    wanted = [*_slo_panels(plan, of), *_panels(of), *_transfer_panels(plan, of)]
    panels = [_panel(number, item) for number, item in enumerate(wanted)]
    return {
        "title": title,
        "uid": naming.short_hash(f"{key.namespace}/{key.name}"),
        "tags": ["atom"],
        "schemaVersion": 36,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _panels(of: Selector) -> list[_Panel]:
    return [
        (
            "Requests",
            "short",
            (
                (f"sum({of('atom:requests_running')})", "running"),
                (f"sum({of('atom:requests_waiting')})", "waiting"),
            ),
        ),
        ("Replicas that serve", "short", ((f"sum({of('atom:ready')})", "ready"),)),
        (
            "Tokens per second",
            "short",
            (
                (f"sum(rate({of('atom:generation_tokens_total')}[1m]))", "generated"),
                (f"sum(rate({of('atom:prompt_tokens_total')}[1m]))", "prompt"),
            ),
        ),
        (
            "KV cache in use, by pod",
            "percentunit",
            ((f"max by (pod) ({of('atom:kv_cache_usage_ratio')})", "{{pod}}"),),
        ),
        ("Time to first token", "s", _quantiles(of, "atom:time_to_first_token_seconds")),
        ("Time between tokens", "s", _quantiles(of, "atom:inter_token_latency_seconds")),
        ("Time of a request", "s", _quantiles(of, "atom:e2e_request_latency_seconds")),
        (
            "Requests ended per second",
            "reqps",
            (
                (
                    f"sum by (finished_reason) (rate({of('atom:requests_finished_total')}[1m]))",
                    "{{finished_reason}}",
                ),
            ),
        ),
        (
            "Prompt tokens found in the prefix cache",
            "percentunit",
            (
                (
                    f"sum(rate({of('atom:prefix_cache_cached_tokens_total')}[5m]))"
                    f" / sum(rate({of('atom:prompt_tokens_total')}[5m]))",
                    "hit ratio",
                ),
            ),
        ),
        *_tier_panels(of),
        (
            "Drafted tokens that were kept",
            "percentunit",
            (
                (
                    f"sum(rate({of('atom:spec_decode_num_accepted_tokens_total')}[5m]))"
                    f" / sum(rate({of('atom:spec_decode_num_draft_tokens_total')}[5m]))",
                    "acceptance",
                ),
            ),
        ),
        (
            "Preemptions per second",
            "short",
            ((f"sum(rate({of('atom:preemptions_total')}[5m]))", "preemptions"),),
        ),
    ]


def _tier_panels(of: Selector) -> list[_Panel]:
    """Return the panels of the KV cache's tiers, which are empty without one."""
    hits, queries = of("atom:kv_offload_hits_total"), of("atom:kv_offload_queries_total")
    load, store = of("atom:kv_offload_load_bytes_total"), of("atom:kv_offload_store_bytes_total")
    dropped = of("atom:kv_offload_store_dropped_total")
    return [
        (
            "Tokens beyond the device's prefix that a tier has",
            "percentunit",
            (
                (
                    f"sum by (tier) (rate({hits}[5m])) / sum by (tier) (rate({queries}[5m]))",
                    "{{tier}}",
                ),
                (f"max by (tier) ({of('atom:kv_offload_usage_ratio')})", "{{tier}} in use"),
            ),
        ),
        (
            "KV cache moved to and from tiers",
            "Bps",
            (
                (f"sum(rate({load}[5m]))", "read from the host"),
                (f"sum(rate({store}[5m]))", "written to the host"),
                (
                    f"sum(rate({of('atom:kv_offload_disk_load_bytes_total')}[5m]))",
                    "read from files",
                ),
                (
                    f"sum(rate({of('atom:kv_offload_disk_store_bytes_total')}[5m]))",
                    "written to files",
                ),
            ),
        ),
        (
            "Pages that were not written, per second",
            "short",
            ((f"sum by (reason) (rate({dropped}[5m]))", "{{reason}}"),),
        ),
    ]


def _slo_panels(plan: Plan, of: Selector) -> list[_Panel]:
    """Return the panel of spec.slo's targets, if there are any."""
    slo = plan.integrations.slo
    if slo is None:
        return []
    ratio = latency_ratio(of, slo)
    return [("Predicted latency by its target, missed above 1", "short", ((ratio, "latency"),))]


def _transfer_panels(plan: Plan, of: Selector) -> list[_Panel]:
    """Return the panels of the pages that prefill and decode pods exchange, if pods have roles."""
    if plan.engine.serving.transfer is None:
        return []
    moved, legs = of("atom:kv_transfer_bytes_total"), of("atom:kv_transfer_requests_total")
    expired, damaged = (
        of(f"atom:kv_transfer_{name}_total") for name in ("expired", "checksum_errors")
    )
    return [
        (
            "KV cache moved between prefill and decode",
            "Bps",
            ((f"sum by (direction) (rate({moved}[5m]))", "{{direction}}"),),
        ),
        (
            "Decode legs by the origin of their prompt, per second",
            "reqps",
            ((f"sum by (result) (rate({legs}[5m]))", "{{result}}"),),
        ),
        (
            "Prompts kept for decode, and pages lost per second",
            "short",
            (
                (f"sum({of('atom:kv_transfer_tickets')})", "kept prompts"),
                (f"sum(rate({expired}[5m]))", "expired prompts"),
                (f"sum(rate({damaged}[5m]))", "damaged pages"),
            ),
        ),
    ]


def _quantiles(of: Selector, metric: str) -> tuple[tuple[str, str], ...]:
    buckets = f"sum by (le) (rate({of(metric + '_bucket')}[5m]))"
    return tuple(
        (f"histogram_quantile({quantile:g}, {buckets})", f"p{quantile * 100:g}")
        for quantile in (0.5, 0.95, 0.99)
    )


def _panel(number: int, item: _Panel) -> dict[str, Any]:
    title, unit, queries = item
    row, column = divmod(number, _PANELS_PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }
