"""The exchange of KV pages in pods: the engine's flag, port, variables and labels. Pure.

A prefill pod listens at its own address for decode pods, which connect to the address that comes
with each request. No pod needs to know another one.
"""

from __future__ import annotations

import json
from typing import Any

from atom_operator import constants
from atom_operator.domain import EngineOptions, KvTransfer

_ROLES = {True: "kv_producer", False: "kv_consumer"}  # of the engine, whether it computes prompts


def transfer_arguments(engine: EngineOptions) -> list[str]:
    """Return the flag of the engine's part in the exchange; empty without one."""
    transfer = engine.serving.transfer
    if transfer is None:
        return []
    extra: dict[str, Any] = {"side_channel_port": constants.KV_TRANSFER_PORT}
    if transfer.transport is not None:
        extra["transport"] = transfer.transport
    document = {
        "kv_role": _ROLES[transfer.computes_prompts],
        "kv_connector_extra_config": extra,
    }
    return ["--kv-transfer-config", json.dumps(document)]


def transfer_environment(engine: EngineOptions) -> dict[str, dict[str, Any]]:
    """Return the variable by which a prefill pod listens at its own address."""
    if not _listens(engine.serving.transfer):
        return {}
    name, address = "ATOM_HOST_IP", {"fieldRef": {"fieldPath": "status.podIP"}}
    return {name: {"name": name, "valueFrom": address}}


def transfer_ports(engine: EngineOptions) -> dict[str, int]:
    """Return the port that decode pods read pages from, by its name."""
    if not _listens(engine.serving.transfer):
        return {}
    return {constants.KV_TRANSFER_PORT_NAME: constants.KV_TRANSFER_PORT}


def transfer_port_rule(engine: EngineOptions) -> dict[str, Any]:
    """Return the ports of all copies of the model in a pod, as a NetworkPolicy has them."""
    first, copies = constants.KV_TRANSFER_PORT, engine.copies_per_pod
    last = {"endPort": first + copies - 1} if copies > 1 else {}
    return {"port": first, **last, "protocol": "TCP"}


def transfer_labels(engine: EngineOptions) -> dict[str, str]:
    """Return the labels by which people and llm-d's tools tell the roles of pods apart."""
    transfer = engine.serving.transfer
    if transfer is None:
        return {}
    role = transfer.role.value
    return {constants.LABEL_TRANSFER_ROLE: role, constants.LABEL_LLM_D_ROLE: role}


def _listens(transfer: KvTransfer | None) -> bool:
    return transfer is not None and transfer.computes_prompts
