"""What 1,000 AtomDeployments with a claim and a route each cost, 200 of them autoscaled, against
what is promised of it.

The promises are of a machine with two cores and nothing else to do: `benchmarks.operator_scale`
measures, on nodes simulated by kwok, and these bounds judge. Some 15 minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from devcluster import target
from tests.support.cluster.live_cluster import ROOT, LiveCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

_DEPLOYMENTS, _AUTOSCALED, _ROUTED, _CHANGES = 1000, 200, 1000, 200
_RESYNC_SECONDS = 300
_MOST_SECONDS = 3600  # of everything, on a slow machine too
_READS = ("get", "list", "watch")
# A minute of rest: the resync's look at each and one at its silent engine; of those that scale one
# more. A look is a request for the object and one for its claim, and of those that scale one for
# the claim's volume. A quarter more for the lists of everything.
_LOOKS = 60 / _RESYNC_SECONDS
_SCALED = _AUTOSCALED / _DEPLOYMENTS
_CLAIMED = _ROUTED / _DEPLOYMENTS
_MOST_REQUESTS = 1.25 * ((2 * _LOOKS + _SCALED) * (1 + _CLAIMED) + 2 * _SCALED * _CLAIMED)


@pytest.fixture(scope="module")
def figures(live_cluster: LiveCluster) -> dict[str, Any]:
    """What the benchmark's last line says."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("1,000 objects and simulated nodes are nothing for a cluster of the user's own")
    asked = {
        "deployments": _DEPLOYMENTS,
        "autoscaled": _AUTOSCALED,
        "routed": _ROUTED,
        "changes": _CHANGES,
        "resync-seconds": _RESYNC_SECONDS,
        "seconds": 100,
    }
    flags = [f"--{name}={value}" for name, value in asked.items()]
    command = [sys.executable, "-m", "benchmarks.operator_scale", *flags]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_MOST_SECONDS, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_start_where_everything_is_there_writes_nothing(figures: dict[str, Any]) -> None:
    asked = figures["start_requests"]
    writes = {what: n for what, n in asked.items() if what.split()[0] not in _READS}
    assert writes == {}
    most = 2 * _DEPLOYMENTS + 2 * _ROUTED
    assert sum(asked.values()) <= most, "more than a look at each, its claim, and lists"


def test_rest_costs_little(figures: dict[str, Any]) -> None:
    assert figures["steady_mcpu"] <= 200
    assert figures["steady_rss_mib"] <= 300
    assert figures["steady_requests_per_object_and_minute"] <= _MOST_REQUESTS
    writes = [what for what in figures["steady_requests_per_s"] if what.split()[0] not in _READS]
    assert writes == []


def test_a_change_is_seen_through_in_two_seconds(figures: dict[str, Any]) -> None:
    assert figures["changes"] == _CHANGES
    assert figures["change_p99_s"] <= 2.0
