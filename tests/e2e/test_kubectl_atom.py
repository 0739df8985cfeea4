"""`kubectl atom` beside a model that serves: status, top, logs and chat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.support.operator.plugin import atom
from tools.kube import Kube, condition, is_current, wait_until
from tools.on_cluster import Images, demo_manifest

pytestmark = pytest.mark.cluster

NAME = "plugin"


@pytest.fixture(scope="module")
def serving(kube: Kube, images: Images) -> Iterator[Kube]:
    """The demo's model under a name of its own."""
    manifest = yaml.safe_load(demo_manifest(images))
    manifest["metadata"]["name"] = NAME
    kube.apply(yaml.safe_dump(manifest))

    def ready() -> bool:
        item = kube.get("atomd", NAME)
        return condition(item, "Ready").get("status") == "True" and is_current(item)

    wait_until(f"{NAME} Ready", ready, seconds=240.0)
    yield kube
    kube.kubectl("delete", "atomd", NAME)


def test_status_of_a_model_that_serves(serving: Kube) -> None:
    text = atom(serving, "status", NAME)
    assert "+ Ready" in text
    assert "measured" in text
    assert "1 of 1 ready" in text


def test_chat_answers_and_top_has_seen_it(serving: Kube) -> None:
    assert atom(serving, "chat", NAME, "-m", "What is ATOM?", "--max-tokens=16").strip()
    header, row = atom(serving, "top", NAME, "--interval=1").splitlines()
    values = dict(zip(header.split(), row.split(), strict=True))
    assert values["READY"] == "yes"
    assert values["KV-USED"].endswith("%")


def test_logs_name_the_pod_of_each_line(serving: Kube) -> None:
    lines = atom(serving, "logs", NAME, "--tail=5").splitlines()
    assert lines
    assert all(line.startswith(f"[pod/{NAME}-") for line in lines)
