"""A model that nobody described, on a hub behind a token: seen and fetched by Jobs, then served.

The Jobs are pods of the engine's own image; the hub is the tests' own, reached inside the cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from devcluster import target
from tests.support.cluster import hub_pod
from tests.support.cluster.node_claim import node_claim, run_on_claim
from tests.support.server.hub_server import COMMIT
from tools.demo.steps import chat
from tools.kube import Kube, condition, is_current, wait_until
from tools.on_cluster import Images, demo_manifest

pytestmark = pytest.mark.cluster

NAME = "fetched"
OURS = f"--selector=serving.atom.dev/job-for={NAME}"


@pytest.fixture(scope="module")
def prepared(kube: Kube, images: Images) -> Iterator[Kube]:
    """The hub and an empty claim, and an AtomDeployment that names both and nothing else."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("a folder of the node as a volume is for the embedded cluster only")
    with node_claim(kube, "models", images.engine):
        hub_pod.start(kube, images.engine)
        manifest = yaml.safe_load(demo_manifest(images))
        manifest["metadata"]["name"] = NAME
        spec = manifest["spec"]
        spec["model"] = {
            "source": f"hf://{hub_pod.MODEL}",
            "servedName": "atom-tiny",
            "tokenSecretRef": {"name": "hub"},
        }
        spec["cache"] = {"weights": {"claim": "models"}}
        spec["engine"]["env"] = [{"name": "HF_ENDPOINT", "value": hub_pod.URL}]
        kube.apply(yaml.safe_dump(manifest))
        yield kube
        kube.kubectl("delete", "atomd", NAME, "--wait")
        kube.kubectl("delete", "pod,service,configmap,secret", "hub", "--ignore-not-found")


def deployment(kube: Kube) -> dict[str, Any]:
    return kube.get("atomd", NAME)


def jobs(kube: Kube) -> dict[str, dict[str, Any]]:
    """Status of our Jobs, by what they are for."""
    found = kube.get("jobs", OURS)["items"]
    return {item["metadata"]["labels"]["app.kubernetes.io/name"]: item["status"] for item in found}


def test_the_model_is_looked_at_by_a_job_that_succeeds(prepared: Kube) -> None:
    def logits_indices() -> dict[str, Any] | None:
        fits = condition(deployment(prepared), "CapacityFits")
        return dict(fits) if fits.get("status") == "True" else None

    assert wait_until("a plan from the model's own config.json", logits_indices, seconds=120)
    assert jobs(prepared)["atom-inspection"]["succeeded"] == 1


def test_the_download_tells_how_far_it_is_and_nothing_starts_before(prepared: Kube) -> None:
    def told() -> str | None:
        loaded = condition(deployment(prepared), "ModelLoaded")
        message = str(loaded.get("message", ""))
        return message if "MiB" in message else None

    message = wait_until("progress of the download", told, seconds=120)
    assert "of 5.8" in message
    assert not prepared.get("deployments", f"--selector=app.kubernetes.io/instance={NAME}")["items"]


def test_what_was_fetched_is_served_read_only(prepared: Kube) -> None:
    hub_pod.release(prepared)

    def ready() -> bool:
        item = deployment(prepared)
        return condition(item, "Ready").get("status") == "True" and is_current(item)

    wait_until(f"{NAME} Ready", ready, seconds=240)
    assert jobs(prepared)["atom-weights"]["succeeded"] == 1
    config = json.loads(prepared.get("configmap", f"{NAME}-model")["data"]["config.json"])
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    with prepared.port_forward(f"service/{NAME}", 8000) as url:
        assert "".join(chat(url, "What is ATOM?")).strip()
    mounts = prepared.kubectl("exec", f"deployment/{NAME}", "--", "cat", "/proc/mounts")
    (claim,) = [line.split() for line in mounts.splitlines() if " /models/models " in line]
    assert claim[3].split(",")[0] == "ro"


def test_the_token_is_in_no_object_but_its_secret(prepared: Kube) -> None:
    kinds = "atomd,configmap,deployment,pod,job,event,controllerrevision"
    everything = prepared.kubectl("get", kinds, "--output=yaml")
    # The hub's own script knows what it asks for.
    ours = [line for line in everything.splitlines() if hub_pod.TOKEN in line]
    assert all("HubServer(" in line for line in ours), ours


@pytest.mark.slow
def test_another_download_removes_from_the_claim_what_nothing_uses(
    prepared: Kube, images: Images
) -> None:
    """A model that a download of this claim fetched long ago goes; what runs and what is not of a
    download stays."""
    uid = prepared.get("pvc", "models")["metadata"]["uid"]
    mark = json.dumps({"owners": {uid: 0}})

    def folders(command: str) -> set[str]:
        command = f"{command} && ls -d */*"
        return set(run_on_claim(prepared, "models", images.engine, command).split())

    made = f"mkdir -p old/main foreign/main && echo '{mark}' > old/main/.atom-download.json"
    before = folders(f"{made} && echo of others > foreign/main/file && chmod -R 0777 old foreign")
    assert len(before) == 3
    model = {"revision": COMMIT}
    cache = {"weights": {"prune": "Always"}}
    patch = json.dumps({"spec": {"model": model, "cache": cache}})
    prepared.kubectl("patch", "atomd", NAME, "--type=merge", f"--patch={patch}")

    def ready() -> bool:
        item = deployment(prepared)
        return condition(item, "Ready").get("status") == "True" and is_current(item)

    wait_until(f"{NAME} Ready with the other revision", ready, seconds=240)
    after = folders("true")
    assert before - after == {"old/main"}
    assert len(after - before) == 1
    told = prepared.kubectl("get", "events", "--output=json")
    (event,) = (e for e in json.loads(told)["items"] if e["reason"] == "UnusedWeightsRemoved")
    assert "old/main" in event["message"]
