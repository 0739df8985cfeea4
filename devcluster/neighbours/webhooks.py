"""Turns webhook configurations that name a Service into ones that name a process of the node."""

from __future__ import annotations

from typing import Any

from devcluster.neighbours.neighbour import Object, Place


def reached_by_url(
    configurations: list[Object], place: Place, name: str, port: int
) -> list[Object]:
    """The configurations under names that no other neighbour's have."""
    return [_changed(one, place, name, port) for one in configurations]


def _changed(configuration: Object, place: Place, name: str, port: int) -> Object:
    metadata = {"name": f"{name}-{configuration['metadata']['name']}"}
    webhooks = [_by_url(hook, place.authority, port) for hook in configuration["webhooks"]]
    return {**configuration, "metadata": metadata, "webhooks": webhooks}


def _by_url(hook: dict[str, Any], authority: str, port: int) -> dict[str, Any]:
    path = hook["clientConfig"]["service"]["path"]
    client = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    return {**hook, "clientConfig": client}


def only_pods_with(label: str, configurations: list[Object]) -> list[Object]:
    """Keep pods without the label out of webhooks of pods, so that no other pod waits for them."""
    chosen = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    for hook in (hook for one in configurations for hook in one["webhooks"]):
        if any("pods" in rule["resources"] for rule in hook["rules"]):
            hook["objectSelector"] = chosen
    return configurations
