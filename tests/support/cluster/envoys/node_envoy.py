"""A real Envoy in the cluster's network, whatever its configuration says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster import target
from devcluster.node import network
from tests.support.server.envoy_process import envoy_process

_INSIDE = (sys.executable, "-m", "devcluster", "exec", "--")


@contextmanager
def envoy(config: Path, *flags: str) -> Iterator[str]:
    """Yield the address of the node, at whose ports it listens; its log is beside `config`."""
    with envoy_process(config, *flags, inside=_INSIDE):
        yield network.uplink(target.resolve(os.environ).settings.instance).node_address
