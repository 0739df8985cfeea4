"""What `kubectl atom` prints, from objects as the API server has them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from atom_operator.domain.devices import device_picture
from atom_operator.plugin.gpus_view import gpu_document, gpu_lines
from atom_operator.plugin.status_view import status_lines
from atom_operator.plugin.top_view import Sample, kept_drafts, parse, top_lines
from tests.support.in_memory_cluster.devices.device_claims import device_class, resource_slice
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    gpu_node,
    gpu_pod,
    pod,
    reconciler,
)

METRICS = """\
# HELP atom:ready 1 while requests are served.
atom:ready 1.0
atom:requests_running{{model_name="m"}} {running}
atom:requests_waiting{{model_name="m"}} 2.0
atom:kv_cache_blocks_used{{model_name="m"}} 25.0
atom:kv_cache_blocks_total{{model_name="m"}} 100.0
atom:generation_tokens_total{{model_name="m"}} {generated}
atom:prompt_tokens_total{{model_name="m"}} {prompt}
atom:prefix_cache_cached_tokens_total{{model_name="m"}} {cached}
atom:preemptions_total{{model_name="m"}} 0.0
atom:spec_decode_num_drafts_total{{model_name="m"}} {drafts}
atom:spec_decode_num_draft_tokens_total{{model_name="m"}} {drafted}
atom:spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}
atom:time_to_first_token_seconds_bucket{{le="0.1",model_name="m"}} {fast}
atom:time_to_first_token_seconds_bucket{{le="1.0",model_name="m"}} {all}
atom:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {all}
"""
BEFORE = {"running": 3, "generated": 1000, "prompt": 0, "cached": 0, "fast": 10, "all": 10,
          "drafts": 8, "drafted": 20, "accepted": 10}  # fmt: skip
AFTER = {"running": 4, "generated": 1500, "prompt": 400, "cached": 100, "fast": 12, "all": 30,
         "drafts": 12, "drafted": 60, "accepted": 20}  # fmt: skip


def cells(lines: list[str]) -> list[dict[str, str]]:
    """Rows of a table by column; columns are two spaces apart or more."""

    header, *rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def look(numbers: dict[str, int]) -> Any:
    return parse(METRICS.format(**numbers))


def test_top_shows_gauges_as_they_are_and_counters_as_rates() -> None:
    (row,) = cells(list(top_lines([Sample("chat-1", look(BEFORE), look(AFTER))], 2.0)))
    assert row == {
        "POD": "chat-1",
        "READY": "yes",
        "RUNNING": "4",
        "WAITING": "2",
        "KV-USED": "25%",
        "TOKENS/S": "250",
        "PROMPT/S": "200",
        "CACHED": "25%",
        "TTFT-P95": "<=1s",
        "DRAFTS-KEPT": "25%",
        "PREEMPTED/S": "0.0",
    }


def test_drafts_are_told_since_the_pods_began() -> None:
    both = [look(BEFORE), None, look(AFTER)]
    assert kept_drafts(both) == "38% of 80 drafted tokens kept, 2.50 tokens a step"
    assert kept_drafts([parse("atom:ready 1.0")]) == "no drafts so far"
    assert kept_drafts([None]) == "no pod answers"
    lines = list(status_lines({"metadata": {"namespace": "a", "name": "b"}}, [], [], "33% kept"))
    assert any("drafts    33% kept" in line for line in lines)


def test_top_adds_up_the_pods_that_answer_and_names_those_that_do_not() -> None:
    one = Sample("chat-1", look(BEFORE), look(AFTER))
    rows = cells(list(top_lines([one, Sample("chat-2", None, None), one], 2.0)))
    assert rows[1]["READY"] == "no answer"
    assert (rows[3]["POD"], rows[3]["READY"]) == ("all", "2/3")
    assert (rows[3]["RUNNING"], rows[3]["TOKENS/S"], rows[3]["KV-USED"]) == ("8", "500", "25%")


def test_a_pod_that_restarted_between_the_looks_has_no_negative_rate() -> None:
    (row,) = cells(list(top_lines([Sample("chat-1", look(AFTER), look(BEFORE))], 2.0)))
    assert (row["TOKENS/S"], row["TTFT-P95"]) == ("0", "-")


def test_gpus_says_per_node_what_is_free_who_holds_it_and_what_is_wrong() -> None:
    nodes = [
        gpu_node("a"),
        gpu_node("b", cordoned=True),
        gpu_node("c", gpus=6, capacity=8, labels={
            "amd.com/gpu.product-name": "AMD_Instinct_MI325X_OAM",
            "metricsexporter.amd.com.gpu.5.state": "unhealthy",
        }),
        gpu_node("d", resource="amd.com/dpx_nps1", labels={"amd.com/gpu.device-id": "75a3"}),
    ]  # fmt: skip
    nodes[0]["status"]["conditions"].append({"type": "AMDGPUXgmi", "status": "True"})
    pods = [gpu_pod("x", "a", 3, of="chat"), gpu_pod("y", "a", 1, of="chat")]
    lines = list(gpu_lines(nodes, pods))
    rows = {row["NODE"]: row for row in cells(lines[: lines.index("")])}
    assert rows["a"] == {
        "NODE": "a",
        "PRODUCT": "MI300X",
        "RESOURCE": "amd.com/gpu",
        "MEMORY": "192Gi",
        "DEVICES": "8",
        "USED": "4",
        "FREE": "4",
        "STATE": "AMDGPUXgmi",
        "HELD BY": "default/chat 4",
    }
    assert (rows["b"]["FREE"], rows["b"]["STATE"]) == ("0", "cordoned")
    assert (rows["c"]["PRODUCT"], rows["c"]["STATE"]) == ("MI325X", "2 unhealthy (5)")
    # Half of an MI355X's 288 GiB, which under NPS1 both halves may reach.
    assert rows["d"]["MEMORY"] == "144Gi (share)"
    assert lines[-2:] == [
        "amd.com/dpx_nps1: 8 devices, 0 used, 8 free for new pods",
        "amd.com/gpu: 22 devices, 4 used, 10 free for new pods",
    ]


def test_gpus_without_any_device_names_the_device_plugin() -> None:
    node = gpu_node("a")
    node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    (line,) = gpu_lines([node], [])
    assert "device plugin" in line


async def test_status_is_a_tree_of_what_the_operator_said() -> None:
    cluster = cluster_with(replicas=2)
    await reconciler(cluster).reconcile(KEY)
    failing = pod(cluster, "chat-1", ready=False)
    failing["kind"] = "Pod"
    failing["status"]["containerStatuses"] = [
        {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    ]
    parent = next(
        item for (kind, *_), item in cluster.objects.items() if kind.kind == "AtomDeployment"
    )
    children = [
        item for (kind, *_), item in cluster.objects.items() if kind.kind != "AtomDeployment"
    ]
    event = {
        "type": "Warning",
        "reason": "PodFailing",
        "message": "it ended",
        "count": 4,
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "involvedObject": {"kind": "AtomDeployment", "name": "chat"},
    }
    lines = list(status_lines(parent, [*children, failing], [event]))
    text = "\n".join(lines)
    assert lines[0] == "AtomDeployment default/chat"
    for words in (
        "ready     False, RollingOut",
        "+ Accepted",
        "Valid: the spec is valid",
        "tokens of KV cache in",
        "Deployment/chat  0 of 2 ready",
        "Service/chat",
        "Pod/chat-1  Running, not ready, on somewhere, 3 restarts, CrashLoopBackOff",
        "2026-01-02T03:04:05Z Warning PodFailing (x4): it ended",
    ):
        assert words in text, words
    assert all(line[0] in "├│└ A" for line in lines)


@pytest.mark.parametrize(
    ("condition", "mark"),
    [
        ({"type": "Accepted", "status": "True"}, "+"),
        ({"type": "Accepted", "status": "False"}, "-"),
        ({"type": "Degraded", "status": "True"}, "-"),
        ({"type": "Degraded", "status": "False"}, "+"),
        ({"type": "CapacityLimited", "status": "True"}, "-"),
        ({"type": "Scheduled", "status": "Unknown"}, "?"),
    ],
)
def test_a_condition_is_marked_by_whether_it_is_good(condition: dict[str, str], mark: str) -> None:
    found = {"reason": "R", "message": "m", **condition}
    parent = {
        "metadata": {"name": "chat", "namespace": "default", "generation": 1},
        "status": {"observedGeneration": 1, "conditions": [found]},
    }
    (line,) = [one for one in status_lines(parent, [], []) if condition["type"] in one]
    assert line.split()[2] == mark


def test_a_status_of_an_older_spec_is_said_to_be_that() -> None:
    parent = {"metadata": {"name": "chat", "namespace": "default", "generation": 2}}
    assert "not looked at this spec yet" in next(status_lines(parent, [], []))


def _given(pod: str, *devices: str, node: str = "a") -> dict[str, Any]:
    results = [{"driver": "gpu.amd.com", "pool": node, "device": name} for name in devices]
    reserved = [{"resource": "pods", "name": pod, "uid": pod}] if pod else []
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return {"metadata": {"name": f"of-{pod}", "namespace": "default"}, "status": status}


def _plain(name: str) -> dict[str, Any]:
    node = gpu_node(name)
    node["metadata"]["labels"] = {}
    for field in ("capacity", "allocatable"):
        del node["status"][field]["amd.com/gpu"]
    return node


def test_gpus_lists_devices_that_are_claimed_with_who_has_them_and_taints() -> None:
    sick, parts = resource_slice("a", 8), resource_slice("b", 4)
    sick["spec"]["devices"][3]["taints"] = [{"key": "x/sick", "effect": "NoSchedule"}]
    for device in parts["spec"]["devices"]:
        told = {"type": "amdgpu-partition", "partitionProfile": "cpx_nps4", "deviceID": "0x75a3"}
        device["attributes"] = {name: {"string": value} for name, value in told.items()}
        device["capacity"] = {"memory": {"value": "36Gi"}}
    claims = [_given("x", "gpu-0", "gpu-1"), _given("", "gpu-2"), _given("z", "gpu-9")]
    picture = device_picture([sick, parts], claims, [device_class()])
    pods = [gpu_pod("x", "a", 0, of="chat")]
    nodes = [_plain("a"), _plain("b")]
    rows = {row["node"]: row for row in gpu_document(nodes, pods, picture)}
    assert rows["a"] == {
        "node": "a", "product": "MI300X", "resource": "gpu.amd.com", "memory": "192Gi",
        "devices": 7, "used": 3, "free": 4, "state": "gpu-3 x/sick:NoSchedule",
        "heldBy": "default/(no pod) 1, default/chat 2",
    }  # fmt: skip
    assert rows["b"] == {
        "node": "b", "product": "MI355X", "resource": "gpu.amd.com cpx_nps4", "memory": "36Gi",
        "devices": 4, "used": 0, "free": 4, "state": "ok", "heldBy": "-",
    }  # fmt: skip
    lines = list(gpu_lines(nodes, pods, None, picture))
    assert "gpu.amd.com: 7 devices, 3 used, 4 free for new pods" in lines
    assert "a: device gpu-9 of default/z is published no more" in lines


def test_gpus_of_a_driver_without_a_class_are_free_for_no_pod() -> None:
    picture = device_picture([resource_slice("a", 8)], (), ())
    (row,) = gpu_document([_plain("a")], [], picture)
    assert (row["devices"], row["free"], row["state"]) == (8, 0, "no DeviceClass of the driver")


def test_gpus_of_a_plugin_and_of_a_driver_stand_in_one_table() -> None:
    picture = device_picture([resource_slice("b", 8)], (), [device_class()])
    rows = gpu_document([gpu_node("a"), _plain("b")], [], picture)
    assert [(row["node"], row["resource"]) for row in rows] == [
        ("a", "amd.com/gpu"),
        ("b", "gpu.amd.com"),
    ]
