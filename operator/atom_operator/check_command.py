"""`check`: whether an installed operator works, seen from a pod beside it. `helm test` runs it.

Reads only: the API is served and may be read, a replica renews the Lease, and the webhook's Service
leads to a replica that has a certificate. Uses the operator's own account and settings.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from atom_operator import constants
from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.port import ClusterPort
from atom_operator.leadership.lease import LeaseTimes
from atom_operator.leadership.lease_object import ApiLease, LeasePort
from atom_operator.settings import OperatorSettings

_REQUEST_SECONDS = 5.0
_WEBHOOK_SECONDS = 60.0
_LOOK_SECONDS = 1.0


class CheckError(Exception):
    """State a fault and its remedy."""


@dataclass(frozen=True, slots=True)
class Check:
    """Define one check; `ask` returns its finding or raises CheckError."""

    name: str
    ask: Callable[[], Awaitable[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `check`."""
    parser.add_argument(
        "--webhook", metavar="URL", help="where the webhook says that it is ready; default: none"
    )


def run(options: argparse.Namespace, settings: OperatorSettings) -> int:
    """Run the checks; return 0 when all is well, 1 otherwise."""
    return asyncio.run(_run(settings, options.webhook))


async def _run(settings: OperatorSettings, webhook: str | None) -> int:
    async with AsyncExitStack() as open_until_the_end:
        cluster = ApiCluster.connect(settings.namespaces)
        open_until_the_end.push_async_callback(cluster.close)
        checks = [Check("API", lambda: api_is_served(cluster))]
        if settings.lease is not None:
            lease = ApiLease.connect(settings.lease.namespace, settings.lease.name)
            open_until_the_end.push_async_callback(lease.close)
            checks.append(Check("Lease", lambda: lease_is_renewed(lease, LeaseTimes())))
        if webhook is not None:
            checks.append(Check("webhook", lambda: webhook_answers(webhook)))
        return await report(checks)


async def report(checks: Sequence[Check]) -> int:
    """Ask every question, print a line each; 1 when one failed."""
    failed = 0
    for check in checks:
        try:
            print(f"ok    {check.name}: {await check.ask()}")
        except (CheckError, ClusterError) as error:
            failed = 1
            print(f"FAILED {check.name}: {error}", file=sys.stderr)
    return failed


async def api_is_served(cluster: ClusterPort) -> str:
    """Check that the CRD exists and this account may read its objects."""
    try:
        found = await cluster.list_deployments()
    except ClusterError as error:
        raise CheckError(
            f"cannot list {constants.PLURAL}.{constants.GROUP}: {error}; is the CRD installed "
            f"(crds.enabled), and the chart's role bound?"
        ) from error
    return f"{constants.API_VERSION} is served and has {len(found)} {constants.KIND}s"


async def lease_is_renewed(lease: LeasePort, times: LeaseTimes) -> str:
    """Check that a replica reconciles: the Lease names it and changes, whatever the clocks say."""
    before = None
    for _ in range(round(2 * times.duration_seconds / _LOOK_SECONDS)):
        now = await lease.read()
        if now is not None and now.holder and before is not None and now != before:
            return f"{now.holder} reconciles"
        before = now
        await asyncio.sleep(_LOOK_SECONDS)
    holder = f"held by {before.holder}" if before is not None and before.holder else "held by none"
    raise CheckError(
        f"the Lease is {holder} and was not renewed for {2 * times.duration_seconds} s; look at "
        f"the logs of the operator's pods"
    )


async def webhook_answers(url: str) -> str:
    """Check that the Service leads to a replica that has a certificate, whose CA only the API
    server has."""
    last = "no answer"
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
        connector=aiohttp.TCPConnector(ssl=False, force_close=True),
    ) as client:
        for _ in range(round(_WEBHOOK_SECONDS / _LOOK_SECONDS)):
            try:
                async with client.get(url) as answer:
                    status = answer.status
            except (aiohttp.ClientError, TimeoutError) as error:
                last = f"{type(error).__name__} {error}".strip()
            else:
                if status == HTTPStatus.OK:
                    return f"{url} answers"
                last = f"HTTP {status}"
            await asyncio.sleep(_LOOK_SECONDS)
    raise CheckError(
        f"{url}: {last} for {_WEBHOOK_SECONDS:g} s; look at the operator's pods and the endpoints "
        f"of its Service, or install with webhook.enabled=false"
    )
