"""Prefill and decode pods of the demo's model on a real Kubernetes, step by step, in order.

apply with roles → both are Ready → pages are read → other pods of both roles, no failed request →
a bad image: the decode pods stay, no failed request → roles are taken away, no failed request →
delete: nothing is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.e2e.client_pod import start_client, stop_client
from tests.e2e.test_lifecycle import metric
from tools.demo.steps import chat
from tools.kube import Kube, condition, is_current, wait_until
from tools.on_cluster import Images, demo_manifest

pytestmark = pytest.mark.cluster

NAME, PREFILL = "pair", "pair-prefill"
# Longer than the tokens below which a decode pod computes the prompt itself.
QUESTION = "What is ATOM? " * 24
FAILS_SOON = {"progressDeadlineSeconds": 10}
_OWNED = f"app.kubernetes.io/instance in ({NAME},{PREFILL})"
_KINDS = "deployment,replicaset,pod,service,serviceaccount,secret,networkpolicy"


def engine_pods(kube: Kube, name: str) -> set[str]:
    labels = f"--selector=serving.atom.dev/deployment={name},app.kubernetes.io/name=atom-engine"
    return {
        pod["metadata"]["name"]
        for pod in kube.get("pods", labels)["items"]
        if "deletionTimestamp" not in pod["metadata"]
    }


def wait_ready(kube: Kube) -> dict[str, Any]:
    def probe() -> dict[str, Any] | None:
        item = kube.get("atomd", NAME)
        ready = condition(item, "Ready").get("status") == "True" and is_current(item)
        return item if ready else None

    return wait_until(f"{NAME} Ready", probe, seconds=400)


def patch_spec(kube: Kube, **fields: Any) -> None:
    patch = json.dumps({"spec": fields})
    kube.kubectl("patch", "atomd", NAME, "--type=merge", f"--patch={patch}")


@contextmanager
def no_failed_request(kube: Kube, images: Images) -> Iterator[None]:
    start_client(kube, images, NAME, QUESTION)
    yield
    summary = stop_client(kube)
    assert summary["failures"] == []
    assert summary["answered"] > 0, "the client was asking all the while"


def transferred(kube: Kube) -> float:
    """Tokens of prompts whose pages the decode pods have read."""
    found = 0.0
    for pod in engine_pods(kube, NAME):
        with kube.port_forward(f"pod/{pod}", 8000) as url:
            found += metric(url, "kv_transfer_tokens_total")
    return found


def leads_to_frontend(kube: Kube) -> bool:
    selector = kube.get("service", NAME)["spec"]["selector"]
    return bool(selector.get("app.kubernetes.io/component") == "frontend")


def begin_pair(kube: Kube, images: Images) -> dict[str, Any]:
    """Apply the pair; return it once it is ready and its Service leads to its frontend."""
    manifest = yaml.safe_load(demo_manifest(images))
    manifest["metadata"]["name"] = NAME
    manifest["spec"] |= {
        "disaggregation": {"prefill": {}, "decide": {"minNonCachedTokens": 16}},
        "frontend": {"replicas": 1},
        "networkPolicy": {},
    }
    kube.apply(yaml.safe_dump(manifest))
    item = wait_ready(kube)
    wait_until("the Service leads to the frontend", lambda: leads_to_frontend(kube), seconds=180)
    return item


def test_both_roles_become_ready_and_exchange_pages(kube: Kube, images: Images) -> None:
    item = begin_pair(kube, images)
    for kind in ("PrefillReady", "DecodeReady", "PairCompatible"):
        assert condition(item, kind)["status"] == "True", kind
    assert item["status"]["disaggregation"]["prefill"]["readyReplicas"] == 1
    numbers = iter(range(1000))

    def reads_pages() -> bool:
        with kube.port_forward(f"service/{NAME}", 8000) as url:
            assert "".join(chat(url, f"{next(numbers)} {QUESTION}", max_tokens=8))
        return transferred(kube) > 0

    wait_until("pages of the prefill pod", reads_pages, seconds=120)


def test_a_rollout_of_both_roles_fails_no_request(kube: Kube, images: Images) -> None:
    before = {name: engine_pods(kube, name) for name in (NAME, PREFILL)}
    with no_failed_request(kube, images):
        patch_spec(kube, engine={"maxModelLen": 768})
        wait_until(
            "other pods of both roles",
            lambda: all(not engine_pods(kube, name) & before[name] for name in before),
            seconds=400,
        )
        wait_ready(kube)


@pytest.fixture
def pair(kube: Kube, images: Images) -> Iterator[None]:
    """The pair; made here if no test before has made it, as in `make test-all`."""
    is_there = any(item["metadata"]["name"] == NAME for item in kube.get("atomd")["items"])
    if not is_there:
        begin_pair(kube, images)
    yield
    if not is_there:
        kube.kubectl("delete", "atomd", NAME, "--wait")


@pytest.mark.whole  # test_lifecycle has a bad image, and test_pair_rollout one of prefill pods
@pytest.mark.usefixtures("pair")
def test_a_bad_image_keeps_the_decode_pods_and_fails_no_request(kube: Kube, images: Images) -> None:
    before = engine_pods(kube, NAME)
    with no_failed_request(kube, images):
        patch_spec(kube, engine={"image": "localhost/atom-none:0"}, rollout=FAILS_SOON)

        def is_told() -> bool:
            item = kube.get("atomd", NAME)
            return condition(item, "Progressing").get("reason") == "PrefillFailed"

        wait_until("the failure of the prefill pods", is_told, seconds=180)
        assert engine_pods(kube, NAME) == before
        good = {"image": images.engine}
        patch_spec(kube, engine=good, rollout={"progressDeadlineSeconds": None})
        wait_ready(kube)
    assert engine_pods(kube, NAME) == before


def test_roles_are_taken_away_and_no_request_fails(kube: Kube, images: Images) -> None:
    with no_failed_request(kube, images):
        patch_spec(kube, disaggregation=None)
        wait_until("no prefill pods", lambda: not engine_pods(kube, PREFILL), seconds=180)
        wait_ready(kube)
    types = {item["type"] for item in kube.get("atomd", NAME)["status"]["conditions"]}
    assert not types & {"PrefillReady", "DecodeReady", "PairCompatible"}


def test_deletion_takes_both_roles(kube: Kube) -> None:
    patch_spec(kube, disaggregation={"prefill": {}})
    wait_until("prefill pods", lambda: engine_pods(kube, PREFILL), seconds=180)
    kube.kubectl("delete", "atomd", NAME, "--wait")

    def gone() -> bool:
        return not kube.get(_KINDS, f"--selector={_OWNED}")["items"]

    wait_until("all children of both gone", gone, seconds=240)
