"""--kv-transfer-config: vLLM's words have their effect, or are refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from atom.errors import ConfigError
from atom.kv_transfer_config import document
from atom.kv_transfer_config.document import kv_transfer_config
from atom.kv_transfer_config.values import KVRole, KVTransferConfig, LoadFailurePolicy
from atom.sizing.options.beside_transfer import BesideTransfer, transfer_problems


def read(document: Any, **environment: str) -> KVTransferConfig:
    config = kv_transfer_config(json.dumps(document), environment=environment)
    assert config is not None
    return config


@pytest.mark.parametrize("name", ["OffloadingConnector", "SimpleCPUOffloadConnector"])
def test_a_tiers_document_exchanges_no_pages(name: str) -> None:
    assert kv_transfer_config(json.dumps({"kv_connector": name})) is None


def test_without_the_flag_no_pages_are_exchanged() -> None:
    assert kv_transfer_config(None) is None


def test_every_value_reaches_the_configuration() -> None:
    extra = {
        "transport": "tcp", "kv_lease_duration": 12, "kv_recompute_threshold": 9,
        "side_channel_host": "10.1.2.3", "side_channel_port": 7000,
        "allowed_networks": ["10.0.0.0/8"], "enforce_handshake_compat": True,
    }  # fmt: skip
    config = read(
        {
            "kv_connector": "NixlConnector", "kv_role": "kv_producer", "engine_id": "one",
            "kv_load_failure_policy": "fail", "kv_connector_extra_config": extra,
        }
    )  # fmt: skip
    assert config == KVTransferConfig(
        role=KVRole.PRODUCER, engine_id="one", host="10.1.2.3", port=7000, lease_seconds=12.0,
        recompute_threshold=9, load_failure_policy=LoadFailurePolicy.FAIL,
        allowed_networks=("10.0.0.0/8",), transports=("tcp",),
    )  # fmt: skip


def test_the_defaults_are_those_of_the_guide() -> None:
    config = read({})
    assert (config.role, config.host, config.port) == (KVRole.BOTH, "127.0.0.1", 5600)
    assert (config.lease_seconds, config.timeout_seconds) == (30.0, 20.0)
    assert config.load_failure_policy is LoadFailurePolicy.RECOMPUTE
    assert config.engine_id != read({}).engine_id, "each engine has a name of its own"


@pytest.mark.parametrize(
    "name",
    ["AtomConnector", "MooncakeConnector", "MoRIIOConnector", "mooncake", "moriio"],
)
def test_connectors_of_other_servers_mean_our_own(name: str) -> None:
    assert read({"kv_connector": name, "engine_id": "e"}) == read({"engine_id": "e"})


@pytest.mark.parametrize("name", ["NixlConnector", "NixlPullConnector", "nixl"])
def test_nixls_connectors_add_its_transport(name: str) -> None:
    own = read({"engine_id": "e"})
    with_nixl = dataclasses.replace(own, transports=("shm", "nixl", "tcp"))
    assert read({"kv_connector": name, "engine_id": "e"}) == with_nixl
    extra = {"transport": "tcp"}
    assert read({"kv_connector": name, _EXTRA: extra}).transports == ("tcp",)


def test_nixl_alone_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "nixl_package", lambda: "nixl_cu12")
    assert read({_EXTRA: {"transport": "nixl"}}).transports == ("nixl",)
    monkeypatch.setattr(document, "nixl_package", lambda: None)
    with pytest.raises(ConfigError, match=r"not installed; run: pip install atom-platform\[nixl\]"):
        read({_EXTRA: {"transport": "nixl"}})
    assert "nixl" in read({"kv_connector": "NixlConnector"}).transports, "the engine says it"


@pytest.mark.parametrize(
    ("variables", "host", "port"),
    [
        ({"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.9.9.9", "VLLM_NIXL_SIDE_CHANNEL_PORT": "7001"},
         "10.9.9.9", 7001),
        ({"ATOM_HOST_IP": "10.8.8.8"}, "10.8.8.8", 5600),
    ],
)  # fmt: skip
def test_the_environment_gives_the_place(variables: dict[str, str], host: str, port: int) -> None:
    config = read({}, **variables)
    assert (config.host, config.port) == (host, port)
    own = {"kv_connector_extra_config": {"side_channel_host": "10.1.1.1", "side_channel_port": 1}}
    config = read(own, **variables)
    assert (config.host, config.port) == ("10.1.1.1", 1)


_EXTRA = "kv_connector_extra_config"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kv_connector": "MultiConnector"}, "MultiConnector"),
        ({"kv_connector": "LMCacheConnectorV1"}, "LMCacheConnectorV1"),
        ({"kv_connector": "LMCacheMPConnector"}, "LMCacheMPConnector"),
        ({"kv_connector": "SharedStorageConnector"}, "SharedStorageConnector"),
        ({"kv_connector": "HF3FSConnector"}, "HF3FSConnector"),
        ({"kv_connector": "FlexKVConnectorV1"}, "FlexKVConnectorV1"),
        ({"kv_connector": "NixlPushConnector"}, "NixlPushConnector"),
        ({"kv_connector": "Unheard"}, "Unheard"),
        ({"kv_connector_module_path": "my.module"}, "no code is loaded"),
        ({"kv_role": "kv_other"}, "kv_role"),
        ({"kv_load_failure_policy": "ignore"}, "kv_load_failure_policy"),
        ({"unheard": 1}, "unheard"),
        ({"kv_rank": 1}, "kv_rank"),
        ({_EXTRA: {"transport": "rdma"}}, "transport"),
        ({_EXTRA: {"enforce_handshake_compat": False}}, "enforce_handshake_compat"),
        ({_EXTRA: {"kv_lease_duration": 0}}, "kv_lease_duration"),
        ({_EXTRA: {"kv_recompute_threshold": -1}}, "kv_recompute_threshold"),
        ({_EXTRA: {"side_channel_port": 70000}}, "side_channel_port"),
        ({_EXTRA: {"allowed_networks": ["10.0.0.1/8"]}}, "allowed_networks"),
        ({_EXTRA: {"bidirectional_kv_xfer": True}}, "bidirectional_kv_xfer"),
        ({_EXTRA: {"unheard": 1}}, "unheard"),
        ([], "object"),
    ],
)
def test_what_is_not_served_is_refused_by_name(document: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="--kv-transfer-config") as caught:
        read(document)
    assert words in str(caught.value)


_FITTING = BesideTransfer(
    prefix_caching=True, pools=False, tensor_parallel=1, nodes=1, shares_experts=False,
    by_layers=False, may_sleep=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"prefix_caching": False}, "prefix cache"),
        ({"pools": True}, "pooling"),
        ({"nodes": 2}, "nodes"),
        ({"shares_experts": True}, "experts"),
        ({"by_layers": True}, "--method ngram"),
        ({"may_sleep": True}, "--enable-sleep-mode"),
    ],
)
def test_what_does_not_go_beside_it_is_named(changed: dict[str, Any], words: str) -> None:
    assert list(transfer_problems(_FITTING)) == []
    (problem,) = transfer_problems(dataclasses.replace(_FITTING, **changed))
    assert words in problem
