"""Envoy before servers, as gateways set it up for an InferencePool: an endpoint picker names the
server of each request, and any that is well takes the request that nobody is named for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.server import envoy_document as parts
from tests.support.server.envoy_process import envoy_process, written
from tests.support.server.server_process import reserved_port
from tests.support.waiting import HANG_SECONDS, wait_until


@dataclass(frozen=True)
class Envoy:
    """picked: where the picker is asked, and in its absence the servers in turn; spread: to the
    servers in turn, as a Service would."""

    picked: str
    spread: str
    admin: str

    def wait_for_servers(self, well: int) -> None:
        def told() -> bool:
            with contextlib.suppress(httpx.TransportError):
                text = httpx.get(f"{self.admin}/clusters", timeout=HANG_SECONDS).text
                return sum("::health_flags::healthy" in line for line in _servers(text)) == well
            return False

        wait_until(told, f"{well} servers are well before Envoy")


def _servers(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("servers::")]


@contextlib.contextmanager
def envoy(servers: Sequence[parts.Address], picker: parts.Address, folder: Path) -> Iterator[Envoy]:
    """Ends with the block."""
    with contextlib.ExitStack() as stack:
        numbers = [stack.enter_context(reserved_port()) for _ in range(4)]
        picked, spread, asking, admin = (("127.0.0.1", number) for number in numbers)
        in_turn = parts.route("servers", parts.OTHER_SERVER)
        document = {
            "admin": {"address": parts.address(*admin)},
            "static_resources": {
                "listeners": [
                    parts.listener("picked", picked, parts.route("in-order", parts.NEXT_IN_ORDER)),
                    parts.listener("asking", asking, in_turn, parts.ask_picker()),
                    parts.listener("spread", spread, in_turn),
                ],
                "clusters": [
                    parts.in_order_cluster([asking, spread]),
                    _server_cluster(servers),
                    parts.picker_cluster(picker),
                ],
            },
        }
        stack.enter_context(envoy_process(written(document, folder)))
        yield Envoy(*(f"http://{host}:{port}" for host, port in (picked, spread, admin)))


def _server_cluster(servers: Sequence[parts.Address]) -> dict[str, Any]:
    in_turn = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": parts.typed("load_balancing_policies.round_robin.v3.RoundRobin"),
    }
    named = parts.typed(
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"header": parts.DESTINATION}],
        fallback_policy={"policies": [{"typed_extension_config": in_turn}]},
    )
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": named}
    check = {
        "timeout": "5s",
        "interval": "1s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/health"},
    }
    return parts.cluster(
        "servers",
        servers,
        connect_timeout="5s",
        health_checks=[check],
        load_balancing_policy={"policies": [{"typed_extension_config": policy}]},
        common_lb_config={"healthy_panic_threshold": {"value": 0}},
    )
