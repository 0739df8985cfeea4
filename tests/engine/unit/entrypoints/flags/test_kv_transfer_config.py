"""vLLM's document of a connector sets the host's tier, or is refused by name with a remedy. Other
connectors are the exchange of pages between engines, and no tier."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.engine_args import options_from_args
from atom.errors import ConfigError
from atom.sizing.options.kv_tiers import KVTierOptions


def tier_of(*words: str) -> KVTierOptions:
    return options_from_args(build_parser().parse_args(["serve", "--model", "m", *words])).tier


def document(connector: str | None = "OffloadingConnector", **keys: Any) -> list[str]:
    said = {"kv_connector": connector, "kv_role": "kv_both", **keys}
    return ["--kv-transfer-config", json.dumps(said)]


def extra(**keys: Any) -> dict[str, Any]:
    return {"kv_connector_extra_config": {"cpu_bytes_to_use": 2**31, **keys}}


@pytest.mark.parametrize("connector", ["OffloadingConnector", "SimpleCPUOffloadConnector"])
def test_connectors_of_the_hosts_memory_are_the_tier(connector: str) -> None:
    assert tier_of(*document(connector, **extra())) == tier_of("--kv-offloading-size", "2")
    found = tier_of(*document(connector, **extra(eviction_policy="arc", block_size=64)))
    assert (found.offloading_size, found.policy) == (2, "protected")
    beside = tier_of("--kv-offloading-size", "3", *document(connector, engine_id="e"))
    assert beside.offloading_size == 3


def test_connectors_between_engines_are_no_tier() -> None:
    for connector in ("NixlConnector", None):
        assert tier_of(*document(connector)) == tier_of()
        assert tier_of(*document(connector), "--kv-offloading-size", "2").offloading_size == 2


def test_names_of_other_servers() -> None:
    assert tier_of("--hicache-size", "30", "--enable-hierarchical-cache").offloading_size == 30
    assert tier_of("--kv-offloading-backend", "native").offloading_size is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (document("LMCacheConnectorV1"), "'LMCacheConnectorV1'.*not served.*--kv-offloading-size"),
        (document(), "give cpu_bytes_to_use, or --kv-offloading-size"),
        (document(**extra(), kv_role="kv_producer"), "kv_role 'kv_producer'"),
        (document(**extra(secondary_tiers=[{"type": "fs"}])), "the type fs, with root_dir"),
        (document(**extra(secondary_tiers=[{"type": "obj", "root_dir": "/x"}])), "got obj"),
        (document(**extra(secondary_tiers=[{"type": "fs", "root_dir": "/x"}] * 2)), "got fs, fs"),
        (document(**extra(secondary_tiers=[{"kind": "fs"}])), "kind"),
        (
            [
                *document(**extra(secondary_tiers=[{"type": "fs", "root_dir": "/x"}])),
                *("--kv-disk-dir", "/y"),
            ],
            "both name a folder",
        ),
        (document(**extra(eviction_policy="fifo")), "use lru or arc"),
        (document(**extra(n_threads=4)), "n_threads"),
        ([*document(**extra()), "--kv-offloading-size", "1"], "give one of them"),
        (["--kv-transfer-config", "{"], "give a JSON object"),
        (["--kv-transfer-config", "[]"], "give a JSON object"),
    ],
)
def test_what_is_not_here_is_refused_by_name(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        tier_of(*words)


@pytest.mark.parametrize("words", [["--kv-offloading-backend", "lmcache"], ["--swap-space", "4"]])
def test_flags_that_are_not_here_name_a_remedy(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tier_of(*words)
    told = capsys.readouterr().err
    assert "native" in told or "--kv-offloading-size GIB" in told
