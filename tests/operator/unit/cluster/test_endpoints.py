"""The operator's own endpoints answer on every address, of whichever family."""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from atom_operator import endpoints
from atom_operator.endpoints import EVERY_ADDRESS, listen
from tests.support.cluster.ipv6 import needs_ipv6

IPV4 = "127.0.0.1"
BOTH = (IPV4, pytest.param("[::1]", marks=needs_ipv6))


async def get(host: str, port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


def free_port() -> int:
    with listen(EVERY_ADDRESS, 0) as found:
        return int(found.getsockname()[1])


@pytest.mark.parametrize("host", BOTH)
async def test_probes_are_answered_over_both_families(host: str) -> None:
    port = free_port()
    runner = await endpoints.serve(endpoints.health(lambda: 3), port)
    try:
        assert await get(host, port, "/healthz") == (200, '{"queue": 3}')
    finally:
        await runner.cleanup()


async def test_what_is_not_alive_says_why() -> None:
    def dead() -> int:
        raise RuntimeError("a loop of the operator has ended")

    port = free_port()
    runner = await endpoints.serve(endpoints.health(dead), port)
    try:
        assert await get(IPV4, port, "/healthz") == (500, "a loop of the operator has ended")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("host", BOTH)
async def test_metrics_are_scraped_over_both_families(host: str) -> None:
    registry = CollectorRegistry()
    Counter("looks", "Looks at something.", registry=registry).inc()
    port = free_port()
    runner = await endpoints.serve(endpoints.metrics(registry), port)
    try:
        status, text = await get(host, port, "/metrics")
        assert (status, "looks_total 1.0" in text) == (200, True)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_without_ipv6_every_address_is_of_ipv4(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    bind = socket.create_server

    def without_ipv6(address: tuple[str, int], **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(code, "no IPv6 here")
        return bind(address, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    with listen(EVERY_ADDRESS, 0) as listener:
        assert listener.family == socket.AF_INET


def test_a_port_that_is_taken_is_no_lack_of_ipv6() -> None:
    with (
        listen(EVERY_ADDRESS, 0) as first,
        pytest.raises(OSError, match="in use"),
    ):
        listen(EVERY_ADDRESS, first.getsockname()[1])
