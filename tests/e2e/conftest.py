"""The platform on a real cluster, in a namespace of the tests' own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest

from devcluster import target
from tools.kube import Kube
from tools.on_cluster import Images, choose_images, install_operator, offer_folders

NAMESPACE = "atom-e2e"


@pytest.fixture(scope="session")
def images() -> Images:
    return choose_images(target.resolve(os.environ), os.environ)


@pytest.fixture(scope="session")
def kube(images: Images) -> Iterator[Kube]:
    """The operator installed by its chart, and an empty namespace; gone afterwards."""
    chosen = target.resolve(os.environ)
    target.require_reachable(chosen)
    cluster = Kube(chosen)
    install_operator(cluster, images)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
    cluster.kubectl("create", "namespace", NAMESPACE)
    ours = dataclasses.replace(cluster, namespace=NAMESPACE)
    offer_folders(ours, images)
    yield ours
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
