"""Facts that routers of divided requests read: of /server_info and /kv_transfer_info."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from atom.config import Config

CONNECTOR = "AtomConnector"


class KVTransferInfo(msgspec.Struct, frozen=True):
    """The answer of /kv_transfer_info."""

    tp_size: Annotated[int, Meta(description="Ranks that share a copy of the model.")]
    dp_size: Annotated[int, Meta(description="Copies of the model.")]
    kv_role: Annotated[str, Meta(description="kv_producer, kv_consumer or kv_both.")]
    handshake_port: Annotated[
        int, Meta(description="Of the first copy's side channel; the others' count up.")
    ]


def transfer_info(config: Config) -> KVTransferInfo | None:
    """Return the facts of a server that exchanges KV pages; None of any other."""
    asked = config.cache.kv_transfer
    if asked is None:
        return None
    parallel = config.parallel
    return KVTransferInfo(
        parallel.tensor_parallel_size, parallel.data_parallel_size, asked.role, asked.port
    )


def transfer_facts(config: Config) -> dict[str, Any]:
    """Return the facts that /server_info adds, by the names that routers know."""
    facts: dict[str, Any] = {
        "model_id": config.model.served_name,
        "dp_size": config.parallel.data_parallel_size,
    }
    asked = config.cache.kv_transfer
    if asked is not None:
        facts |= {
            "kv_connector": CONNECTOR,
            "kv_role": asked.role.value,
            "kv_engine_id": asked.engine_id,
            "kv_block_size": config.cache.block_size,
        }
    return facts
