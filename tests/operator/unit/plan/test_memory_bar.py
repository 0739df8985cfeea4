"""The bar of a device's memory: the plan's own numbers, in a terminal and on the page."""

from __future__ import annotations

from atom_operator.memory_bar import MemoryPart, bar_lines, memory_parts
from atom_operator.page.overview import overview
from atom_operator.plan_report import facts
from tests.support.operator.builders_operator import atom_deployment, gpu_node, plan


def held():
    made = plan(model={"source": "hf://Qwen/Qwen3-8B"}, accelerator={"product": "MI300X"})
    assert made.capacity.capacity is not None
    return made, made.capacity.capacity


def test_the_parts_add_up_to_the_devices_memory() -> None:
    _, capacity = held()
    parts = {part.name: part.size_bytes for part in memory_parts(capacity)}
    assert sum(parts.values()) == capacity.total_bytes
    assert parts["weights"] == capacity.weights_bytes
    assert parts["KV cache"] == capacity.kv_tokens * capacity.kv_bytes_per_token
    assert parts["left free"] > 0  # gpuMemoryUtilization


def test_plan_draws_the_bar_and_says_what_its_shades_are() -> None:
    made, capacity = held()
    found = [text for label, text in facts(made) if label.startswith("memory")]
    assert found == list(bar_lines(memory_parts(capacity)))
    bar, legend = found
    assert len(bar) == 48
    assert [shade for shade in "█▓▒░" if shade in bar] == list("█▓▒░")
    assert "█ weights 15.3 GiB" in legend


def test_what_is_small_is_seen_and_what_is_not_there_is_not() -> None:
    sizes = {"weights": 1, "runtime": 0, "cache": 10**9, "free": 0}
    bar, _ = bar_lines([MemoryPart(name, size) for name, size in sizes.items()])
    assert (bar.count("█"), bar.count("▓"), bar.count("▒"), len(bar)) == (1, 0, 47, 48)


def test_the_page_says_conditions_as_sentences() -> None:
    manifest = atom_deployment()
    manifest["status"] = {
        "readyReplicas": 1,
        "replicas": 2,
        "rollout": {"strategy": "Surge", "reason": "a device is free", "updated": 1, "ready": 1},
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "R", "message": "1 of 2 replicas serve"},
            {"type": "CapacityLimited", "status": "False", "reason": "R", "message": "it is not"},
            {"type": "Progressing", "status": "True", "reason": "R", "message": "pods start"},
            {"type": "ModelCached", "status": "Unknown", "reason": "NotSeen", "message": ""},
        ],
    }
    (shown,) = overview([(manifest, held()[1])], [gpu_node("node-a")], [])["deployments"]
    assert [(each["text"], each["good"]) for each in shown["conditions"]] == [
        ("Ready: no. 1 of 2 replicas serve", False),
        ("Capacity limited: no. It is not", True),
        ("Progressing: yes. Pods start", None),
        ("Model cached: unknown. NotSeen", None),
    ]
    assert shown["replicas"] == "1 of 2 pods serve"
    assert shown["rollout"] == "Surge: a device is free (1 of the newest revision, 1 serve)"
    assert shown["memory"]["parts"][0]["name"] == "weights"


def test_a_deployment_that_nobody_has_looked_at_and_forbidden_nodes_are_shown() -> None:
    found = overview([(atom_deployment(), None)], None, [])
    assert found["nodes"] is None
    assert found["deployments"][0]["memory"] is None
    assert found["deployments"][0]["conditions"] == []
