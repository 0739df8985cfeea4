"""Fake AMD nodes look like those of the AMD device plugin and node labeller."""

from __future__ import annotations

import pytest

from devcluster.errors import DevclusterError
from devcluster.fake_nodes import amd, nodes


def test_labels_of_an_mi300x_node() -> None:
    labels = amd.labels(amd.product("mi300x"), 8)
    assert labels["amd.com/gpu.device-id"] == "74a1"
    assert labels["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert labels["amd.com/gpu.vram"] == "192G"
    assert labels["amd.com/gpu.cu-count"] == "304"
    assert labels["amd.com/gpu.simd-count"] == "1216"
    assert labels["amd.com/gpu.family"] == "AI"


def test_the_beta_family_has_the_plain_and_the_counted_form() -> None:
    labels = amd.labels(amd.product("MI300X"), 6)
    assert labels["beta.amd.com/gpu.vram"] == "192G"
    assert labels["beta.amd.com/gpu.vram.192G"] == "6"


@pytest.mark.parametrize("name", amd.PRODUCTS)
def test_label_values_are_valid_in_kubernetes(name: str) -> None:
    for key, value in amd.labels(amd.PRODUCTS[name], 8).items():
        assert len(value) <= 63
        assert len(key.split("/")[1]) <= 63
        assert value.replace("_", "").replace("-", "").isalnum()


def test_an_unknown_product_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DevclusterError, match="MI300X, MI325X"):
        amd.product("MI9000")


def test_a_count_names_the_real_node_first() -> None:
    assert nodes.parse_count("0", "real", "MI300X") == []
    found = nodes.parse_count("3:4", "real", "MI300X")
    assert [(f.node, f.gpus, f.create) for f in found] == [
        ("real", 4, False),
        ("amd-1", 4, True),
        ("amd-2", 4, True),
    ]
    assert nodes.parse_count("1", "real", "MI300X")[0].gpus == 8


@pytest.mark.parametrize("text", ["x", "1:x", "-1", "1000", "1:2:3"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DevclusterError, match="N:GPUS"):
        nodes.parse_count(text, "real", "MI300X")


def test_another_product_replaces_the_labels_of_the_one_before() -> None:
    before = amd.labels(amd.product("MI300X"), 8)
    node = {"metadata": {"labels": {**before, "kubernetes.io/os": "linux"}}}
    changes = nodes.label_changes(node, nodes.FakeAmd("n", 8, "MI355X"))
    assert changes["amd.com/gpu.device-id"] == "75a3"
    assert changes["beta.amd.com/gpu.vram.192G"] is None
    assert "kubernetes.io/os" not in changes


def test_taking_the_gpus_away_removes_every_label() -> None:
    node = {"metadata": {"labels": amd.labels(amd.product("MI300X"), 8)}}
    changes = nodes.label_changes(node, nodes.FakeAmd("n", 0, "MI300X"))
    assert set(changes.values()) == {None}


def test_a_created_node_takes_no_pod_that_does_not_ask_for_it() -> None:
    node = nodes.created_node(nodes.FakeAmd("amd-1", 8, "MI300X", create=True))
    assert [taint["effect"] for taint in node["spec"]["taints"]] == ["NoSchedule"]
    assert node["metadata"]["labels"][amd.FAKE_LABEL] == "true"
