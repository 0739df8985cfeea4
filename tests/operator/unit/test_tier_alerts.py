"""Alerts about the tiers of the KV cache, as Prometheus evaluates them over drawn hours."""

from __future__ import annotations

import random
from pathlib import Path

from atom_operator.children.monitoring import alerts
from tests.support.cluster.promtool import Story, assert_alerts
from tests.support.operator.builders_operator import plan
from tests.support.random_search import examples

_TIERS = {"cache": {"kv": {"hostMemory": "1Gi", "disk": {"size": "2Gi"}}}}
_OF = 'namespace="default",serving_atom_dev_deployment="chat"'
_ALIVE = {f'atom:ready{{{_OF},pod="a"}}': "1x60", f'atom:ready{{{_OF},pod="b"}}': "1x60"}
_MINUTES = 60


def series(name: str, pod: str, **labels: str) -> str:
    also = "".join(f',{key}="{value}"' for key, value in labels.items())
    return f'atom:kv_offload_{name}{{{_OF},pod="{pod}"{also}}}'


def drawn(draw: random.Random) -> Story:
    """An hour of two pods with both tiers, or with that of the host alone."""
    tiers = draw.choice([("host",), ("host", "disk")])
    asked = 1000
    hits = {tier: draw.choice([0, 5, 300]) for tier in tiers}
    computed = draw.choice([0, 10, 400]) if sum(hits.values()) > 100 else 0
    usage = {tier: draw.choice([0.2, 0.99]) for tier in tiers}
    faulty = draw.choice([None, *tiers])
    ended = draw.random() < 0.5  # the faults, half an hour ago
    found = dict(_ALIVE)
    for pod in ("a", "b"):
        for tier in tiers:
            found[series("queries_total", pod, tier=tier)] = f"0+{asked}x{_MINUTES}"
            found[series("hits_total", pod, tier=tier)] = f"0+{hits[tier]}x{_MINUTES}"
            found[series("usage_ratio", pod, tier=tier)] = f"{usage[tier]}x{_MINUTES}"
            is_faulty = pod == "b" and tier == faulty
            counts = f"0+{int(is_faulty)}x30 {'30x30' if ended else '31+1x30'}"
            found[series("errors_total", pod, tier=tier, kind="checksum")] = (
                counts if is_faulty else f"0x{_MINUTES}"
            )
        found[series("computed_total", pod, tier="host")] = f"0+{computed}x{_MINUTES}"
    firing = set()
    if faulty is not None and not ended:
        firing.add("AtomKvTierFails")
    if min(usage.values()) > 0.9 and sum(hits.values()) < 0.02 * asked:
        firing.add("AtomKvTierMisses")
    if computed > 0.5 * sum(hits.values()) > 0:
        firing.add("AtomKvTierTooSlow")
    return Story(found, firing)


def test_each_alert_of_tiers_fires_on_its_symptom_alone(tmp_path: Path) -> None:
    stories = [drawn(random.Random(seed)) for seed in range(examples(24))]
    assert {name for story in stories for name in story.firing} == {
        "AtomKvTierFails", "AtomKvTierMisses", "AtomKvTierTooSlow"
    }  # fmt: skip
    assert any(not story.firing for story in stories)
    assert_alerts(alerts(plan(**_TIERS)), stories, tmp_path)


def test_a_plan_without_a_tier_has_none_of_these_alerts() -> None:
    names = {each["alert"] for each in alerts(plan())}
    assert not [name for name in names if name.startswith("AtomKvTier")]
    assert {each["alert"] for each in alerts(plan(**_TIERS))} - names == {
        "AtomKvTierFails", "AtomKvTierMisses", "AtomKvTierTooSlow"
    }  # fmt: skip
