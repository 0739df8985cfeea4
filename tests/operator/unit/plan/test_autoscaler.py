"""The rendered autoscalers: targets by arithmetic, queries, bounds, zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atom_operator.children.autoscaling.autoscaler import autoscaler
from atom_operator.integration_values import Site, SiteAddresses
from atom_operator.plan_report import facts
from tests.support.operator.builders_operator import plan

SITE = Site(addresses=SiteAddresses(prometheus="http://prometheus.test:9090"))


def rendered(site: Site = SITE, **asked: Any) -> dict[str, Any]:
    """The spec of what a GPU replica of Qwen3-8B is scaled by."""
    made = plan(
        site=site,
        model={"source": "hf://Qwen/Qwen3-8B"},
        accelerator={"type": "amd", "product": "MI300X"},
        autoscaling={"maxReplicas": 4, **asked},
        engine={"maxModelLen": 32768, "maxNumSeqs": 512},
    )
    wanted = made.integrations.autoscaling
    assert wanted is not None
    return autoscaler(made, wanted)["spec"]  # type: ignore[no-any-return]


def thresholds(**asked: Any) -> dict[str, str]:
    return {item["name"]: item["metadata"]["threshold"] for item in rendered(**asked)["triggers"]}


def test_targets_follow_from_the_planned_capacity() -> None:
    made = plan(
        model={"source": "hf://Qwen/Qwen3-8B"},
        accelerator={"type": "amd", "product": "MI300X"},
        engine={"maxModelLen": 32768, "maxNumSeqs": 512},
    )
    capacity = made.capacity.capacity
    assert capacity is not None
    by_context = {row.context_tokens: row.sequences for row in capacity.concurrency}
    # 80% of the sequences that the plan's own table has for that length, and a tenth of it waiting.
    for context in (4096, 8192, 32768):
        target = by_context[context] * 80 // 100
        found = thresholds(typicalContextTokens=context)
        assert found["running"] == str(target)
        assert found["waiting"] == str(max(1, target // 10))
        assert found["kv-usage"] == "0.8"
    assert thresholds()["running"] == str(by_context[4096] * 80 // 100)


def test_what_is_asked_wins_over_what_is_derived() -> None:
    asked = {"targetConcurrency": 7, "targetKvUsagePercent": 65, "targetWaitingRequests": 3}
    assert thresholds(**asked) == {"running": "7", "waiting": "3", "kv-usage": "0.65"}


def test_without_any_capacity_only_shares_are_targets() -> None:
    made = plan(site=SITE, model={"source": "hf://acme/unknown"}, autoscaling={"maxReplicas": 2})
    wanted = made.integrations.autoscaling
    assert wanted is not None
    names = [item["name"] for item in autoscaler(made, wanted)["spec"]["triggers"]]
    assert names == ["waiting", "kv-usage"]


def test_queries_name_one_atomdeployment() -> None:
    for trigger in rendered()["triggers"]:
        query = trigger["metadata"]["query"]
        assert '{namespace="default",serving_atom_dev_deployment="chat"}' in query
        assert trigger["metadata"]["serverAddress"] == "http://prometheus.test:9090"


def test_an_address_and_a_login_of_its_own_win() -> None:
    own = {
        "serverAddress": "https://thanos.test",
        "authenticationRef": {"name": "thanos", "kind": "ClusterTriggerAuthentication"},
    }
    for trigger in rendered(prometheus=own)["triggers"]:
        assert trigger["metadata"]["serverAddress"] == "https://thanos.test"
        assert trigger["authenticationRef"] == {
            "kind": "ClusterTriggerAuthentication",
            "name": "thanos",
        }


def test_the_first_replica_after_zero_is_started_by_the_query_that_was_given() -> None:
    spec = rendered(minReplicas=0, activationQuery="sum(gateway_queue)")
    assert spec["minReplicaCount"] == 0
    (activation,) = [item for item in spec["triggers"] if item["name"] == "activation"]
    assert activation["metadata"]["query"] == "sum(gateway_queue)"
    assert activation["metadata"]["activationThreshold"] == "0"


def test_a_prometheus_that_is_down_or_scrapes_nothing_takes_no_replica_away() -> None:
    spec = rendered()
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert {item["metadata"]["ignoreNullValues"] for item in spec["triggers"]} == {"false"}
    # At zero replicas there is nothing to scrape, and that is no failure.
    spec = rendered(minReplicas=0, activationQuery="sum(gateway_queue)")
    assert {item["metadata"]["ignoreNullValues"] for item in spec["triggers"]} == {"true"}


def test_an_hpa_aims_at_the_same_load() -> None:
    keda, spec = thresholds(), rendered(method="HPA", cooldownSeconds=60)
    metrics = {
        item["pods"]["metric"]["name"]: item["pods"]["target"]["averageValue"]
        for item in spec["metrics"]
    }
    assert metrics == {
        "atom_requests_running": keda["running"],
        "atom_requests_waiting": keda["waiting"],
        "atom_kv_cache_usage_ratio": "800m",
    }
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60
    target = spec["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}


@pytest.mark.parametrize("method", ["KEDA", "HPA"])
def test_groups_are_scaled_as_groups(method: str) -> None:
    site = replace(SITE, engine_tensor_parallel=16, engine_multi_node=True)
    made = plan(
        site=site,
        model={"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
        accelerator={"type": "amd", "product": "MI300X"},
        parallelism={"tensor": 16, "nodes": 2},
        autoscaling={"maxReplicas": 2, "method": method},
    )
    wanted = made.integrations.autoscaling
    assert wanted is not None
    assert autoscaler(made, wanted)["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"


def test_the_plan_says_what_one_more_replica_is_asked_for_by() -> None:
    made = plan(
        site=SITE,
        model={"source": "hf://Qwen/Qwen3-8B"},
        accelerator={"type": "amd", "product": "MI300X"},
        autoscaling={"maxReplicas": 4, "targetConcurrency": 50},
    )
    assert dict(facts(made))["autoscaling"] == (
        "1 to 4 replicas by KEDA; one more beyond, per replica, 50 running or 5 waiting or 80% of"
        " the KV cache"
    )
